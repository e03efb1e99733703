alter table api_keys add column more_limits json;
