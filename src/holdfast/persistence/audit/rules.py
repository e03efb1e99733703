"""The audit's rules that are one query each, which finds the rows that break the rule.

A rule's ``breaking`` query returns a row for each difference, with ``account_id`` and the columns that ``words``
names, and no row if there is none. It may use ``:terminal`` (the task statuses that settle a hold) and
``:chain_start`` (the hash before a first operation), and is run on a few accounts at a time.

Events are retained for thirty days after they are done, so tasks that ended earlier are not checked for one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import Connection, TextClause, text
from sqlalchemy.exc import DataError

from holdfast.ledger.credit.operations import CHAIN_START
from holdfast.ledger.tasks.task import TERMINAL
from holdfast.ledger.values import format_amount
from holdfast.persistence.records.unreadable import UnreadableRow

# Which rows a query of the audit sees: those of a few accounts. The queries name tables as if they read all of
# them. Each table is replaced by a common table expression of its name with these accounts' rows alone, which
# PostgreSQL merges into the query, so that its plan goes by the keys.

OWNERS: Mapping[str, str] = {
    "accounts": "id",
    **dict.fromkeys(
        (
            "account_changes", "account_limits", "account_moves", "alerts", "api_keys", "archives", "assets",
            "auto_top_ups", "checkpoints", "coupon_uses", "credit_lots", "file_uses", "files", "group_keys",
            "holds", "key_groups", "operations", "order_payments", "orders", "outbox", "outbox_attempts",
            "payment_events", "postings", "receipts", "sessions", "task_events", "tasks", "usage_entries",
            "webhooks", "usage_totals",
        ),
        "account_id",
    ),
}  # fmt: skip
"""The tables whose rows belong to accounts, with the column that names the account. An index begins with it."""


@cache
def of_accounts(query: str) -> TextClause:
    """Return a query over the accounts in the parameter ``scope``, a list of ids."""
    scoped = [
        f"{table} as not materialized (select * from {table} where {owner} = any(:scope))"
        for table, owner in OWNERS.items()
        if re.search(rf"\b{table}\b", query)
    ]
    return text(f"with {', '.join(scoped)} {query}")


_FOLLOWING = (
    "least("
    + ", ".join(f"(select min({owner}) from {table} where {owner} > {{after}})" for table, owner in OWNERS.items())
    + ")"
)
_NEXT = text(
    f"""
    with recursive found (id, n) as (
        select {_FOLLOWING.format(after="cast(:after as text)")}, 1
        union all
        select {_FOLLOWING.format(after="found.id")}, n + 1 from found where id is not null and n < :most
    )
    select found.id, coalesce(a.operation_count, 0) as operations
    from found left join accounts a using (id) where found.id is not null order by n
    """
)


def next_accounts(rows: Connection, after: str, *, accounts_max: int, operations_max: int) -> dict[str, int]:
    """Return the accounts that follow ``after`` in the order of ids, each with the number of its operations.

    Every id that any table names counts, also one without an account. There are at most ``accounts_max`` accounts,
    and no more than ``operations_max`` operations unless the first account alone has more. None are left if there
    are none.
    """
    found: dict[str, int] = {}
    total = 0
    for row in rows.execute(_NEXT, {"after": after, "most": accounts_max}):
        total += row.operations
        if found and total > operations_max:
            break
        found[row.id] = row.operations
    return found


EXAMPLES_MAX = 10


class BrokenRule(NamedTuple):
    """A rule that an account breaks. ``account_id`` is empty for rows that belong to no account."""

    account_id: str
    rule: str


class Difference(NamedTuple):
    """One row, or a few, that break a rule: what is wrong with them in words."""

    broken: BrokenRule
    what: str


def summary(examples: list[str], total: int) -> str:
    """Return the first few of ``total`` examples in one text."""
    shown = examples[:EXAMPLES_MAX]
    more = f" and {total - len(shown)} more" if total > len(shown) else ""
    return "; ".join(shown) + more


class Rule(NamedTuple):
    """A rule (``name``), which rows break it (``breaking``), and how.

    In ``words``, columns that end in ``_micro`` are shown as amounts.
    """

    name: str
    breaking: str
    words: str


def find_differences(connection: Connection, rule: Rule, scope: Sequence[str]) -> list[tuple[Difference, int]]:
    """Return what breaks a rule in the rows of a few accounts: the first few of each, with the account's total.

    A value that the rule cannot read breaks it too, in the account that has it.
    """
    query = (
        "select * from (select found.*, count(*) over of_account as total, "
        "row_number() over of_account as example_number "
        f"from ({rule.breaking}) found window of_account as (partition by account_id)) numbered "
        f"where example_number <= {EXAMPLES_MAX}"
    )
    try:
        rows = connection.execute(of_accounts(query), {**_parameters(query), "scope": list(scope)})
    except (DataError, UnreadableRow) as fault:
        if len(scope) > 1:
            return [each for account_id in scope for each in find_differences(connection, rule, [account_id])]
        reason = fault.orig if isinstance(fault, DataError) else fault
        what = f"a value cannot be read: {str(reason).splitlines()[0]}"
        return [(Difference(BrokenRule(scope[0], rule.name), what), 1)]
    return [(_difference(rule, row), int(row.total)) for row in rows]


def _parameters(query: str) -> dict[str, Any]:
    parameters: dict[str, Any] = {"terminal": list(TERMINAL), "chain_start": CHAIN_START}
    return {name: value for name, value in parameters.items() if f":{name}" in query}


def _difference(rule: Rule, row: Any) -> Difference:
    columns: Mapping[str, Any] = row._mapping
    shown = {name: _shown(name, value) for name, value in columns.items()}
    return Difference(BrokenRule(columns["account_id"] or "", rule.name), rule.words.format_map(shown))


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "none"
    return format_amount(int(value)) if name.endswith("_micro") else str(value)


_ORPHANS = """
    select account_id, 'operation ' || operation_id as what from operations o
        where not exists (select from accounts a where a.id = o.account_id)
    union all select account_id, 'posting ' || number || '.' || line from postings p
        where not exists (select from operations o where (o.account_id, o.number) = (p.account_id, p.number))
    union all select account_id, 'lot ' || number from credit_lots l
        where not exists (select from operations o where (o.account_id, o.number) = (l.account_id, l.number))
    union all select account_id, 'use of coupon ' || coupon_id from coupon_uses u
        where not exists (select from accounts a where a.id = u.account_id)
    union all select account_id, 'hold ' || hold_id from holds h
        where not exists (select from accounts a where a.id = h.account_id)
    union all select account_id, 'task ' || request_id from tasks t
        where not exists (select from accounts a where a.id = t.account_id)
    union all select account_id, 'payment order ' || order_id from orders r
        where not exists (select from accounts a where a.id = r.account_id)
    union all select account_id, 'payment event ' || event_id from payment_events e
        where order_id is not null
          and not exists (select from orders r where (r.account_id, r.order_id) = (e.account_id, e.order_id))
    union all select account_id, 'receipt ' || number from receipts d
        where not exists (select from orders r where (r.account_id, r.order_id) = (d.account_id, d.order_id))
    union all select account_id, 'automatic top-up' from auto_top_ups t
        where not exists (select from accounts a where a.id = t.account_id)
    union all select account_id, 'API key ' || key_id from api_keys k
        where not exists (select from accounts a where a.id = k.account_id)
    union all select account_id, 'key group ' || group_id from key_groups g
        where not exists (select from accounts a where a.id = g.account_id)
    union all select account_id, 'API key in a group ' || key_id from group_keys m
        where m.group_id is not null
          and not exists (select from key_groups g where (g.account_id, g.group_id) = (m.account_id, m.group_id))
    union all select account_id, 'limit ' || limit_window from account_limits l
        where not exists (select from accounts a where a.id = l.account_id)
    union all select account_id, 'archive ' || archive_id from archives r
        where not exists (select from accounts a where a.id = r.account_id)
    union all select account_id, 'change ' || change_id from account_changes c
        where not exists (select from accounts a where a.id = c.account_id)
    union all select account_id, 'session ' || session_id from sessions s
        where not exists (select from accounts a where a.id = s.account_id)
    union all select account_id, 'usage entry ' || request_id from usage_entries u
        where not exists (select from tasks t where (t.account_id, t.request_id) = (u.account_id, u.request_id))
    union all select account_id, 'task event ' || event_id from task_events e
        where not exists (select from tasks t where (t.account_id, t.request_id) = (e.account_id, e.request_id))
    union all select account_id, 'event ' || event_id from outbox e
        where case when request_id is null
                   then not exists (select from accounts a where a.id = e.account_id)
                   else not exists (select from tasks t
                                    where (t.account_id, t.request_id) = (e.account_id, e.request_id)) end
    union all select account_id, 'webhook ' || webhook_id from webhooks w
        where not exists (select from accounts a where a.id = w.account_id)
    union all select account_id, 'alerts' from alerts l
        where not exists (select from accounts a where a.id = l.account_id)
    union all select account_id, 'attempt ' || event_id || ' ' || number from outbox_attempts d
        where not exists (select from outbox e where (e.account_id, e.event_id) = (d.account_id, d.event_id))
    union all select account_id, 'asset ' || asset_id from assets f
        where not exists (select from tasks t where (t.account_id, t.request_id) = (f.account_id, f.request_id))
    union all select account_id, 'file ' || file_id from files f
        where not exists (select from accounts a where a.id = f.account_id)
    union all select account_id, 'use of file ' || file_id from file_uses u
        where not exists (select from files f where (f.account_id, f.file_id) = (u.account_id, u.file_id))
