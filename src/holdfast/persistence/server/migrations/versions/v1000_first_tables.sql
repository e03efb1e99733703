-- The tables of the first release, and the triggers that protect some of them. A test compares them with
-- holdfast.persistence.records.tables, where columns and indexes are explained.

create table account_limits (
    account_id text not null,
    limit_window text not null,
    limit_micro bigint,
    ceiling_micro bigint,
    window_start timestamptz not null,
    captured_micro bigint not null,
    constraint pk_account_limits primary key (account_id, limit_window)
);

create table accounts (
    id text not null,
    email text not null,
    role text not null,
    brand_id text not null,
    created_at timestamptz not null,
    disabled_at timestamptz,
    version bigint not null,
    operation_count bigint not null,
    balance_micro bigint not null,
    held_micro bigint not null,
    chain_head bytea not null,
    lots text,
    constraint pk_accounts primary key (id)
) with (fillfactor = 60);
create unique index uq_accounts_email on accounts (email text_pattern_ops);

create table alerts (
    account_id text not null,
    alerts json not null,
    constraint pk_alerts primary key (account_id)
);

create table api_keys (
    account_id text not null,
    key_id text not null,
    prefix text not null,
    created_at timestamptz not null,
    last_used_at timestamptz,
    revoked_at timestamptz,
    limit_micro bigint,
    limit_window text,
    window_start timestamptz not null,
    captured_micro bigint not null,
    name text not null,
    scopes text[] not null,
    models text[] not null,
    expires_at timestamptz,
    is_paused boolean not null,
    secret_sha256 bytea not null,
    constraint pk_api_keys primary key (account_id, key_id)
);
create index ix_api_keys_prefix on api_keys (prefix);
create index ix_api_keys_revoked_at on api_keys (revoked_at) where revoked_at is not null;
create unique index uq_api_keys_secret_sha256 on api_keys (secret_sha256);

create table assets (
    account_id text not null,
    request_id text not null,
    position smallint not null,
    asset_id text not null,
    sha256 text not null,
    bytes bigint not null,
    content_type text not null,
    created_at timestamptz not null,
    expires_at timestamptz not null,
    constraint pk_assets primary key (account_id, request_id, position)
);
create index ix_assets_expires_at on assets (expires_at);
create index ix_assets_sha256 on assets (sha256);
create unique index uq_assets_asset_id on assets (asset_id);

create table audit_differences (
    account_id text not null,
    rule text not null,
    what text not null,
    found_at timestamptz not null,
    seen_at timestamptz not null,
    constraint pk_audit_differences primary key (account_id, rule)
);

create table audit_progress (
    id smallint not null,
    begun_at timestamptz not null,
    written_at timestamptz not null,
    passes bigint not null,
    verified_up_to timestamptz,
    after text not null,
    accounts_total bigint not null,
    accounts_done bigint not null,
    operations_done bigint not null,
    skipped bigint not null,
    newest_operation_id text,
    newest_operation_at timestamptz,
    operations_per_s double precision not null,
    constraint pk_audit_progress primary key (id)
);

create table auto_top_ups (
    account_id text not null,
    open_order_id text,
    wake_at timestamptz,
    off_at timestamptz,
    state json not null,
    constraint pk_auto_top_ups primary key (account_id)
);
create index ix_auto_top_ups_due on auto_top_ups (wake_at) where wake_at is not null;
create index ix_auto_top_ups_off_at on auto_top_ups (off_at, account_id) where off_at is not null;

create table check_callbacks (
    callback_id text not null,
    check_id text not null,
    at timestamptz not null,
    refused text,
    update bytea,
    constraint pk_check_callbacks primary key (callback_id)
);
create index ix_check_callbacks_at on check_callbacks (at);
create index ix_check_callbacks_check on check_callbacks (check_id, at);

create table checkpoints (
    account_id text not null,
    number bigint not null,
    balance_micro bigint not null,
    held_micro bigint not null,
    chain_head bytea not null,
    at timestamptz not null,
    constraint pk_checkpoints primary key (account_id, number)
);

create table contents (
    sha256 text not null,
    content_type text not null,
    claimed_until timestamptz not null,
    marked_at timestamptz,
    constraint pk_contents primary key (sha256, content_type)
);

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
    code_sha256 bytea not null,
    code_prefix text not null,
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
create unique index uq_coupons_code on coupons (code_sha256);

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

