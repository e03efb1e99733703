-- Of a coupon's code only the hash and the first characters are stored; accounts whose top-up was switched off are found.
-- Tables and columns are explained in holdfast.persistence.records.tables.

alter table coupons add code_sha256 bytea, add code_prefix text;
update coupons set code_sha256 = sha256(convert_to(code, 'UTF8')), code_prefix = left(code, least(4, length(code) / 3));
alter table coupons
    alter code_sha256 set not null,
    alter code_prefix set not null,
    drop code;
create unique index uq_coupons_code on coupons (code_sha256);

-- Operators who may only read have seen these. The reasons of operations stay: their hashes cover them.
update operator_actions
set parameters = case
        when parameters ->> 'code' is null then parameters
        else (parameters::jsonb || '{"code": "***"}')::json
    end,
    effect = (effect::jsonb - 'code')::json
where action = 'make_coupon';
update reports set report = regexp_replace(report::text, '; code: [A-Z0-9-]+', '; code: ***')::json
where kind = 'action' and report ->> 'reason' like 'make coupon: %';

alter table auto_top_ups add off_at timestamptz;
update auto_top_ups set off_at = (state ->> 'off_at')::timestamptz where state ->> 'off_at' is not null;
create index ix_auto_top_ups_off_at on auto_top_ups (off_at, account_id) where off_at is not null;
