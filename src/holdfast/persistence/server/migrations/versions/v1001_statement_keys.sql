create table statement_keys (
    key_id text not null,
    public_key bytea not null,
    first_used_at timestamptz not null,
    last_used_at timestamptz not null,
    constraint pk_statement_keys primary key (key_id)
);
