"""What decides about an account as a whole: its address with the codes sent to it, and what is not settled yet."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, text

from holdfast.persistence.queries.loading import LoadedSignIn, RowMissing, load_sign_in

_FACTS = text(
    """
    select a.email,
        exists (select from sessions s where s.account_id = a.id and s.revoked_at is null) as has_session,
        (select count(*) from orders o
            where o.account_id = a.id and o.status in ('pending', 'held')) as orders_open,
        (select count(*) from orders o where o.account_id = a.id
            and (o.state -> 'statuses' ->> 'reversal_status' = 'disputed'
                 or o.state -> 'statuses' ->> 'risk_status' in ('inquiry', 'disputed'))) as disputes_open,
        exists (select from orders o cross join lateral json_array_elements(o.state -> 'moves') move
            where (o.account_id, o.provider) = (a.id, 'cardprovider') and not exists (
                select from receipts r where r.operation_id = move ->> 'operation_id')) as is_receipt_due
    from accounts a where a.id = :account_id
    """
)


class LeavingFacts(NamedTuple):
    """An account's address, the codes of it and of the new one that its owner wants, and what is not settled.

    ``has_session``: whether there is one that was not ended; it may have expired. An order is open until it was
    paid or cannot be paid any more, a dispute until its bank has decided. ``is_receipt_due``: whether money has
    moved that has no receipt yet, which names the address.
    """

    email: str
    current: LoadedSignIn
    new: LoadedSignIn | None
    has_session: bool
    orders_open: int
    disputes_open: int
    is_receipt_due: bool


def read_leaving(rows: Connection, account_id: str, new_email: str | None) -> LeavingFacts:
    """Return the facts of an account. Raises :class:`RowMissing`."""
    found = rows.execute(_FACTS, {"account_id": account_id}).one_or_none()
    if found is None:
        raise RowMissing(f"account {account_id}")
    return LeavingFacts(
        found.email,
        load_sign_in(rows, f"email:{found.email}"),
        None if new_email is None else load_sign_in(rows, f"email:{new_email}"),
        found.has_session,
        found.orders_open,
        found.disputes_open,
        found.is_receipt_due,
    )
