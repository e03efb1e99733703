alter table api_keys add column more_limits json;

create table key_groups (
    account_id text not null,
    group_id text not null,
    name text not null,
    limits json not null,
    created_at timestamptz not null,
    constraint pk_key_groups primary key (account_id, group_id)
);

create table group_keys (
    account_id text not null,
    key_id text not null,
    group_id text,
    constraint pk_group_keys primary key (account_id, key_id)
);
