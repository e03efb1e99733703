"""The audit's rules that no unique key enforces, because the tables are spread by account.

Ids are created from a time and random bits, credentials are random, so no two accounts have the same one. The
directories are written by triggers.
"""

from __future__ import annotations

from holdfast.persistence.audit.rules import Rule
from holdfast.persistence.records.tables import metadata

_IDS = (
    ("operation", "operations", "operation_id", "operation_id"),
    ("task", "tasks", "request_id", "request_id"),
    ("asset", "assets", "asset_id", "asset_id"),
    ("payment order", "orders", "order_id", "order_id"),
    ("API key", "api_keys", "secret_sha256", "key_id"),
    ("session", "sessions", "token_sha256", "session_id"),
)


def _repeated(name: str, table: str, unique: str, shown: str) -> str:
    """Return SQL for the rows whose id or credential another row has too."""
    key = metadata.tables[table].primary_key.columns.keys()
    mine, other = (", ".join(f"{alias}.{column}" for column in key) for alias in ("o", "e"))
    return (
        f"select o.account_id, '{name}' as what, o.{shown} as id from {table} o where exists ("
        f"select from every_{table} e where e.{unique} = o.{unique} and ({other}) <> ({mine}))"
    )


SPREAD_RULES: tuple[Rule, ...] = (
    Rule(
        "no two rows have the same id or credential, whichever their accounts",
        "select count(*) from operations",
        " union all ".join(_repeated(*each) for each in _IDS),
        "{what} {id} is not alone with its id or credential",
    ),
    Rule(
        "each e-mail address is listed with its account, and each payment with its order",
        "select count(*) from account_emails",
        """
        select coalesce(a.id, e.account_id) as account_id, 'its e-mail address' as what, e.account_id as listed
        from accounts a full join account_emails e on e.email = a.email
        where a.id is distinct from e.account_id
        union all
        select coalesce(o.account_id, p.account_id), 'the payment of order ' || coalesce(o.order_id, p.order_id),
               p.account_id || ' and order ' || p.order_id
        from (select * from orders where provider_payment_id is not null) o
        full join order_payments p
            on (p.provider, p.provider_payment_id) = (o.provider, o.provider_payment_id)
        where (o.account_id, o.order_id) is distinct from (p.account_id, p.order_id)
        """,
        "{what} is listed with account {listed}",
    ),
)