create table file_uses (
    account_id text not null,
    file_id text not null,
    hold_id text not null,
    claimed_at timestamptz not null,
    constraint pk_file_uses primary key (account_id, file_id, hold_id)
);

create table files (
    account_id text not null,
    file_id text not null,
    filename text not null,
    content_type text not null,
    bytes bigint not null,
    sha256 text not null,
    created_at timestamptz not null,
    expires_at timestamptz not null,
    constraint pk_files primary key (account_id, created_at, file_id)
);
create index ix_files_expires_at on files (expires_at, file_id);
create index ix_files_sha256 on files (sha256);
create unique index uq_files_file_id on files (file_id);

create table holds (
    account_id text not null,
    hold_id text not null,
    amount_micro bigint not null,
    reference text not null,
    opened_number bigint not null,
    settled_number bigint,
    constraint pk_holds primary key (account_id, hold_id)
);
create index ix_holds_open on holds (account_id) where settled_number is null;

create table idempotency_records (
    account_id text not null,
    route text not null,
    key text not null,
    fingerprint bytea not null,
    reply bytea not null,
    created_at timestamptz not null,
    constraint pk_idempotency_records primary key (account_id, route, key)
);
create index ix_idempotency_records_created_at on idempotency_records (created_at);

create table journal_batches (
    batch_id text not null,
    unit_count integer not null,
    committed boolean not null,
    at timestamptz not null,
    constraint pk_journal_batches primary key (batch_id)
);
create index ix_journal_batches_at on journal_batches (at);

create table operations (
    operation_id text not null,
    account_id text not null,
    number bigint not null,
    kind text not null,
    amount_micro bigint not null,
    balance_after_micro bigint not null,
    held_after_micro bigint not null,
    hold_id text,
    reference text not null,
    reason text not null,
    at timestamptz not null,
    chain_hash bytea not null,
    constraint pk_operations primary key (account_id, number)
);
create index ix_operations_at on operations using brin (at) with (pages_per_range = 32);
create unique index uq_operations_operation_id on operations (operation_id);
create unique index uq_operations_settled_hold on operations (account_id, hold_id)
    where kind in ('capture', 'release');

create table operator_actions (
    action_id text not null,
    at timestamptz not null,
    operator text not null,
    credential text not null,
    origin text not null,
    action text not null,
    target text not null,
    account_id text,
    task_id text,
    reason text,
    trace_id text not null,
    ended_at timestamptz,
    result text,
    code text,
    parameters json,
    effect json,
    constraint pk_operator_actions primary key (action_id)
);
create index ix_operator_actions_account on operator_actions (account_id, at, action_id)
    where account_id is not null;
create index ix_operator_actions_at on operator_actions (at, action_id);
create index ix_operator_actions_task on operator_actions (task_id, at, action_id) where task_id is not null;

create table operator_sessions (
    cookie_mac bytea not null,
    operator text not null,
    origin text not null,
    created_at timestamptz not null,
    expires_at timestamptz not null,
    ended_at timestamptz,
    constraint pk_operator_sessions primary key (cookie_mac)
);
create index ix_operator_sessions_expires_at on operator_sessions (expires_at);

create table order_payments (
    provider text not null,
    provider_object_id text not null,
    account_id text not null,
    order_id text not null,
    constraint pk_order_payments primary key (provider, provider_object_id)
);
create index ix_order_payments_account_id on order_payments (account_id);

create table orders (
    account_id text not null,
    order_id text not null,
    version bigint not null,
    provider text not null,
    origin text not null,
    status text not null,
    reconcile_status text not null,
    created_at timestamptz not null,
    updated_at timestamptz not null,
    expires_at timestamptz not null,
    wake_at timestamptz,
    request json not null,
    state json not null,
    constraint pk_orders primary key (account_id, order_id)
) with (fillfactor = 70);
create index ix_orders_due on orders (wake_at) where wake_at is not null;
create index ix_orders_listing on orders (account_id, created_at, order_id);
create index ix_orders_odd on orders (status) where status = 'held' or reconcile_status = 'mismatch';
create unique index uq_orders_order_id on orders (order_id);

