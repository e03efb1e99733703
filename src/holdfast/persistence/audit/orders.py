"""The audit of payment orders against their own facts, the ledger's operations and the stored events.

What follows from an order's facts is derived again by the decision functions, order by order; agreement with other
tables is one query for each rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, Text, any_, literal, text, tuple_
from sqlalchemy.dialects.postgresql import ARRAY

from holdfast.ledger.orders.facts import provider_objects_of
from holdfast.ledger.orders.targets import assess
from holdfast.ledger.values import AMOUNT_MICRO_MAX, format_amount
from holdfast.persistence.audit.rules import BrokenRule, Difference, Rule
from holdfast.persistence.records.reading import ORDER, order_of
from holdfast.persistence.records.tables import orders
from holdfast.persistence.records.unreadable import UnreadableRow, read_row

NET = "the net amount posted for each order follows from its facts"
STATUSES = "each order's statuses follow from its facts"
HISTORY = "each order's history ends in its statuses and names its operations in order"
PAYMENTS = "each order lists every payment and charge that its facts name"
COLUMNS = "each order's columns match its state"
BONUS = "each order gives the bonus that it was created with, and never more"
READ_RULES = (NET, STATUSES, HISTORY, PAYMENTS, COLUMNS, BONUS)

_PAID_BALANCE = text(
    "case when orders.request -> 'bonus' is not null then (select p.balance_after_micro from operations p "
    "where p.operation_id = orders.request ->> 'operation_id') end as paid_balance_micro"
)
"""The balance after the credit of an order that has a bonus: of the largest one no bonus is given."""
_IN_ORDER = ORDER.add_columns(_PAID_BALANCE).order_by(orders.c.account_id, orders.c.order_id)


def _listed(field: str) -> str:
    """Return SQL for a list in an order's state; an empty one if it has none, or if it is not a list."""
    return f"case json_typeof(o.state -> '{field}') when 'array' then o.state -> '{field}' else '[]' end"


_MOVES = (
    "select o.account_id, o.order_id, m.n, m.move ->> 'operation_id' as operation_id, "
    "m.move ->> 'kind' as kind, (m.move ->> 'amount_micro')::bigint as amount_micro, "
    "o.request ->> 'operation_id' as reserved from orders o "
    f"cross join lateral json_array_elements({_listed('moves')}) with ordinality as m (move, n)"
)
_POSTED = (
    f"select account_id, order_id, operation_id, kind, amount_micro from ({_MOVES}) m union all "
    "select o.account_id, o.order_id, b.move ->> 'operation_id', "
    "case when (b.move ->> 'amount_micro')::bigint > 0 then 'grant' else 'adjustment' end, "
    "(b.move ->> 'amount_micro')::bigint from orders o "
    f"cross join lateral json_array_elements({_listed('bonus_moves')}) as b (move)"
)
_EVENT_IDS = (
    "select o.provider, o.account_id, o.order_id, e.event_id from orders o "
    f"cross join lateral json_array_elements_text({_listed('event_ids')}) as e (event_id)"
)
_PAYMENTS = (
    "select o.provider, o.account_id, o.order_id, p.object_id from orders o "
    f"cross join lateral json_array_elements_text({_listed('provider_object_ids')}) as p (object_id)"
)

