"""The audit's rules that are one query each, which finds the rows that break the rule.

A rule's ``breaking`` query returns one text column naming each violation, and no row if there is none. It may use
``:terminal`` (the task statuses that settle a hold) and ``:chain_start`` (the hash before a first operation).
"""

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    """A rule (``name``), how many rows it covers (``counted``) and which of them break it (``breaking``)."""

    name: str
    counted: str
    breaking: str


_ORPHANS = """
    select 'operation ' || operation_id from operations o
        where not exists (select from accounts a where a.id = o.account_id)
    union all select 'posting ' || account_id || ' ' || number || '.' || line from postings p
        where not exists (select from operations o where (o.account_id, o.number) = (p.account_id, p.number))
    union all select 'hold ' || hold_id from holds h
        where not exists (select from accounts a where a.id = h.account_id)
    union all select 'task ' || request_id from tasks t
        where not exists (select from accounts a where a.id = t.account_id)
    union all select 'payment order ' || order_id from orders r
        where not exists (select from accounts a where a.id = r.account_id)
    union all select 'payment event ' || event_id from payment_events e
        where order_id is not null
          and not exists (select from orders r where (r.account_id, r.order_id) = (e.account_id, e.order_id))
    union all select 'API key ' || key_id from api_keys k
        where not exists (select from accounts a where a.id = k.account_id)
    union all select 'session ' || session_id from sessions s
        where not exists (select from accounts a where a.id = s.account_id)
    union all select 'usage entry ' || request_id from usage_entries u
        where not exists (select from tasks t where (t.account_id, t.request_id) = (u.account_id, u.request_id))
    union all select 'task event ' || event_id from task_events e
        where not exists (select from tasks t where (t.account_id, t.request_id) = (e.account_id, e.request_id))
    union all select 'event ' || event_id from outbox e
        where not exists (select from tasks t where (t.account_id, t.request_id) = (e.account_id, e.request_id))
    union all select 'attempt ' || event_id || ' ' || number from outbox_attempts d
        where not exists (select from outbox e where (e.account_id, e.event_id) = (d.account_id, d.event_id))
    union all select 'asset ' || asset_id from assets f
        where not exists (select from tasks t where (t.account_id, t.request_id) = (f.account_id, f.request_id))
"""