create table outbox (
    account_id text not null,
    event_id text not null,
    request_id text,
    webhook_id text,
    receiver text not null,
    kind text not null,
    url text not null,
    created_at timestamptz not null,
    due_at timestamptz,
    status text not null,
    attempts integer not null,
    round_at timestamptz not null,
    tries integer not null,
    done_at timestamptz,
    reason text,
    snapshot json not null,
    constraint pk_outbox primary key (account_id, event_id)
) with (fillfactor = 80);
create index ix_outbox_done on outbox (done_at) where done_at is not null;
create index ix_outbox_event_id on outbox (event_id);
create index ix_outbox_given_up on outbox (created_at, event_id) where status = 'given_up';
create index ix_outbox_pending on outbox (receiver, due_at) where due_at is not null;
create index ix_outbox_retried on outbox (account_id, created_at, event_id)
    where status = 'given_up' or tries > 1;
create index ix_outbox_task on outbox (account_id, request_id);
create index ix_outbox_webhook on outbox (account_id, webhook_id, created_at, event_id)
    where webhook_id is not null;

create table outbox_attempts (
    account_id text not null,
    event_id text not null,
    number integer not null,
    at timestamptz not null,
    status_code integer,
    error text,
    duration_ms integer not null,
    constraint pk_outbox_attempts primary key (account_id, event_id, number)
);

create table payment_events (
    provider text not null,
    event_id text not null,
    account_id text,
    order_id text,
    type text not null,
    received_at timestamptz not null,
    verdict text not null,
    body bytea not null,
    constraint pk_payment_events primary key (provider, event_id)
);
create index ix_payment_events_account_id on payment_events (account_id);
create index ix_payment_events_order_id on payment_events (order_id) where order_id is not null;
create index ix_payment_events_unmatched on payment_events (received_at) where order_id is null;

create table poison_messages (
    poison_id text not null,
    group_name text not null,
    key text not null,
    message_type text not null,
    body bytea,
    body_mac bytea not null,
    state text not null,
    first_at timestamptz not null,
    last_at timestamptz not null,
    crashes integer not null,
    trace_id text,
    reason_type text not null,
    reason text not null,
    location text,
    incarnation integer not null,
    version bigint,
    state_digest text,
    replays integer not null,
    replayed_at timestamptz,
    replay_result text,
    claimed_until timestamptz,
    constraint pk_poison_messages primary key (poison_id)
);
create index ix_poison_messages_first_at on poison_messages (first_at, poison_id);
create index ix_poison_messages_last_at on poison_messages (last_at);
create unique index uq_poison_messages_open on poison_messages (group_name, key, message_type, body_mac)
    where state in ('kept', 'replaying', 'unknown');

create table postings (
    account_id text not null,
    number bigint not null,
    line integer not null,
    ledger_account text not null,
    amount_micro bigint not null,
    lot bigint,
    constraint pk_postings primary key (account_id, number, line)
);

create table processes (
    process_id text not null,
    machine text,
    pid integer not null,
    started text,
    lease_until timestamptz not null,
    providers text[] not null,
    state text not null,
    addresses text[] not null,
    protocol smallint not null,
    constraint pk_processes primary key (process_id)
);

create table reports (
    position bigint generated always as identity,
    report_id text not null,
    at timestamptz not null,
    kind text not null,
    level text not null,
    path text not null,
    key text,
    account_id text,
    task_id text,
    provider text,
    member_id text,
    trace_id text,
    report json not null,
    constraint pk_reports primary key (position),
    constraint uq_reports_report_id unique (report_id)
);
create index ix_reports_account_id on reports (account_id, at, report_id) where account_id is not null;
create index ix_reports_at on reports (at, report_id);
create index ix_reports_key on reports (key, at, report_id) where key is not null;
create index ix_reports_kind on reports (kind, at, report_id);
create index ix_reports_provider on reports (provider, at, report_id) where provider is not null;
create index ix_reports_task_id on reports (task_id, at, report_id) where task_id is not null;
create index ix_reports_trace_id on reports (trace_id) where trace_id is not null;

create table service_clock (
    id smallint not null,
    ahead_s double precision not null,
    process_id text not null,
    database_at timestamptz not null,
    service_at timestamptz not null,
    constraint pk_service_clock primary key (id)
);

create table sessions (
    account_id text not null,
    session_id text not null,
    token_sha256 bytea not null,
    created_at timestamptz not null,
    expires_at timestamptz not null,
    revoked_at timestamptz,
    constraint pk_sessions primary key (account_id, session_id)
);
create index ix_sessions_expires_at on sessions (expires_at);
create unique index uq_sessions_token_sha256 on sessions (token_sha256);

create table sign_ins (
    key text not null,
    version bigint not null,
    updated_at timestamptz not null,
    state json not null,
    constraint pk_sign_ins primary key (key)
) with (fillfactor = 70);
create index ix_sign_ins_unproven on sign_ins (updated_at) where (state -> 'proven') is null;
create index ix_sign_ins_updated_at on sign_ins (updated_at);

