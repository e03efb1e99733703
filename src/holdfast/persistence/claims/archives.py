"""Archives of accounts: asked for, claimed by the process that makes them, and what they have of the rows.

They are no rows of the journal: no credit depends on them. The content of an archive is claimed for as long as it
is kept, and nothing else refers to it, so it is removed after that as any content is.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, text

from holdfast.persistence.records.rows import ArchiveRow
from holdfast.persistence.records.table_base import selected
from holdfast.persistence.records.tables import archives, metadata

KEPT: Final = timedelta(days=1)
"""How long an archive can be fetched; until then its account gets no other."""
LEASE: Final = timedelta(minutes=5)
"""How long a claim lasts, which is renewed while the archive is made."""
TRIES_MAX: Final = 5
"""After so many processes that have not finished it an archive has failed."""

_BEGIN: Final = text(
    """
    insert into archives as a (account_id, archive_id, requested_at, claimed_until, tries)
    values (:account_id, :archive_id, :now, :now, 0)
    on conflict (account_id) do update set archive_id = excluded.archive_id, requested_at = excluded.requested_at,
        claimed_until = excluded.claimed_until, tries = 0, made_at = null, expires_at = null, sha256 = null,
        bytes = null
    where a.expires_at <= :now or (a.made_at is null and a.tries >= :tries_max and a.claimed_until <= :now)
    returning archive_id
    """
)
_NOTE: Final = text(
    "insert into account_changes (account_id, at, what, change_id) values (:account_id, :now, :what, :change_id)"
)
_CLAIM: Final = text(
    """
    update archives a set claimed_until = :until, tries = a.tries + 1 from (
        select account_id from archives
        where made_at is null and claimed_until <= :now and tries < :tries_max
        order by requested_at limit 1 for update skip locked
    ) due where a.account_id = due.account_id returning a.account_id, a.archive_id
    """
)
_RENEW: Final = text(
    "update archives set claimed_until = :until "
    "where account_id = :account_id and archive_id = :archive_id and made_at is null"
)
_FINISH: Final = text(
    "update archives set made_at = :now, expires_at = :expires_at, sha256 = :sha256, bytes = :bytes "
    "where account_id = :account_id and archive_id = :archive_id and made_at is null"
)


class ArchivePart(NamedTuple):
    """A table of an account, of which each row is a line of the file ``name``, but for the columns ``without``."""

    name: str
    table: str
    without: tuple[str, ...] = ()
    rows_max: int = 200
    owner: str = "account_id"

    @property
    def columns(self) -> list[str]:
        """The columns that are in the archive."""
        return [column.name for column in metadata.tables[self.table].c if column.name not in self.without]


_INTERNAL: Final = ("version", "chain_head", "lots")
PARTS: Final[tuple[ArchivePart, ...]] = (
    ArchivePart("account", "accounts", _INTERNAL, owner="id"),
    ArchivePart("account_changes", "account_changes"),
    ArchivePart("sessions", "sessions", ("token_sha256",)),
    ArchivePart("api_keys", "api_keys", ("secret_sha256",)),
    ArchivePart("key_groups", "key_groups"),
    ArchivePart("group_keys", "group_keys"),
    ArchivePart("limits", "account_limits"),
    ArchivePart("webhooks", "webhooks", ("is_silent",)),
    ArchivePart("events", "outbox", ("due_at", "round_at"), rows_max=50),
    ArchivePart("alerts", "alerts"),
    ArchivePart("cards_and_top_up", "auto_top_ups"),
    ArchivePart("orders", "orders", ("wake_at",), rows_max=50),
    # Each with the body as the card provider has sent it: it may say more of a person than the order does.
    ArchivePart("payment_events", "payment_events", rows_max=50),
    ArchivePart("receipts", "receipts"),
    ArchivePart("coupons", "coupon_uses"),
    ArchivePart("operations", "operations", ("chain_hash",)),
    ArchivePart("postings", "postings"),
    ArchivePart("credit_lots", "credit_lots"),
    # An input may have megabytes.
    ArchivePart("tasks", "tasks", ("wake_at", "owner", "dispatch_s", "run_s", "overall_deadline_at"), rows_max=5),
    ArchivePart("results", "assets"),
    ArchivePart("files", "files"),
)
USAGE: Final = ArchivePart("usage", "usage_entries", ("account_id", "status_history", "operation_id"), rows_max=500)
"""The usage log, which is a table of text."""


def begin_archive(rows: Connection, account_id: str, archive_id: str, change_id: str, now: datetime) -> ArchiveRow:
    """Ask for an archive of an account, unless there is one or it is being made; return the one that there is."""
    given = {"account_id": account_id, "archive_id": archive_id, "now": now, "tries_max": TRIES_MAX}
    if rows.execute(_BEGIN, given).one_or_none() is not None:
        _note(rows, account_id, "archive_requested", change_id, now)
    found = find_archive(rows, account_id)
    assert found is not None
    return found


def find_archive(rows: Connection, account_id: str) -> ArchiveRow | None:
    """Return the archive that an account has asked for last, if it has."""
    return _one(rows, archives.c.account_id == account_id)


def archive_by_id(rows: Connection, archive_id: str) -> ArchiveRow | None:
    """Return an archive of any account."""
    return _one(rows, archives.c.archive_id == archive_id)


def _one(rows: Connection, condition: Any) -> ArchiveRow | None:
    found = rows.execute(selected(archives, ArchiveRow._fields).where(condition)).one_or_none()
    return None if found is None else ArchiveRow._make(found)


def claim_archive(rows: Connection, now: datetime) -> tuple[str, str] | None:
    """Claim the archive that was asked for first; return its account and its id."""
    found = rows.execute(_CLAIM, {"now": now, "until": now + LEASE, "tries_max": TRIES_MAX}).one_or_none()
    return None if found is None else (found.account_id, found.archive_id)


def renew_archive(rows: Connection, account_id: str, archive_id: str, now: datetime) -> bool:
    """Renew the claim of an archive; False if it is not to be made any more."""
    given = {"account_id": account_id, "archive_id": archive_id, "until": now + LEASE}
    return rows.execute(_RENEW, given).rowcount == 1


def finish_archive(
    rows: Connection, account_id: str, archive_id: str, change_id: str, now: datetime, *, sha256: str, bytes_: int
) -> None:
    """Record an archive whose content is stored, unless that was done."""
    given = {"account_id": account_id, "archive_id": archive_id, "now": now, "sha256": sha256, "bytes": bytes_}
    if rows.execute(_FINISH, {**given, "expires_at": now + KEPT}).rowcount:
        _note(rows, account_id, "archive_made", change_id, now)


def _note(rows: Connection, account_id: str, what: str, change_id: str, now: datetime) -> None:
    rows.execute(_NOTE, {"account_id": account_id, "now": now, "what": what, "change_id": change_id})


def read_part(
    rows: Connection, part: ArchivePart, account_id: str, after: Sequence[Any] | None
) -> tuple[list[Any], Sequence[Any] | None]:
    """Return the next rows of a part, each as JSON and with its columns as text, and where the next page begins.

    None: there is none.
    """
    key = [column.name for column in metadata.tables[part.table].primary_key]
    keys = ", ".join(key)
    follows = "" if after is None else f"and ({keys}) > ({', '.join(f':k{n}' for n in range(len(key)))})"
    page = f"select {keys} from {part.table} where {part.owner} = :account_id {follows} order by {keys} limit :most"
    same = " and ".join(f"t.{name} = page.{name}" for name in key)
    query = text(
        f"with page as materialized ({page}) select row_to_json(x)::text as as_json, x.*, "
        f"{', '.join(f'page.{name} as key_{n}' for n, name in enumerate(key))} "
        f"from page join {part.table} t on {same} "
        f"cross join lateral (select {', '.join(f't.{name}' for name in part.columns)}) x "
        f"order by {', '.join(f'page.{name}' for name in key)}"
    )
    given = {f"k{n}": value for n, value in enumerate(after or ())}
    found = rows.execute(query, {**given, "account_id": account_id, "most": part.rows_max}).all()
    if len(found) < part.rows_max:
        return list(found), None
    return list(found), [getattr(found[-1], f"key_{n}") for n in range(len(key))]