"""

_IN_WINDOW = """
    u.ts >= l.window_start and u.ts < case l.limit_window
        when 'day' then l.window_start + interval '24 hours'
        when 'week' then l.window_start + interval '168 hours'
        when 'month' then (l.window_start at time zone 'UTC' + interval '1 month') at time zone 'UTC'
        else 'infinity' end
"""


def _sums_of_usage(end_user_by: str) -> str:
    """Return the query that sums ended usage by quarters of an hour, as the totals with this ``end_user_by`` do."""

    def only(name: str, value: str) -> str:
        return value if end_user_by in ("", name) else "''"

    return f"""
        select account_id, '{end_user_by}' as end_user_by, 900 as span_s,
               date_bin('15 minutes', ts, timestamptz '1970-01-01 00:00:00+00') as start_at,
               {only("model", "model")} as model, {only("api_key_id", "coalesce(api_key_id, '')")} as api_key_id,
               {only("status", "status")} as status, {"end_user" if end_user_by else "''"} as end_user,
               count(*) as count, sum(cost_micro) as cost_micro
        from usage_entries where status = any(:terminal) {"and end_user is not null" if end_user_by else ""}
        group by 1, 2, 3, 4, 5, 6, 7, 8
    """


def _sums_of_totals(of_span_s: int, span_s: int) -> str:
    """Return the query that sums totals of one span to those of a longer one."""
    return f"""
        select account_id, end_user_by, {span_s} as span_s,
               date_bin(make_interval(secs => {span_s}), start_at, timestamptz '1970-01-01 00:00:00+00')
                   as start_at,
               model, api_key_id, status, end_user, sum(count) as count, sum(cost_micro) as cost_micro
        from usage_totals where span_s = {of_span_s} group by 1, 2, 3, 4, 5, 6, 7, 8
    """


def _rule_of_totals(name: str, totals: str, sums: Iterable[str]) -> Rule:
    """Return the rule that the totals where ``totals`` is true are ``sums``, which are queries."""
    return Rule(
        name,
        f"""
        select coalesce(s.account_id, t.account_id) as account_id, span_s, start_at,
               concat_ws(', ', nullif(model, ''), nullif(api_key_id, ''), nullif(status, ''), nullif(end_user, ''))
                   as of_what,
               coalesce(t.count, 0) as count, coalesce(t.cost_micro, 0) as cost_micro,
               coalesce(s.count, 0) as summed, coalesce(s.cost_micro, 0) as summed_micro
        from ({" union all ".join(sums)}) s full join (select * from usage_totals where {totals}) t
            using (account_id, end_user_by, span_s, start_at, model, api_key_id, status, end_user)
        where (s.count, s.cost_micro) is distinct from (t.count, t.cost_micro)
        """,
        "the total of {of_what} in the {span_s} s from {start_at} is {count} tasks and {cost_micro}, "
        "the sum is {summed} and {summed_micro}",
    )


RULES: tuple[Rule, ...] = (
    Rule(
        "all postings of each account sum to zero",
        "select account_id, sum(amount_micro) as sum_micro from postings group by account_id"
        " having sum(amount_micro) <> 0",
        "its postings, with those of the platform, sum to {sum_micro}, not to zero",
    ),
    Rule(
        "each account's balance and held total are the sums of its postings",
        """
        select a.id as account_id, a.balance_micro, a.held_micro,
               coalesce(p.balance_micro, 0) as posted_micro, coalesce(p.held_micro, 0) as posted_held_micro
        from accounts a left join (
            select account_id, sum(amount_micro) as balance_micro,
                   sum(amount_micro) filter (where ledger_account = 'held') as held_micro
            from postings where ledger_account in ('available', 'held') group by account_id
        ) p on p.account_id = a.id
        where a.balance_micro <> coalesce(p.balance_micro, 0) or a.held_micro <> coalesce(p.held_micro, 0)
        """,
        "its balance is {balance_micro} with {held_micro} held, "
        "its postings sum to {posted_micro} with {posted_held_micro} held",
    ),
    Rule(
        "each account's totals, operation count and chain head match its newest operation",
        """
        select a.id as account_id, a.operation_count, a.balance_micro, a.held_micro,
               coalesce(n.number, 0) as number, coalesce(n.balance_after_micro, 0) as newest_micro,
               coalesce(n.held_after_micro, 0) as newest_held_micro,
               case when a.chain_head is distinct from coalesce(n.chain_hash, cast(:chain_start as bytea))
                    then 'another hash' else 'the same hash' end as hash
        from accounts a left join lateral (
            select number, balance_after_micro, held_after_micro, chain_hash from operations o
            where o.account_id = a.id order by number desc limit 1
        ) n on true
        where (a.operation_count, a.balance_micro, a.held_micro, a.chain_head) is distinct from
              (coalesce(n.number, 0), coalesce(n.balance_after_micro, 0), coalesce(n.held_after_micro, 0),
               coalesce(n.chain_hash, cast(:chain_start as bytea)))
        """,
        "it is at operation {operation_count} with a balance of {balance_micro} and {held_micro} held; its newest "
        "is operation {number} with a balance of {newest_micro}, {newest_held_micro} held and {hash}",
    ),
    Rule(
        "each account's operation count is the number of its operations",
        """
        select a.id as account_id, a.operation_count, coalesce(n.many, 0) as many
        from accounts a
        left join (select account_id, count(*) as many from operations group by account_id) n
            on n.account_id = a.id
        where a.operation_count <> coalesce(n.many, 0)
        """,
        "its operation count is {operation_count}, it has {many} operations",
    ),
    Rule(
        "each checkpoint matches the operation it names",
        """
        select c.account_id, c.number
        from checkpoints c left join operations o using (account_id, number)
        where (c.balance_micro, c.held_micro, c.chain_head)
              is distinct from (o.balance_after_micro, o.held_after_micro, o.chain_hash)
        """,
        "operation {number} is not as it was at its checkpoint",
    ),
    Rule(
        "each hold was opened by exactly one operation of its amount",
        """
        select coalesce(h.account_id, o.account_id) as account_id, coalesce(h.hold_id, o.hold_id) as hold_id,
               h.amount_micro, h.opened_number, h.reference, o.number, o.amount_micro as opening_micro,
               o.reference as opening_reference
        from holds h full join (select * from operations where kind = 'hold') o
            on (o.account_id, o.hold_id) = (h.account_id, h.hold_id)
        where (h.opened_number, h.amount_micro, h.reference)
              is distinct from (o.number, o.amount_micro, o.reference)
        """,
        "hold {hold_id} of {amount_micro} for {reference} says that operation {opened_number} opened it; "
        "the journal has operation {number} of {opening_micro} for {opening_reference}",
    ),
    Rule(
        "each hold has at most one outcome, and its settled number is that outcome's",
        """
        select coalesce(h.account_id, o.account_id) as account_id, coalesce(h.hold_id, o.hold_id) as hold_id,
               coalesce(o.many, 0) as many, o.numbers, h.settled_number
        from holds h full join (
            select account_id, hold_id, min(number) as number, count(*) as many,
                   string_agg(number::text, ' and ' order by number) as numbers
            from operations where kind in ('capture', 'release') group by account_id, hold_id
        ) o on (o.account_id, o.hold_id) = (h.account_id, h.hold_id)
        where h.hold_id is null or coalesce(o.many, 0) > 1 or h.settled_number is distinct from o.number
              or h.settled_number <= h.opened_number
        """,
        "hold {hold_id} says that it was settled by operation {settled_number}, "
        "the operations that settle it are {numbers}",
    ),
    Rule(
        "no capture exceeds its hold, and each release returns the whole hold",
        """
        select o.account_id, o.number, o.kind, o.amount_micro, h.hold_id, h.amount_micro as hold_micro
        from operations o join holds h on (h.account_id, h.hold_id) = (o.account_id, o.hold_id)
        where (o.kind = 'capture' and o.amount_micro > h.amount_micro)
           or (o.kind = 'release' and o.amount_micro <> h.amount_micro)
        """,
        "operation {number} is a {kind} of {amount_micro} on hold {hold_id} of {hold_micro}",
    ),
    Rule(
        "each account's held total is the sum of its open holds",
        """
        select a.id as account_id, a.held_micro, coalesce(h.open_micro, 0) as open_micro
        from accounts a left join (
            select account_id, sum(amount_micro) as open_micro from holds
            where settled_number is null group by account_id
        ) h on h.account_id = a.id
        where a.held_micro <> coalesce(h.open_micro, 0)
        """,
        "{held_micro} are held, its open holds sum to {open_micro}",
    ),
    Rule(
        "each adjustment and each operator's grant was made by one action, on its account",
        """
        select o.account_id, o.number, o.reference, coalesce(a.account_id, 'no account') as acted_on, o.many
        from (
            select account_id, number, reference, count(*) over (partition by reference) as many
            from operations o where not starts_with(reference, 'ord_') and (kind = 'adjustment' or (kind = 'grant'
                and not exists (select from credit_lots l
                    where (l.account_id, l.number) = (o.account_id, o.number) and l.source = 'coupon')))
        ) o left join operator_actions a on a.action_id = o.reference
        where a.account_id is distinct from o.account_id or o.many > 1
        """,
        "operation {number} names the action {reference}, which was on {acted_on} and made {many} operations",
    ),
    Rule(
        "each account's usage cost is the amount captured",
        """
        select coalesce(u.account_id, c.account_id) as account_id, coalesce(u.cost_micro, 0) as cost_micro,
               coalesce(c.captured_micro, 0) as captured_micro
        from (select account_id, sum(cost_micro) as cost_micro from usage_entries group by account_id) u
        full join (select account_id, sum(amount_micro) as captured_micro from operations
                   where kind = 'capture' group by account_id) c on c.account_id = u.account_id
        where coalesce(u.cost_micro, 0) <> coalesce(c.captured_micro, 0)
        """,
        "its usage costs {cost_micro}, its captures sum to {captured_micro}",
    ),
    Rule(
        "each usage entry names the operation that settled its request, and costs what it captured",
        """
        select coalesce(u.account_id, o.account_id) as account_id,
               coalesce(u.request_id, o.reference) as request_id, u.operation_id as named, u.cost_micro,
               o.number, o.operation_id, o.cost_micro as captured_micro
        from usage_entries u full join (
            select account_id, reference, number, operation_id,
                   case kind when 'capture' then amount_micro else 0 end as cost_micro
            from operations where kind in ('capture', 'release')
        ) o on (o.account_id, o.reference) = (u.account_id, u.request_id)
        where u.request_id is null or u.operation_id is distinct from o.operation_id
           or u.cost_micro <> coalesce(o.cost_micro, 0)
        """,
        "the usage of {request_id} names operation {named} and costs {cost_micro}; "
        "the journal has operation {number} ({operation_id}), which captured {captured_micro}",
    ),
    Rule(
        "what was captured of each limit is the cost of the usage in its window",
        f"""
        select l.account_id, 'API key ' || l.key_id as whose, l.limit_window, l.captured_micro,
               coalesce(sum(u.cost_micro), 0) as used_micro
        from api_keys l left join usage_entries u
            on (u.account_id, u.api_key_id) = (l.account_id, l.key_id) and {_IN_WINDOW}
        where l.limit_window is not null and l.revoked_at is null
        group by l.account_id, l.key_id, l.limit_window, l.captured_micro
        having l.captured_micro <> coalesce(sum(u.cost_micro), 0)
        union all
        select l.account_id, 'the account', l.limit_window, l.captured_micro, coalesce(sum(u.cost_micro), 0)
        from account_limits l left join usage_entries u on u.account_id = l.account_id and {_IN_WINDOW}
        where l.limit_micro is not null or l.ceiling_micro is not null
        group by l.account_id, l.limit_window, l.captured_micro
        having l.captured_micro <> coalesce(sum(u.cost_micro), 0)
        """,
        "{captured_micro} were captured of the limit of {whose} ({limit_window}), "
        "the usage in its window costs {used_micro}",
    ),
    Rule(
        "each task has exactly one hold, and each hold belongs to a task",
        """
        select coalesce(t.account_id, h.account_id) as account_id, t.request_id,
               t.request ->> 'hold_id' as named, h.hold_id, h.reference
        from tasks t full join holds h
            on (h.account_id, h.hold_id) = (t.account_id, t.request ->> 'hold_id')
        where h.reference is distinct from t.request_id
        """,
        "task {request_id} names hold {named}; hold {hold_id} is for {reference}",
    ),
    Rule(
        "a task has ended if and only if its hold is settled, and succeeded if and only if it was captured",
        """
        select t.account_id, t.request_id, t.status, h.hold_id,
               coalesce('was settled by operation ' || h.settled_number, 'is open')
                   || coalesce(', a ' || o.kind, '')
                   as outcome
        from tasks t
        join holds h
            on (h.account_id, h.reference, h.hold_id) = (t.account_id, t.request_id, t.request ->> 'hold_id')
        left join operations o on (o.account_id, o.number) = (h.account_id, h.settled_number)
        where (t.status = any(:terminal)) <> (h.settled_number is not null)
           or (t.status = 'succeeded') <> (coalesce(o.kind, '') = 'capture')
        """,
        "task {request_id} is {status}, its hold {hold_id} {outcome}",
    ),
    Rule(
        "each task has one usage entry with its status and model",
        """
        select t.account_id, t.request_id, t.status, t.model, u.status as usage_status, u.model as usage_model
        from tasks t left join usage_entries u on (u.account_id, u.request_id) = (t.account_id, t.request_id)
        where (u.status, u.model) is distinct from (t.status, t.model)
        """,
        "task {request_id} of {model} is {status}, its usage entry says {usage_status} of {usage_model}",
    ),
    _rule_of_totals(
        "each account's usage totals are the sums of its ended usage",
        "span_s = 900 and end_user_by = ''",
        [_sums_of_usage("")],
    ),
    _rule_of_totals(
        "each end user's usage totals are the sums of their ended usage",
        "span_s = 900 and end_user_by <> ''",
        [_sums_of_usage(name) for name in ("model", "api_key_id", "status")],
    ),
    _rule_of_totals(
        "usage totals by hour and by day are the sums of those by quarter of an hour",
        "span_s <> 900",
        [_sums_of_totals(900, 3_600), _sums_of_totals(3_600, 86_400)],
    ),
    Rule(
        "each stored result's and file's content is known and not marked for deletion",
        """
        select f.account_id, f.id, case when c.sha256 is null then 'unknown' else 'marked for deletion' end as state
        from (
            select account_id, 'asset ' || asset_id as id, sha256, content_type from assets
            union all select account_id, 'file ' || file_id, sha256, content_type from files
        ) f left join contents c on (c.sha256, c.content_type) = (f.sha256, f.content_type)
        where c.sha256 is null or c.marked_at is not null
        """,
        "the content of {id} is {state}",
    ),
    Rule(
        "each task that ended has one event for it, if its webhook subscribed to it",
        """
        select t.account_id, t.request_id, t.status, e.kinds
        from tasks t left join (
            select account_id, request_id, count(*) as many, string_agg(kind, ' ') as kinds from outbox
            where kind in (select 'task.' || s from unnest(cast(:terminal as text[])) s) and webhook_id is null
            group by account_id, request_id
        ) e on (e.account_id, e.request_id) = (t.account_id, t.request_id)
        where e.many > 1 or e.kinds <> 'task.' || t.status
           or (e.many > 0 and t.request ->> 'webhook_url' is null)
           or (e.many is null and t.status = any(:terminal)
               and cast(t.request -> 'webhook_events' as jsonb) @> to_jsonb('task.' || t.status)
               and cast(coalesce(t.state ->> 'completed_at', t.state ->> 'canceled_at') as timestamptz)
                   > now() - interval '29 days')
        """,
        "task {request_id} is {status}, its owner was announced: {kinds}",
    ),
    Rule(
        "each webhook of an account gets one event for the end of a task",
        """
        select t.account_id, t.request_id, t.status, e.webhook_id, e.kinds
        from tasks t join (
            select account_id, request_id, webhook_id, string_agg(kind, ' ') as kinds from outbox
            where kind in (select 'task.' || s from unnest(cast(:terminal as text[])) s)
              and webhook_id is not null
            group by account_id, request_id, webhook_id
        ) e on (e.account_id, e.request_id) = (t.account_id, t.request_id)
        where e.kinds <> 'task.' || t.status
        """,
        "task {request_id} is {status}, the webhook {webhook_id} gets: {kinds}",
    ),
    Rule(
        "an alert about the balance is announced exactly while less is available than it says",
        """
        select * from (
            select a.id as account_id, a.balance_micro - a.held_micro as available_micro,
                   cast(l.alerts ->> 'balance_below_micro' as bigint) as alert_micro,
                   coalesce(l.alerts -> 'announced' ->> 'balance', 'no') as announced
            from accounts a join alerts l on l.account_id = a.id
        ) s
        where (announced <> 'no') <> coalesce(available_micro < alert_micro, false)
        """,
        "{available_micro} is available, the alert is about {alert_micro}, announced: {announced}",
    ),
    Rule(
        "each task records the outcome of its assets_ready event",
        """
        select o.account_id, o.event_id, o.request_id, o.status, o.recorded from (
            select o.account_id, o.event_id, o.request_id, o.status,
                   coalesce(t.state -> 'hosting' ->> 'assets_ready_event', 'pending') as recorded
            from outbox o join tasks t on (t.account_id, t.request_id) = (o.account_id, o.request_id)
            where o.kind = 'task.assets_ready' and o.webhook_id is null
        ) o
        where o.recorded <> all(case o.status when 'delivered' then array['sent']
                                              when 'given_up' then array['sent', 'failed']
                                              else array['pending', 'sent', 'failed'] end)
        """,
        "event {event_id} is {status}, its task {request_id} says {recorded}",
    ),
    Rule(
        "every row belongs to a row that exists",
        _ORPHANS,
        "{what} belongs to a row that does not exist",
    ),
)
