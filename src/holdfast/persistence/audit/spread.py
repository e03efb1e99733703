"""The audit's rules that no unique key enforces, because the tables are spread by account.

Ids are created from a time and random bits, credentials are random, so no two accounts have the same one. The
directories are written by triggers.
"""

from __future__ import annotations

from holdfast.persistence.audit.rules import Rule

_IDS = (
    ("operation", "operations", "operation_id", "operation_id"),
    ("task", "tasks", "request_id", "request_id"),
    ("asset", "assets", "asset_id", "asset_id"),
    ("payment order", "orders", "order_id", "order_id"),
    ("API key", "api_keys", "secret_sha256", "key_id"),
    ("session", "sessions", "token_sha256", "session_id"),
)

SPREAD_RULES: tuple[Rule, ...] = (
    Rule(
        "no two rows have the same id or credential, whichever their accounts",
        "select count(*) from operations",
        " union all ".join(
            f"select '{name} ' || min({shown}) || ': ' || count(*) || ' rows' from {table} "
            f"group by {unique} having count(*) > 1"
            for name, table, unique, shown in _IDS
        ),
    ),
    Rule(
        "each e-mail address is listed with its account, and each payment with its order",
        "select count(*) from account_emails",
        """
        select coalesce(a.id, e.account_id) || ': its e-mail address is that of '
               || coalesce(e.account_id, 'no account')
        from accounts a full join account_emails e on e.email = a.email
        where a.id is distinct from e.account_id
        union all
        select coalesce(o.order_id, p.order_id) || ': its payment is that of ' || coalesce(p.order_id, 'no order')
        from (select * from orders where provider_payment_id is not null) o
        full join order_payments p
            on (p.provider, p.provider_payment_id) = (o.provider, o.provider_payment_id)
        where (o.account_id, o.order_id) is distinct from (p.account_id, p.order_id)
        """,
    ),
)
