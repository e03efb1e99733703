alter table api_keys add column max_credits_per_task_micro bigint;