RULES: tuple[Rule, ...] = (
    Rule(
        "all postings sum to zero",
        "select count(*) from postings",
        "select 'they sum to ' || sum(amount_micro) || ' micro-credits' from postings"
        " having coalesce(sum(amount_micro), 0) <> 0",
    ),
    Rule(
        "each account's balance and held total are the sums of its postings",
        "select count(*) from accounts",
        """
        select a.id || ': balance ' || a.balance_micro || ', held ' || a.held_micro || ', postings say '
               || coalesce(p.balance_micro, 0) || ' and ' || coalesce(p.held_micro, 0)
        from accounts a left join (
            select account_id, sum(amount_micro) as balance_micro,
                   sum(amount_micro) filter (where ledger_account = 'held') as held_micro
            from postings where ledger_account in ('available', 'held') group by account_id
        ) p on p.account_id = a.id
        where a.balance_micro <> coalesce(p.balance_micro, 0) or a.held_micro <> coalesce(p.held_micro, 0)
        """,
    ),
    Rule(
        "each account's totals, operation count and chain head match its newest operation",
        "select count(*) from accounts",
        """
        select a.id || ': operation count ' || a.operation_count || ', newest operation '
               || coalesce(n.number, 0)
        from accounts a left join lateral (
            select number, balance_after_micro, held_after_micro, chain_hash from operations o
            where o.account_id = a.id order by number desc limit 1
        ) n on true
        where (a.operation_count, a.balance_micro, a.held_micro, a.chain_head) is distinct from
              (coalesce(n.number, 0), coalesce(n.balance_after_micro, 0), coalesce(n.held_after_micro, 0),
               coalesce(n.chain_hash, cast(:chain_start as bytea)))
        """,
    ),
    Rule(
        "each account's operation count is the number of its operations",
        "select count(*) from accounts",
        """
        select a.id || ': operation count ' || a.operation_count || ', operations ' || coalesce(n.many, 0)
        from accounts a
        left join (select account_id, count(*) as many from operations group by account_id) n
            on n.account_id = a.id
        where a.operation_count <> coalesce(n.many, 0)
        """,
    ),
    Rule(
        "each checkpoint matches the operation it names",
        "select count(*) from checkpoints",
        """
        select c.account_id || ': the checkpoint at operation ' || c.number || ' does not match it'
        from checkpoints c left join operations o using (account_id, number)
        where (c.balance_micro, c.held_micro, c.chain_head)
              is distinct from (o.balance_after_micro, o.held_after_micro, o.chain_hash)
        """,
    ),
    Rule(
        "each hold was opened by exactly one operation of its amount",
        "select count(*) from holds",
        """
        select coalesce(h.hold_id, o.hold_id, o.operation_id) || ': the hold and its opening do not match'
        from holds h full join (select * from operations where kind = 'hold') o
            on (o.account_id, o.hold_id) = (h.account_id, h.hold_id)
        where (h.opened_number, h.amount_micro, h.reference)
              is distinct from (o.number, o.amount_micro, o.reference)
        """,
    ),
    Rule(
        "each hold has at most one outcome, and its settled number is that outcome's",
        "select count(*) from holds",
        """
        select coalesce(h.hold_id, o.hold_id, o.operation_ids) || ': '
               || coalesce(o.many, 0) || ' outcomes, settled number ' || coalesce(h.settled_number::text, 'none')
        from holds h full join (
            select account_id, hold_id, min(number) as number, count(*) as many,
                   string_agg(operation_id, ' ') as operation_ids
            from operations where kind in ('capture', 'release') group by account_id, hold_id
        ) o on (o.account_id, o.hold_id) = (h.account_id, h.hold_id)
        where h.hold_id is null or coalesce(o.many, 0) > 1 or h.settled_number is distinct from o.number
              or h.settled_number <= h.opened_number
        """,
    ),
    Rule(
        "no capture exceeds its hold, and each release returns the whole hold",
        "select count(*) from operations where kind in ('capture', 'release')",
        """
        select o.operation_id || ': a ' || o.kind || ' of ' || o.amount_micro || ' on a hold of ' || h.amount_micro
        from operations o join holds h on (h.account_id, h.hold_id) = (o.account_id, o.hold_id)
        where (o.kind = 'capture' and o.amount_micro > h.amount_micro)
           or (o.kind = 'release' and o.amount_micro <> h.amount_micro)
        """,
    ),
    Rule(
        "each account's held total is the sum of its open holds",
        "select count(*) from holds where settled_number is null",
        """
        select a.id || ': held ' || a.held_micro || ', open holds ' || coalesce(h.open_micro, 0)
        from accounts a left join (
            select account_id, sum(amount_micro) as open_micro from holds
            where settled_number is null group by account_id
        ) h on h.account_id = a.id
        where a.held_micro <> coalesce(h.open_micro, 0)
        """,
    ),
    Rule(
        "each account's usage cost is the amount captured",
        "select count(*) from usage_entries",
        """
        select coalesce(u.account_id, c.account_id) || ': usage ' || coalesce(u.cost_micro, 0)
               || ', captured ' || coalesce(c.captured_micro, 0)
        from (select account_id, sum(cost_micro) as cost_micro from usage_entries group by account_id) u
        full join (select account_id, sum(amount_micro) as captured_micro from operations
                   where kind = 'capture' group by account_id) c on c.account_id = u.account_id
        where coalesce(u.cost_micro, 0) <> coalesce(c.captured_micro, 0)
        """,
    ),
    Rule(
        "each usage entry names the operation that settled its request, and costs what it captured",
        "select count(*) from usage_entries",
        """
        select coalesce(u.request_id, o.reference) || ': usage says ' || coalesce(u.operation_id, 'no operation')
               || ' and ' || coalesce(u.cost_micro, 0) || ', the journal '
               || coalesce(o.operation_id, 'no operation') || ' and ' || coalesce(o.cost_micro, 0)
        from usage_entries u full join (
            select account_id, reference, operation_id,
                   case kind when 'capture' then amount_micro else 0 end as cost_micro
            from operations where kind in ('capture', 'release')
        ) o on (o.account_id, o.reference) = (u.account_id, u.request_id)
        where u.request_id is null or u.operation_id is distinct from o.operation_id
           or u.cost_micro <> coalesce(o.cost_micro, 0)
        """,
    ),
    Rule(
        "each task has exactly one hold, and each hold belongs to a task",
        "select count(*) from tasks",
        """
        select coalesce(t.request_id, h.hold_id) || ': task and hold do not match'
        from tasks t full join holds h
            on (h.account_id, h.hold_id) = (t.account_id, t.request ->> 'hold_id')
        where h.reference is distinct from t.request_id
        """,
    ),
    Rule(
        "a task has ended if and only if its hold is settled, and succeeded if and only if it was captured",
        "select count(*) from tasks",
        """
        select t.request_id || ': ' || t.status || ' with ' || coalesce(o.kind, 'an open hold')
        from tasks t
        join holds h on (h.account_id, h.hold_id) = (t.account_id, t.request ->> 'hold_id')
        left join operations o on (o.account_id, o.number) = (h.account_id, h.settled_number)
        where (t.status = any(:terminal)) <> (h.settled_number is not null)
           or (t.status = 'succeeded') <> (coalesce(o.kind, '') = 'capture')
        """,
    ),
    Rule(
        "each task has one usage entry with its status and model",
        "select count(*) from tasks",
        """
        select t.request_id || ': task ' || t.status || ', usage ' || coalesce(u.status, 'missing')
        from tasks t left join usage_entries u on (u.account_id, u.request_id) = (t.account_id, t.request_id)
        where (u.status, u.model) is distinct from (t.status, t.model)
        """,
    ),
    Rule(
        "each stored result's content is known and not marked for deletion",
        "select count(*) from assets",
        """
        select f.asset_id || ': its content is '
               || case when c.sha256 is null then 'unknown' else 'marked for deletion' end
        from assets f left join contents c on (c.sha256, c.content_type) = (f.sha256, f.content_type)
        where c.sha256 is null or c.doomed_at is not null
        """,
    ),
    Rule("every row belongs to a row that exists", "select count(*) from accounts", _ORPHANS),
)
