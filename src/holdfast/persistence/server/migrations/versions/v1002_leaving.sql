alter table accounts add closes_at timestamptz, add closed_at timestamptz, add erased_at timestamptz;
create index ix_accounts_closing on accounts (closes_at, id) where closes_at is not null and erased_at is null;

create table account_changes (
    account_id text not null,
    at timestamptz not null,
    what text not null,
    change_id text not null,
    constraint pk_account_changes primary key (account_id, at, change_id)
);
