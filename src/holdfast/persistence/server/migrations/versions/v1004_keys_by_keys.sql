alter table api_keys add makers text[];

alter table account_changes add api_key_id text, add subject text;
create index ix_account_changes_of_keys on account_changes (at) where api_key_id is not null;
