"""The audit's rules about receipts: they are exactly the money in the books, and numbered without gaps.

An operation may wait for its receipt for :data:`LATE`. The numbers of all accounts are in the view
``receipt_numbers``, since a rule sees the receipts of a few accounts alone. Receipts that came with an account
from another cell are in that cell's series.
"""

from __future__ import annotations

from typing import Final

from holdfast.ledger.values import CURRENCY
from holdfast.persistence.audit.rules import Rule
from holdfast.persistence.records.move_tables import RECEIPTS_OF_CELL

LATE: Final = "interval '15 minutes'"
"""How long after money has moved its receipt must be there, and after receipts were begun that of older money."""

_MOVED = f"""
    select o.account_id, o.operation_id, o.number, o.kind, o.amount_micro, o.reference, o.reason, o.at,
           -p.amount_micro as in_micro,
           now() - greatest(o.at, (select begun_at from receipt_series)) > {LATE} as is_late
    from postings p join operations o on (o.account_id, o.number) = (p.account_id, p.number)
    where p.ledger_account = 'cash:cardprovider'
"""
"""The operations that moved money, with what came in: below zero if it went out."""

RECEIPT_RULES: tuple[Rule, ...] = (
    Rule(
        "each payment has its receipt, and each refund and dispute its credit note, of the same amount",
        f"""
        select coalesce(o.account_id, d.account_id) as account_id, d.number, d.kind, d.credit_micro, d.order_id,
               d.operation_id, o.operation_id as moved_by, o.kind as moved_as, o.in_micro, o.reference
        from ({_MOVED}) o full join receipts d on d.operation_id = o.operation_id
        where case when d.operation_id is null then o.is_late
              else (d.account_id, d.order_id, d.operation_number, d.reason, d.moved_at,
                    case d.kind when 'receipt' then d.credit_micro when 'credit_note' then -d.credit_micro end)
                   is distinct from (o.account_id, o.reference, o.number, o.reason, o.at, o.in_micro) end
        """,
        "the {kind} {number} is of {credit_micro} for order {order_id} by {operation_id}; "
        "the books have the {moved_as} {moved_by} of {in_micro} for order {reference}",
    ),
    Rule(
        "the sum of an account's receipts less its credit notes is the money that its books have received",
        f"""
        select coalesce(o.account_id, d.account_id) as account_id, coalesce(o.in_micro, 0) as in_micro,
               coalesce(d.receipts_micro, 0) as receipts_micro
        from (
            select account_id, sum(in_micro) as in_micro from ({_MOVED}) m
            where is_late or exists (select from receipts d where d.operation_id = m.operation_id)
            group by account_id
        ) o full join (
            select account_id, sum(case kind when 'receipt' then credit_micro else -credit_micro end)
                       as receipts_micro
            from receipts group by account_id
        ) d on d.account_id = o.account_id
        where coalesce(o.in_micro, 0) <> coalesce(d.receipts_micro, 0)
        """,
        "its receipts less its credit notes sum to {receipts_micro}, its books have received {in_micro}",
    ),
    Rule(
        "receipts are numbered without gaps, and each has the number of its place",
        f"""
        select account_id, number, sequence, (select last_number from receipt_series) as last_number
        from (select r.*, lpad(c.counted, greatest(6, length(c.counted)), '0') as counted
              from receipts r, lateral (select (sequence % {RECEIPTS_OF_CELL})::text as counted) c) d
        where sequence < 1
           or right(number, length(counted)) is distinct from counted
           or (sequence < {RECEIPTS_OF_CELL} and (sequence > (select last_number from receipt_series)
               or (sequence > 1 and not exists (
                   select from receipt_numbers n where n.sequence = d.sequence - 1))
               or (sequence < (select last_number from receipt_series) and not exists (
                   select from receipt_numbers n where n.sequence = d.sequence + 1))))
        """,
        "the receipt {number} is number {sequence} of {last_number}, or the one before or after it is missing",
    ),
    Rule(
        "each receipt states its month, and what was paid for its credit",
        f"""
        select account_id, number, month, moved_at, amount_micro, currency, credit_micro from receipts d
        where month is distinct from to_char(moved_at at time zone 'UTC', 'YYYY-MM')
           or amount_micro < 0 or (currency = '{CURRENCY}' and amount_micro <> credit_micro)
        """,
        "the receipt {number} of {month} is of {amount_micro} {currency} for {credit_micro}, moved at {moved_at}",
    ),
    Rule(
        "each receipt after the first of its order names that",
        """
        select d.account_id, d.number, d.order_id, d.receipt_number, f.number as first
        from receipts d left join lateral (
            select number, operation_id from receipts e
            where (e.account_id, e.order_id) = (d.account_id, d.order_id)
            order by e.operation_number limit 1
        ) f on true
        where d.receipt_number
              is distinct from case when f.operation_id = d.operation_id then null else f.number end
        """,
        "the receipt {number} of order {order_id} names {receipt_number}; the order's first is {first}",
    ),
)
