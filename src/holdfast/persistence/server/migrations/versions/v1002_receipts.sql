create table receipt_series (
    id smallint not null,
    last_number bigint not null,
    begun_at timestamptz not null,
    constraint pk_receipt_series primary key (id)
);
insert into receipt_series (id, last_number, begun_at) values (1, 0, now());

create table receipts (
    sequence bigint not null,
    number text not null,
    kind text not null,
    account_id text not null,
    email text not null,
    order_id text not null,
    operation_id text not null,
    operation_number bigint not null,
    receipt_number text,
    reason text not null,
    credit_micro bigint not null,
    amount_micro bigint not null,
    currency text not null,
    moved_at timestamptz not null,
    month text not null,
    issued_at timestamptz not null,
    seller json not null,
    constraint pk_receipts primary key (sequence)
);
create index ix_receipts_listing on receipts (account_id, issued_at, sequence);
create index ix_receipts_all on receipts (issued_at, sequence);
create index ix_receipts_month on receipts (month, account_id);
create index ix_receipts_order on receipts (account_id, order_id);
create unique index uq_receipts_number on receipts (number);
create unique index uq_receipts_operation_id on receipts (operation_id);

-- The numbers of all accounts, for the audit, which sees the rows of a few.
create view receipt_numbers as select sequence, number from receipts;

-- Few operations move money, so the index is small and building it reads the table once.
create index ix_operations_money on operations (at, account_id, number)
    where kind in ('credit', 'reversal') and starts_with(reference, 'ord_');

create trigger receipts_are_immutable before update or delete or truncate on receipts
    for each statement execute function refuse_journal_change();
alter table receipts enable always trigger receipts_are_immutable;
