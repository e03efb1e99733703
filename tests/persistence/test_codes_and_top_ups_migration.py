"""The migration after which coupons' codes are stored as hashes, and top-ups that were switched off are found."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import psycopg
from sqlalchemy import text
from tests.fresh_databases import drop_tables

from holdfast.ledger.clock import utc_now
from holdfast.persistence.claims.coupons import NewCouponClaim, claim_coupon, sha256_of_code
from holdfast.persistence.queries.lots import list_coupons
from holdfast.persistence.records.credit_tables import CouponClaim
from holdfast.persistence.server.connections import connected
from holdfast.persistence.server.migrate import migrate
from holdfast.persistence.server.revisions import installed_revisions
from holdfast.persistence.server.upgrade import upgrade

CODES = ("WELCOME-7K3Q", "SUMMER", "AB")
REPORT = {"kind": "action", "reason": "make coupon: done; coupon_id: cpn_0; code: WELCOME-7K3Q; reason: a code: X"}
ROWS = f"""
insert into coupons values ('cpn_0', '{CODES[0]}', 3000000, 2, null, null, now(), 1, null),
    ('cpn_1', '{CODES[1]}', 1, 1, 30, null, now(), 0, null),
    ('cpn_2', '{CODES[2]}', 1, 1, null, null, now(), 0, now());
insert into operator_actions
    (action_id, at, operator, credential, origin, action, target, trace_id, parameters, effect)
values ('act_0', now(), 'a', 'token', 'b', 'make_coupon', '', 't', '{{"amount": "3.00", "code": "{CODES[0]}"}}',
        '{{"coupon_id": "cpn_0", "code": "{CODES[0]}"}}'),
    ('act_1', now(), 'a', 'token', 'b', 'make_coupon', '', 't', '{{"amount": "3.00"}}', null),
    ('act_2', now(), 'a', 'token', 'b', 'make_coupon', '', 't', null, null),
    ('act_3', now(), 'a', 'token', 'b', 'refund_order', '', 't', null, '{{"code": "kept"}}');
insert into auto_top_ups (account_id, state)
values ('acct_a', '{{"off_at": "2026-11-20T12:00:00.5Z"}}'), ('acct_b', '{{}}');
insert into reports (report_id, at, kind, level, path, report)
values ('rep_0', now(), 'action', 'info', 'operators', '{json.dumps(REPORT)}'),
    ('rep_1', now(), 'restart', 'info', 'x', '{{"reason": "make coupon: ; code: KEPT"}}');
"""


def test_codes_from_before_can_be_redeemed_and_are_read_nowhere(database_url: str) -> None:
    drop_tables(database_url)
    with connected(database_url) as rows:
        upgrade(rows, "0110")
    with psycopg.connect(database_url) as connection:
        connection.execute(ROWS.encode())
    assert migrate(database_url).applied == installed_revisions()[2:]
    with connected(database_url) as rows:
        coupons = {each.coupon_id: each for each in list_coupons(rows, filters={}, limit=9)}
        assert [coupons[f"cpn_{n}"].code_prefix for n in range(3)] == ["WELC", "SU", ""]
        assert (coupons["cpn_0"].uses, coupons["cpn_0"].amount_micro) == (1, 3_000_000)
        replies = [
            claim_coupon(rows, NewCouponClaim("acct_a", sha256_of_code(code.lower()), f"cpu_{code}", utc_now()))
            for code in (*CODES, "OTHER")
        ]
        assert replies == [
            CouponClaim("acct_a", "cpn_0", "cpu_WELCOME-7K3Q", 3_000_000, None),
            CouponClaim("acct_a", "cpn_1", "cpu_SUMMER", 1, 30),
            "ended",
            "unknown",
        ]
        recorded = rows.execute(text("select parameters, effect from operator_actions order by action_id")).all()
        assert recorded == [
            ({"amount": "3.00", "code": "***"}, {"coupon_id": "cpn_0"}),
            ({"amount": "3.00"}, None),
            (None, None),
            (None, {"code": "kept"}),
        ]
        off_at = rows.scalars(text("select off_at from auto_top_ups order by account_id")).all()
        assert off_at == [datetime(2026, 11, 20, 12, microsecond=500_000, tzinfo=UTC), None]
        reasons = rows.scalars(text("select report ->> 'reason' from reports order by report_id")).all()
        assert reasons == [
            "make coupon: done; coupon_id: cpn_0; code: ***; reason: a code: X",
            "make coupon: ; code: KEPT",
        ]
