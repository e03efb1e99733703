"""The accounts that have lots of credit whose time has come, or comes soon. ``now`` is service time."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import Connection, text

from holdfast.ledger.credit.operations import NOTICES_DAYS

_DUE = text(
    # An account may have thousands of lots, so its used ones are read once: of the others nothing is reserved.
    """
    select a.id
    from (select account_id, array_agg(number) as numbers from credit_lots
          where closed_number is null and expires_at <= :now and account_id > :after group by account_id) expired
    join accounts a on a.id = expired.account_id
    where case when a.lots is null then a.balance_micro > a.held_micro
               else exists (select unnest(expired.numbers)
                            except select cast(used ->> 0 as bigint)
                            from json_array_elements(cast(a.lots as json)) used
                            where used ->> 1 = used ->> 2) end
    order by a.id limit :most
    """
)


_EXPIRING = text(
    """
    select distinct l.account_id from credit_lots l
    where l.closed_number is null and l.kind = 'paid' and l.expires_at > :now and l.expires_at <= :first_by
    and (l.announced_days is null or (l.announced_days > :last_days and l.expires_at <= :last_by))
    and l.account_id > :after order by l.account_id limit :most
    """
)


def accounts_to_notify(rows: Connection, now: datetime, *, after: str, most: int) -> list[str]:
    """Return the accounts that follow ``after`` and are to be notified that paid credit expires soon."""
    last_days, first_days = NOTICES_DAYS
    page = {
        "now": now,
        "first_by": now + timedelta(days=first_days),
        "last_by": now + timedelta(days=last_days),
        "last_days": last_days,
        "after": after,
        "most": most,
    }
    return list(rows.execute(_EXPIRING, page).scalars())


def accounts_with_expired_lots(rows: Connection, now: datetime, *, after: str, most: int) -> list[str]:
    """Return the accounts that follow ``after`` and have credit that has expired and is not reserved."""
    return list(rows.execute(_DUE, {"now": now, "after": after, "most": most}).scalars())
