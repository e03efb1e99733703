alter table accounts add closes_at timestamptz, add closed_at timestamptz, add erased_at timestamptz;
create index ix_accounts_closing on accounts (closes_at, id) where closes_at is not null and erased_at is null;

create table account_changes (
    account_id text not null,
    at timestamptz not null,
    what text not null,
    change_id text not null,
    constraint pk_account_changes primary key (account_id, at, change_id)
);

create table archives (
    account_id text not null,
    archive_id text not null,
    requested_at timestamptz not null,
    claimed_until timestamptz not null,
    tries integer not null,
    made_at timestamptz,
    expires_at timestamptz,
    sha256 text,
    bytes bigint,
    constraint pk_archives primary key (account_id)
);
create unique index uq_archives_archive_id on archives (archive_id);
create index ix_archives_due on archives (requested_at) where made_at is null;
