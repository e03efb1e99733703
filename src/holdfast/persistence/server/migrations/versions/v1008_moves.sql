create table account_moves (
    account_id text not null,
    move_id text not null,
    direction text not null,
    state text not null,
    cell smallint not null,
    place smallint not null,
    at timestamptz not null,
    number_before bigint not null,
    number bigint not null,
    balance_micro bigint not null,
    held_micro bigint not null,
    chain_head bytea not null,
    email_sha256 bytea not null,
    constraint pk_account_moves primary key (account_id, move_id)
);
create index ix_account_moves_place on account_moves (place) where state in ('closed', 'moved', 'arrived');
create index ix_account_moves_email on account_moves (email_sha256) where state in ('closed', 'moved', 'arrived');

create table given_emails (
    email_sha256 bytea not null,
    cell smallint not null,
    at timestamptz not null,
    constraint pk_given_emails primary key (email_sha256)
);
create index ix_given_emails_cell on given_emails (cell);

create table moving_rows (
    account_id text not null,
    move_id text not null,
    table_name text not null,
    position bigint not null,
    content json not null,
    constraint pk_moving_rows primary key (account_id, move_id, table_name, position)
);

-- The rows of accounts that are written without the account's fence. A process that was frozen while it served an
-- account adds none after the account was moved away. The lock is one that the journal's does not conflict with; the
-- departure waits for both. The error of what the journal does not write is one after which callers try again.
create function refuse_row_of_moved_account() returns trigger language plpgsql as $$
begin
    perform from accounts where id = new.account_id for key share;
    if not found and exists (
        select from account_moves where account_id = new.account_id and state in ('closed', 'moved')
    ) then
        raise exception 'account % is in another cell', new.account_id using errcode = tg_argv[0];
    end if;
    return new;
end
$$;
create trigger archives_are_of_accounts_here before insert on archives
    for each row execute function refuse_row_of_moved_account('lock_not_available');
create trigger coupon_tries_are_of_accounts_here before insert on coupon_tries
    for each row execute function refuse_row_of_moved_account('lock_not_available');
create trigger coupon_uses_are_of_accounts_here before insert on coupon_uses
    for each row execute function refuse_row_of_moved_account('lock_not_available');
create trigger file_uses_are_of_accounts_here before insert on file_uses
    for each row execute function refuse_row_of_moved_account('lock_not_available');
create trigger files_are_of_accounts_here before insert on files
    for each row execute function refuse_row_of_moved_account('lock_not_available');
create trigger sessions_are_of_accounts_here before insert on sessions
    for each row execute function refuse_row_of_moved_account('restrict_violation');
create trigger webhook_secrets_are_of_accounts_here before insert on webhook_secrets
    for each row execute function refuse_row_of_moved_account('restrict_violation');
create trigger test_events_are_of_accounts_here before insert on outbox
    for each row when (new.kind = 'webhook.test')
    execute function refuse_row_of_moved_account('restrict_violation');
