"""Deletes of what has expired, a bounded number of rows at a time; any number of processes may run them at once."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, TextClause, text

from holdfast.persistence.records.tables import metadata


def _delete(table: str, expired: str, *, order: str = "", lock: str = "") -> str:
    key = metadata.tables[table].primary_key.columns.keys()
    chosen = (
        f"select {', '.join(f't.{name}' for name in key)} from {table} t where {expired} {order} limit :most {lock}"
    )
    matching = " and ".join(f"d.{name} = due.{name}" for name in key)
    # Materialized: the rows are chosen once, whatever the plan.
    return f"with due as materialized ({chosen}) delete from {table} d using due where {matching}"


_BEFORE = "< cast(:now as timestamptz) - make_interval(secs => :retention_s)"

_DELETES: dict[str, TextClause] = {
    "idempotency_records": text(_delete("idempotency_records", f"created_at {_BEFORE}")),
    # The sign-in limits count a day at most. A row that stores origins the owner has signed in from is retained for
    # longer, so each kind has an index in which nothing that is retained comes first.
    "sign_ins": text(
        _delete(
            "sign_ins",
            f"updated_at {_BEFORE} and (state -> 'proven') is null",
            order="order by updated_at",
            lock="for update skip locked",
        )
    ),
    "proven_sign_ins": text(
        _delete(
            "sign_ins",
            f"updated_at {_BEFORE}",
            order="order by updated_at",
            lock="for update skip locked",
        )
    ),
    "api_keys": text(_delete("api_keys", f"revoked_at {_BEFORE}")),
    "sessions": text(_delete("sessions", f"expires_at {_BEFORE}")),
    "operator_sessions": text(_delete("operator_sessions", f"expires_at {_BEFORE}")),
    # Events without an order: of others who share our account at the provider, or of orders that never existed.
    "payment_events": text(_delete("payment_events", f"order_id is null and received_at {_BEFORE}")),
    # Events that were delivered or given up, with their attempts.
    "outbox": text(
        f"with gone as ({_delete('outbox', f'done_at {_BEFORE}')} returning d.account_id, d.event_id), "
        "attempts as (delete from outbox_attempts a using gone "
        "where a.account_id = gone.account_id and a.event_id = gone.event_id) select from gone"
    ),
    # The newest generation is needed to sign; an earlier one only until it no longer signs.
    "webhook_secrets": text(
        _delete(
            "webhook_secrets",
            f"rotated_at {_BEFORE} and exists (select from webhook_secrets n "
            "where n.account_id = t.account_id and n.generation > t.generation)",
        )
    ),
    "coupon_tries": text(_delete("coupon_tries", f"since {_BEFORE}", lock="for update skip locked")),
    # What happened to the account as a whole stays.
    "account_changes": text(_delete("account_changes", f"api_key_id is not null and at {_BEFORE}")),
    "check_callbacks": text(_delete("check_callbacks", f"at {_BEFORE}")),
    # The row that ends last stays, with the versions of those deleted: their sum tells processes what they know.
    "overrides": text(
        "with last as materialized "
        "(select kind, subject from overrides order by ends_at desc, kind, subject limit 1 for update), gone as ("
        + _delete(
            "overrides",
            f"ends_at {_BEFORE} and (kind, subject) not in (select kind, subject from last)",
            lock="for update skip locked",
        )
        + " returning d.version), kept as (update overrides o set version = version + "
        "(select sum(version) from gone) from last where o.kind = last.kind and o.subject = last.subject "
        "and exists (select from gone)) select from gone"
    ),
    "poison_messages": text(_delete("poison_messages", f"last_at {_BEFORE}")),
    "reports": text(_delete("reports", f"at {_BEFORE}")),
    # By the database's clock, which wrote their times.
    "journal_batches": text(_delete("journal_batches", "at < now() - make_interval(secs => :retention_s)")),
}

REVOKED_KEYS_MAX = 100
"""How many revoked API keys of an account are retained, the newest, however long ago they were revoked."""
_SURPLUS_KEYS = text(
    _delete(
        "api_keys",
        # Only accounts that revoked a key lately are looked at; those of others were deleted then.
        "t.revoked_at <= (select n.revoked_at from api_keys n where n.account_id = t.account_id "
        "and n.revoked_at is not null order by n.revoked_at desc offset :kept limit 1) and t.account_id in "
        "(select account_id from api_keys where revoked_at > cast(:now as timestamptz) - interval '1 hour')",
    )
)


def delete_expired(rows: Connection, what: str, *, retention_s: int, now: datetime, most: int) -> int:
    """Delete up to ``most`` rows of a kind whose retention is over at ``now``; return how many were deleted."""
    return rows.execute(_DELETES[what], {"retention_s": retention_s, "now": now, "most": most}).rowcount


def delete_surplus_keys(rows: Connection, *, now: datetime, most: int) -> int:
    """Delete up to ``most`` revoked keys of accounts with more than :data:`REVOKED_KEYS_MAX`, the oldest ones."""
    return rows.execute(_SURPLUS_KEYS, {"kept": REVOKED_KEYS_MAX, "now": now, "most": most}).rowcount