ORDER_RULES: tuple[Rule, ...] = (
    Rule(
        "each order lists exactly the operations posted for it",
        f"""
        select coalesce(m.account_id, p.account_id) as account_id, coalesce(m.order_id, p.reference) as order_id,
               coalesce(m.operation_id, p.operation_id) as operation_id, m.kind as listed, m.amount_micro,
               p.number, p.kind, p.amount_micro as posted_micro
        from ({_POSTED}) m
        full join (select * from operations where starts_with(reference, 'ord_') and kind <> 'expiry') p
            on p.operation_id = m.operation_id
        where (m.account_id, m.order_id, m.kind, m.amount_micro)
              is distinct from (p.account_id, p.reference, p.kind, p.amount_micro)
        """,
        "order {order_id} lists {operation_id} as a {listed} of {amount_micro}; "
        "the journal has operation {number}, a {kind} of {posted_micro}",
    ),
    Rule(
        "the first credit of each order, and no other operation, has the reserved id",
        f"""
        select m.account_id, m.order_id, m.n, m.kind, m.operation_id, m.reserved
        from ({_MOVES}) m where (m.n = 1) <> (m.operation_id = m.reserved) or (m.n = 1 and m.kind <> 'credit')
        """,
        "move {n} of order {order_id} is the {kind} {operation_id}, reserved for its first credit is {reserved}",
    ),
    Rule(
        "each order's postings name the ledger account of its provider",
        """
        select p.account_id, p.number, l.ledger_account, o.order_id, o.provider
        from orders o
        join operations p on (p.account_id, p.reference) = (o.account_id, o.order_id)
            and p.kind in ('credit', 'reversal')
        join postings l on (l.account_id, l.number) = (p.account_id, p.number)
        where l.ledger_account not in ('available', 'cash:' || o.provider)
        """,
        "operation {number} moves {ledger_account} for order {order_id} of {provider}",
    ),
    Rule(
        "each payment and charge belongs to the one order that lists it",
        f"""
        select coalesce(l.account_id, p.account_id) as account_id,
               coalesce(l.object_id, p.provider_object_id) as object_id, l.order_id, p.order_id as stored_for
        from ({_PAYMENTS}) l
        full join order_payments p on (p.provider, p.provider_object_id) = (l.provider, l.object_id)
        where (l.account_id, l.order_id) is distinct from (p.account_id, p.order_id)
        """,
        "{object_id} is listed by order {order_id}, and stored for order {stored_for}",
    ),
    Rule(
        "the events listed by each order are the stored events applied to it",
        f"""
        select coalesce(e.account_id, k.account_id) as account_id, coalesce(e.event_id, k.event_id) as event_id,
               e.order_id, k.verdict, k.order_id as stored_for
        from ({_EVENT_IDS}) e
        full join (select * from payment_events where verdict in ('applied', 'stale')) k
            on (k.provider, k.event_id) = (e.provider, e.event_id)
        where (e.account_id, e.order_id) is distinct from (k.account_id, k.order_id)
        """,
        "event {event_id} is listed by order {order_id}, and stored as {verdict} for order {stored_for}",
    ),
)


TOP_UP_RULES: tuple[Rule, ...] = (
    Rule(
        "each account has at most one open top-up, the one that it names",
        """
        select coalesce(t.account_id, o.account_id) as account_id, t.open_order_id as named, o.order_id
        from (select * from auto_top_ups where open_order_id is not null) t
        full join (select * from orders where origin = 'top_up' and status in ('pending', 'held')) o
            on (o.account_id, o.order_id) = (t.account_id, t.open_order_id)
        where t.open_order_id is distinct from o.order_id
        """,
        "the account names the open top-up {named}; order {order_id} is open",
    ),
    Rule(
        "the top-ups counted of a day and a month are those that were charged or are open",
        """
        select c.account_id, c.on_day, c.today, c.this_month, count(o.order_id) as in_month,
               count(o.order_id) filter (where o.day = c.on_day) as on_that_day
        from (
            select account_id, coalesce((state #>> '{attempts,on}')::date, '0001-01-01') as on_day,
                   coalesce((state #>> '{attempts,today}')::int, 0) as today,
                   coalesce((state #>> '{attempts,this_month}')::int, 0) as this_month
            from auto_top_ups
        ) c
        left join (
            select account_id, order_id, (created_at at time zone 'UTC')::date as day from orders
            where origin = 'top_up'
                  and (status in ('pending', 'held', 'credited') or state -> 'facts' -> 'payments' is not null)
        ) o on o.account_id = c.account_id and date_trunc('month', o.day) = date_trunc('month', c.on_day)
        group by c.account_id, c.on_day, c.today, c.this_month
        having (c.today, c.this_month)
               is distinct from (count(o.order_id) filter (where o.day = c.on_day), count(o.order_id))
        """,
        "the account counts {today} on {on_day} and {this_month} in its month; the orders are {on_that_day} and "
        "{in_month}",
    ),
)


