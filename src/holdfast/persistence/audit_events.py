"""The audit's rules about events: told once, to who asked for it, and the task says truly what became of it.

Events are kept for thirty days after they are done, so nothing is missed of tasks that ended longer ago than that.
"""

from __future__ import annotations

from holdfast.persistence.audit_rules import Rule

EVENT_RULES: tuple[Rule, ...] = (
    Rule(
        "a task announces its end once, to whoever asked for it",
        "select count(*) from tasks where request ->> 'webhook_url' is not null",
        """
        select t.request_id || ': ' || t.status || ', announced: ' || coalesce(e.kinds, 'nothing')
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
    ),
    Rule(
        "a task says of the word of its results what became of that event",
        "select count(*) from outbox where kind = 'task.assets_ready'",
        """
        select o.event_id || ': ' || o.status || ', the task says ' || o.told from (
            select o.event_id, o.status, coalesce(t.state -> 'hosting' ->> 'assets_ready_event', 'pending') as told
            from outbox o join tasks t on (t.account_id, t.request_id) = (o.account_id, o.request_id)
            where o.kind = 'task.assets_ready'
        ) o
        where o.told <> all(case o.status when 'delivered' then array['sent']
                                          when 'given_up' then array['sent', 'failed']
                                          else array['pending', 'sent', 'failed'] end)
        """,
    ),
)
