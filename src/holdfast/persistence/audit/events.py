"""The audit's rules about events: each is created once, for a task that requested it, and matches the task's state.

Events are retained for thirty days after they are done, so tasks that ended earlier are not checked for one.
"""

from __future__ import annotations

from holdfast.persistence.audit.rules import Rule

EVENT_RULES: tuple[Rule, ...] = (
    Rule(
        "each task that ended has one event for it, if its webhook subscribed to it",
        "select count(*) from tasks where request ->> 'webhook_url' is not null",
        """
        select t.account_id, t.request_id, t.status, e.kinds
        from tasks t left join (
            select account_id, request_id, count(*) as many, string_agg(kind, ' ') as kinds from outbox
            where kind in (select 'task.' || s from unnest(cast(:terminal as text[])) s)
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
        "each task records the outcome of its assets_ready event",
        "select count(*) from outbox where kind = 'task.assets_ready'",
        """
        select o.account_id, o.event_id, o.request_id, o.status, o.recorded from (
            select o.account_id, o.event_id, o.request_id, o.status,
                   coalesce(t.state -> 'hosting' ->> 'assets_ready_event', 'pending') as recorded
            from outbox o join tasks t on (t.account_id, t.request_id) = (o.account_id, o.request_id)
            where o.kind = 'task.assets_ready'
        ) o
        where o.recorded <> all(case o.status when 'delivered' then array['sent']
                                              when 'given_up' then array['sent', 'failed']
                                              else array['pending', 'sent', 'failed'] end)
        """,
        "event {event_id} is {status}, its task {request_id} says {recorded}",
    ),
)