create table silent_receivers (
    receiver text not null,
    since timestamptz not null,
    constraint pk_silent_receivers primary key (receiver)
);

create table singletons (
    name text not null,
    process_id text not null,
    constraint pk_singletons primary key (name)
);

create table task_events (
    account_id text not null,
    request_id text not null,
    provider text not null,
    event_id text not null,
    received_at timestamptz not null,
    verdict text not null,
    body bytea not null,
    constraint pk_task_events primary key (account_id, request_id, provider, event_id)
);

create table tasks (
    account_id text not null,
    request_id text not null,
    version bigint not null,
    status text not null,
    model text not null,
    provider text not null,
    created_at timestamptz not null,
    updated_at timestamptz not null,
    wake_at timestamptz,
    dispatched boolean not null,
    request json not null,
    state json not null,
    input json not null,
    owner text,
    input_until timestamptz,
    overall_deadline_at timestamptz not null,
    dispatch_s integer not null,
    run_s integer not null,
    constraint pk_tasks primary key (account_id, created_at, request_id)
);
create index ix_tasks_due on tasks (owner, wake_at) where wake_at is not null and dispatched;
create index ix_tasks_failed on tasks (created_at, request_id, provider)
    where status = 'failed' and wake_at is null;
create index ix_tasks_input_until on tasks (input_until) where input_until is not null;
create index ix_tasks_overdue on tasks (overall_deadline_at) where wake_at is not null and not dispatched;
create index ix_tasks_review on tasks (created_at, request_id) where status = 'review';
create index ix_tasks_stored_inputs on tasks (account_id)
    where input_until is not null and status <> 'succeeded';
create index ix_tasks_waited on tasks (provider, dispatch_s, run_s, created_at)
    where wake_at is not null and not dispatched;
create index ix_tasks_waiting on tasks (provider, account_id, wake_at)
    where wake_at is not null and not dispatched;
create unique index uq_tasks_request_id on tasks (request_id);

create table usage_entries (
    account_id text not null,
    request_id text not null,
    ts timestamptz not null,
    model text not null,
    modality text not null,
    api_key_id text,
    status text not null,
    billable_units bigint not null,
    tokens_in bigint not null,
    tokens_out bigint not null,
    latency_ms bigint,
    cost_micro bigint not null,
    error text,
    operation_id text,
    status_history json not null,
    end_user text,
    constraint pk_usage_entries primary key (account_id, ts, request_id)
) with (fillfactor = 80);
create index ix_usage_entries_end_user on usage_entries (account_id, end_user, ts, request_id)
    where end_user is not null;

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

create table webhook_secrets (
    account_id text not null,
    generation integer not null,
    rotated_at timestamptz not null,
    constraint pk_webhook_secrets primary key (account_id, generation)
);

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

-- The journal, the audit's checkpoints and what operators did are never changed, also not by replication.
create function refuse_journal_change() returns trigger language plpgsql as $$
begin
    raise exception 'the journal is immutable: % on % is refused', tg_op, tg_table_name
        using errcode = 'restrict_violation';
end
$$;
create trigger operations_are_immutable before update or delete or truncate on operations
    for each statement execute function refuse_journal_change();
alter table operations enable always trigger operations_are_immutable;
create trigger postings_are_immutable before update or delete or truncate on postings
    for each statement execute function refuse_journal_change();
alter table postings enable always trigger postings_are_immutable;
create trigger checkpoints_are_immutable before update or delete or truncate on checkpoints
    for each statement execute function refuse_journal_change();
alter table checkpoints enable always trigger checkpoints_are_immutable;
create trigger operator_actions_are_kept before delete or truncate on operator_actions
    for each statement execute function refuse_journal_change();
alter table operator_actions enable always trigger operator_actions_are_kept;

-- A provider's event id is unique at that provider. If one id arrives for two orders at once, through two processes,
-- both find it unknown, and the database must reject the second.
create function refuse_second_owner() returns trigger language plpgsql as $$
begin
    raise exception 'payment event % of % belongs to another order', old.event_id, old.provider
        using errcode = 'unique_violation';
end
$$;
create trigger payment_events_have_one_order before update on payment_events for each row
    when (old.verdict in ('applied', 'stale') and old.order_id is distinct from new.order_id)
    execute function refuse_second_owner();
