create table overrides (
    kind text not null,
    subject text not null,
    number double precision,
    new_tasks text,
    reason text not null,
    note text,
    operator text not null,
    action_id text not null,
    set_at timestamptz not null,
    ends_at timestamptz not null,
    version integer not null,
    constraint pk_overrides primary key (kind, subject)
);
