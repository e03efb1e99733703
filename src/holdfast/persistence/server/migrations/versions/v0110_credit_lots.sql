-- Credit in lots, with limits, alerts, webhooks, coupons, automatic top-up and totals of usage.
-- Tables and columns are explained in holdfast.persistence.records.tables.

-- Tables are rewritten and filled below, which takes as long as they are large.
set local statement_timeout = 0;

create table account_limits (
    account_id text not null,
    limit_window text not null,
    limit_micro bigint,
    ceiling_micro bigint,
    window_start timestamptz not null,
    captured_micro bigint not null,
    constraint pk_account_limits primary key (account_id, limit_window)
);

create table alerts (
    account_id text not null,
    alerts json not null,
    constraint pk_alerts primary key (account_id)
);

create table auto_top_ups (
    account_id text not null,
    open_order_id text,
    wake_at timestamptz,
    state json not null,
    constraint pk_auto_top_ups primary key (account_id)
);
create index ix_auto_top_ups_due on auto_top_ups (wake_at) where wake_at is not null;

create table coupon_tries (
    account_id text not null,
    since timestamptz not null,
    wrong integer not null,
    constraint pk_coupon_tries primary key (account_id)
);

create table coupon_uses (
    account_id text not null,
    coupon_id text not null,
    claim_id text not null,
    amount_micro bigint not null,
    claimed_at timestamptz not null,
    granted_at timestamptz,
    constraint pk_coupon_uses primary key (account_id, coupon_id)
);
create index ix_coupon_uses_claimed_at on coupon_uses (claimed_at) where granted_at is null;

create table coupons (
    coupon_id text not null,
    code text not null,
    amount_micro bigint not null,
    uses_max bigint not null,
    credit_days bigint,
    redeem_until timestamptz,
    created_at timestamptz not null,
    uses bigint not null,
    disabled_at timestamptz,
    constraint pk_coupons primary key (coupon_id)
);
create index ix_coupons_created_at on coupons (created_at, coupon_id);
create unique index uq_coupons_code on coupons (code);

create table credit_lots (
    account_id text not null,
    number bigint not null,
    kind text not null,
    source text not null,
    reference text not null,
    amount_micro bigint not null,
    created_at timestamptz not null,
    expires_at timestamptz,
    closed_number bigint,
    announced_days integer,
    constraint pk_credit_lots primary key (account_id, number)
);
create index ix_credit_lots_expires_at on credit_lots (expires_at)
    where closed_number is null and expires_at is not null;
create index ix_credit_lots_open on credit_lots (account_id) where closed_number is null;
create unique index uq_credit_lots_claim on credit_lots (account_id, reference) where source = 'coupon';

create table usage_totals (
    account_id text not null,
    end_user_by text not null,
    span_s integer not null,
    start_at timestamptz not null,
    model text not null,
    api_key_id text not null,
    status text not null,
    end_user text not null,
    count bigint not null,
    cost_micro bigint not null,
    constraint pk_usage_totals
        primary key (account_id, end_user_by, span_s, start_at, model, api_key_id, status, end_user)
) with (fillfactor = 80);

create table webhooks (
    account_id text not null,
    webhook_id text not null,
    url text not null,
    events text[] not null,
    enabled boolean not null,
    created_at timestamptz not null,
    updated_at timestamptz not null,
    is_silent boolean not null default true,
    constraint pk_webhooks primary key (account_id, webhook_id)
);
create index ix_webhooks_webhook_id on webhooks (webhook_id);

alter table api_keys
    add expires_at timestamptz,
    add is_paused boolean not null default false,
    add models text[] not null default '{}',
    add limit_micro bigint,
    add limit_window text,
    add window_start timestamptz not null default '1970-01-01 00:00:00+00',
    add captured_micro bigint not null default 0;
alter table api_keys
    alter is_paused drop default,
    alter models drop default,
    alter window_start drop default,
    alter captured_micro drop default;

alter table orders add origin text not null default 'customer';
alter table orders alter origin drop default;

alter table contents rename claimed_at to claimed_until;
update contents set claimed_until = claimed_until + interval '3 hours';

alter table silent_receivers rename account_id to receiver;

drop index ix_outbox_pending;
alter table outbox
    alter request_id drop not null,
    add webhook_id text,
    add receiver text;
update outbox set receiver = account_id;
alter table outbox alter receiver set not null;
create index ix_outbox_pending on outbox (receiver, due_at) where due_at is not null;
create index ix_outbox_webhook on outbox (account_id, webhook_id, created_at, event_id)
    where webhook_id is not null;