Position = tuple[str, str]
"""An order's account and id."""


def check_orders(
    rows: Connection, scope: Sequence[str], after: Position, *, most: int
) -> tuple[list[Difference], Position | None]:
    """Check up to ``most`` orders of a few accounts that follow a position.

    Returns the differences, and the last position of a full page; None if no order is left.
    """
    key = tuple_(orders.c.account_id, orders.c.order_id)
    query = _IN_ORDER.where(orders.c.account_id == any_(literal(list(scope), ARRAY(Text))), key > after)
    try:
        found = rows.execute(query.limit(most)).all()
    except UnreadableRow as unreadable:
        if most > 1:
            return check_orders(rows, scope, after, most=most // 2)
        keys = query.with_only_columns(orders.c.account_id, orders.c.order_id).limit(1)
        account_id, order_id = rows.execute(keys).one()
        what = f"order {order_id} has a value that cannot be read: {unreadable}"
        return [Difference(BrokenRule(account_id, COLUMNS), what)], (account_id, order_id)
    differences = [difference for row in found for difference in _differences(row)]
    return differences, (found[-1].account_id, found[-1].order_id) if len(found) == most else None


def _differences(row: Any) -> Iterator[Difference]:
    return (
        Difference(BrokenRule(row.account_id, rule), f"order {row.order_id} {what}") for rule, what in _broken(row)
    )


def _broken(row: Any) -> Iterator[tuple[str, str]]:
    """Yield the rules that an order breaks, and how."""
    try:
        order = read_row(order_of, row, "orders", row.order_id)
    except UnreadableRow:
        yield COLUMNS, "has documents that cannot be decoded"
        return
    request, state, statuses = order.request, order.state, order.statuses
    implied = assess(request, state.facts)
    if order.net_micro != implied.net_micro or not 0 <= order.net_micro <= request.amount_micro:
        posted, required = format_amount(order.net_micro), format_amount(implied.net_micro)
        yield NET, f"has posted {posted}, its facts require {required}"
    derived, stored = (
        (each.status, each.processing_status, each.reversal_status, each.risk_status)
        for each in (implied.statuses, statuses)
    )
    if derived != stored:
        yield STATUSES, f"is {' '.join(stored)}, its facts imply {' '.join(derived)}"
    named = [entry.operation_id for entry in state.history if entry.operation_id is not None]
    if not state.history or state.history[-1].statuses != statuses or named != [*order.ledger_operation_refs]:
        yield HISTORY, "has a history that does not match its state"
    listed = {*state.provider_object_ids}
    if request.provider == "cardprovider" and not listed >= provider_objects_of(state.facts):
        yield PAYMENTS, "does not list all payments and charges that its facts name"
    bonus_moves, given = state.bonus_moves, format_amount(order.bonus_micro)
    offered_micro = 0 if request.bonus is None else request.bonus.credit_micro
    if not 0 <= order.bonus_micro <= offered_micro or (bonus_moves and bonus_moves[0].amount_micro <= 0):
        yield BONUS, f"has given a bonus of {given}, it was created with {format_amount(offered_micro)}"
    elif (
        order.bonus_due_micro
        and not bonus_moves
        and all(move.kind == "credit" for move in state.moves)
        and row.paid_balance_micro != AMOUNT_MICRO_MAX
    ):
        yield BONUS, f"has given no bonus, {format_amount(order.bonus_due_micro)} is due"
    columns = (row.account_id, row.order_id, row.provider, row.origin, row.status, row.reconcile_status)
    values = (
        order.account_id, order.order_id, request.provider, request.origin, statuses.status,
        statuses.reconcile_status,
    )  # fmt: skip
    times = (row.created_at, row.expires_at)
    if columns != values or times != (request.created_at, request.expires_at):
        yield COLUMNS, "has columns that differ from its state"
