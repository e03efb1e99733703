-- Two seconds for each million entries with an end user, in which writes wait; it may have been created before,
-- concurrently.
set local statement_timeout = 0;

create index if not exists ix_usage_entries_end_user on usage_entries (account_id, end_user, ts, request_id)
    where end_user is not null;