alter table usage_entries add end_user text;
update usage_entries u set end_user = t.request -> 'metadata' ->> 'end_user'
from tasks t
where (t.account_id, t.request_id) = (u.account_id, u.request_id)
    and t.request -> 'metadata' ->> 'end_user' <> '';

-- Each task that has ended is counted as a task that ends from now on is.
insert into usage_totals
select u.account_id, e.end_user_by, s.span_s,
    date_bin(make_interval(secs => s.span_s), u.ts, timestamptz '1970-01-01 00:00:00+00'),
    case when e.end_user_by in ('', 'model') then u.model else '' end,
    case when e.end_user_by in ('', 'api_key_id') then coalesce(u.api_key_id, '') else '' end,
    case when e.end_user_by in ('', 'status') then u.status else '' end,
    case when e.end_user_by = '' then '' else u.end_user end,
    count(*), sum(u.cost_micro)
from usage_entries u
cross join unnest(array[86400, 3600, 900]) s (span_s)
cross join lateral unnest(
    case when u.end_user is null then array[''] else array['', 'model', 'api_key_id', 'status'] end
) e (end_user_by)
where u.status in ('succeeded', 'failed', 'canceled')
group by 1, 2, 3, 4, 5, 6, 7, 8;

alter table postings
    alter line type integer,
    add lot bigint;
alter table accounts add lots text;

-- A process of an earlier release that still runs writes no batch any more: each of its batches names this column.
alter table journal_batches rename units to unit_count;

-- What each account has becomes one lot of paid credit that never expires, by an operation of kind 'opening_balance',
-- which moves it there from no lot. What an overdrawn account owes stays in no lot. An account that has nothing gets
-- an operation of zero if it has any others: those before its opening balance are known to have moved no lots.
with openings as materialized (
    select id as account_id, operation_count + 1 as number,
        'op_' || lpad(to_hex(floor(extract(epoch from now()) * 1000)::bigint), 12, '0') || '7'
            || substr(replace(gen_random_uuid()::text, '-', ''), 14) as operation_id,
        greatest(balance_micro - held_micro, 0) as free_micro, held_micro,
        greatest(balance_micro, held_micro) as amount_micro, balance_micro, chain_head,
        -- Service time, in whole seconds, which the floating-point time that is hashed has exactly.
        date_trunc('second', now() + make_interval(secs => 1 + coalesce((select ahead_s from service_clock), 0))) as at
    from accounts where operation_count > 0
),
new_postings as materialized (
    select account_id, number, row_number() over (partition by account_id order by p.line)::integer - 1 as line,
        p.ledger_account, p.amount_micro, p.lot
    from openings cross join lateral (values
        (0, 'available', -free_micro, null),
        (1, 'available', free_micro, number),
        (2, 'held', -held_micro, null),
        (3, 'held', held_micro, number)
    ) p (line, ledger_account, amount_micro, lot)
    where p.amount_micro <> 0
),
posted as (
    insert into postings (account_id, number, line, ledger_account, amount_micro, lot)
    select account_id, number, line, ledger_account, amount_micro, lot from new_postings
),
opened as (
    insert into credit_lots
        (account_id, number, kind, source, reference, amount_micro, created_at, closed_number)
    select account_id, number, 'paid', 'opening_balance', operation_id, amount_micro, at,
        case when amount_micro = 0 then number end
    from openings
),
-- The hash is that of holdfast.ledger.credit.operations.Operation.hash_after: no value needs an escape in JSON.
operated as (
    insert into operations (operation_id, account_id, number, kind, amount_micro, balance_after_micro,
        held_after_micro, reference, reason, at, chain_hash)
    select operation_id, account_id, number, 'opening_balance', amount_micro, balance_micro,
        held_micro, operation_id, 'credit from before lots', at,
        sha256(chain_head || convert_to(
            '["' || account_id || '",' || number || ',"' || operation_id || '","opening_balance",' || amount_micro
            || ',[' || coalesce(p.encoded, '') || '],' || balance_micro || ',' || held_micro || ',null,"'
            || operation_id || '","credit from before lots",' || extract(epoch from at)::bigint * 1000
            || ',["paid","opening_balance",null]]', 'UTF8'))
    from openings left join (
        select account_id, string_agg(
            '["' || ledger_account || '",' || amount_micro || coalesce(',' || lot, '') || ']', ',' order by line
        ) as encoded
        from new_postings group by account_id
    ) p using (account_id)
    returning account_id, number, chain_hash
)
update accounts a set version = a.version + 1, operation_count = o.number, chain_head = o.chain_hash
from operated o where a.id = o.account_id;
