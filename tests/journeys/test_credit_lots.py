"""Lots of credit over real HTTP: grants, coupons, tasks that use them, refunds, and what expires."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
import trio
from sqlalchemy import text
from tests.clients import Customer, Totals, code_of, every, ok, until

from holdfast.persistence.server.connections import connected

from .operator_client import Operator
from .service_process import Service

LOTS = "/v2/control/credit-lots"


@pytest.fixture
async def operator(shared_service: Service) -> AsyncIterator[Operator]:
    operator = Operator(shared_service)
    async with operator.http:
        yield operator


async def lots_of(customer: Customer, query: str = "") -> list[dict[str, Any]]:
    return ok(await customer.as_session("GET", LOTS + query))["data"]  # type: ignore[no-any-return]  # of JSON


def left(lots: list[dict[str, Any]]) -> list[tuple[str, str, str, str]]:
    return [(lot["kind"], lot["source"], lot["remaining"], lot["reserved"]) for lot in lots]


@pytest.mark.slow
async def test_a_grant_is_used_before_paid_credit_and_what_is_left_of_it_expires(
    shared_service: Service, new_customer: Any, operator: Operator
) -> None:
    with trio.fail_after(240):
        customer: Customer = await new_customer(shared_service, credit="5.00")
        path = f"accounts/{customer.account_id}/grants"
        expires_at = (datetime.now(UTC) + timedelta(seconds=20)).isoformat()
        granted = await operator.act(path, "first", amount="2.00", expires_at=expires_at)
        assert ok(granted)["account"]["available_balance"] == "7.00"
        again = await operator.act(path, "first", amount="2.00", expires_at=expires_at)
        assert again.headers["Idempotent-Replayed"] == "true"
        assert again.json() == granted.json()
        assert left(await lots_of(customer)) == [
            ("promotional", "grant", "2.00", "0.00"),
            ("paid", "recharge", "5.00", "0.00"),
        ]
        task = ok(await customer.create())
        await customer.all_ended()
        cost = Decimal(ok(await customer.as_key("GET", f"/v2/task/{task['request_id']}"))["usage"]["cost_credits"])
        assert cost > 0

        async def expired() -> list[dict[str, Any]] | None:
            found = await lots_of(customer, "?status=closed")
            return found or None

        [gone] = await until(expired)
        assert left([gone]) == [("promotional", "grant", "0.00", "0.00")]
        assert await customer.totals() == Totals(Decimal(5), Decimal(0), Decimal(5))
        statement = await customer.statement()
        assert [each["kind"] for each in statement] == ["credit", "grant", "hold", "capture", "expiry"]
        assert Decimal(statement[-1]["balance_change"]) == cost - 2
        assert sum(Decimal(each["balance_change"]) for each in statement) == 5
        # The hold, its charge and the expiry moved the grant alone.
        named = [{posting["lot"] for posting in each["postings"]} - {None} for each in statement]
        assert named == [{1}, {2}, {2}, {2}, {2}]
    assert shared_service.audit() == []


async def test_a_coupon_is_redeemed_once_by_each_account(
    shared_service: Service, new_customer: Any, operator: Operator
) -> None:
    with trio.fail_after(240):
        made = ok(await operator.act("coupons", amount="3.00", uses_max=2, credit_days=7))
        customers = [await new_customer(shared_service) for _ in range(3)]
        replies: list[tuple[int, str]] = []

        async def redeem(customer: Customer) -> None:
            body = {"code": made["code"].lower()}
            reply = await customer.as_session("POST", "/v2/control/coupons/redeem", body)
            replies.append((reply.status_code, code_of(reply) if reply.status_code != 200 else ""))

        async with trio.open_nursery() as nursery:
            for customer in customers * 3:
                nursery.start_soon(redeem, customer)
        assert sorted(replies).count((200, "")) >= 2
        assert {code for _, code in replies} <= {"", "coupon_already_redeemed", "coupon_used_up"}
        lots = [await lots_of(customer) for customer in customers]
        assert sorted(left(each) for each in lots) == [[], *[[("promotional", "coupon", "3.00", "0.00")]] * 2]
        [listed] = [
            each
            for each in await every(operator.http.get, "/ops/api/coupons")
            if each["coupon_id"] == made["coupon_id"]
        ]
        assert (listed["uses"], listed["uses_max"]) == (2, 2)
        other = ok(await operator.act("coupons", amount="1.00", uses_max=5))
        ok(await operator.act(f"coupons/{other['coupon_id']}/end"))
        wrong = [
            await customers[0].as_session("POST", "/v2/control/coupons/redeem", {"code": code})
            for code in (other["code"], "NO-SUCH-CODE")
        ]
        assert [(each.status_code, code_of(each)) for each in wrong] == [
            (409, "coupon_ended"),
            (404, "coupon_not_found"),
        ]
        taken = await operator.act("coupons", amount="1.00", code=made["code"])
        assert (taken.status_code, code_of(taken)) == (409, "coupon_code_taken")
    assert shared_service.audit() == []


async def test_a_coupons_code_is_only_in_the_response_to_who_made_it(
    shared_service: Service, new_customer: Any, operator: Operator
) -> None:
    with trio.fail_after(240):
        drawn = ok(await operator.act("coupons", amount="3.00", uses_max=2))
        chosen = ok(await operator.act("coupons", amount="300.00", uses_max=5, code="Spring-Meadow"))
        taken = await operator.act("coupons", amount="1.00", code="SPRING-MEADOW")
        assert (taken.status_code, code_of(taken)) == (409, "coupon_code_taken")
        assert [made["code"][:4] for made in (drawn, chosen)] == [drawn["code_prefix"], "SPRI"]
        assert len(drawn["code"]) == 12
        customer: Customer = await new_customer(shared_service)
        for code in (drawn["code"], " spring-meadow ", "WRONG-BUT-CLOSE"):
            reply = await customer.as_session("POST", "/v2/control/coupons/redeem", {"code": code})
            assert reply.status_code == (404 if code.startswith("WRONG") else 200)
        ended = ok(await operator.act(f"coupons/{chosen['coupon_id']}/end"))
        [action] = [
            each
            for each in await every(operator.http.get, "/ops/api/actions")
            if (each["effect"] or {}).get("coupon_id") == chosen["coupon_id"]
        ]
        assert action["parameters"] == {"amount": "300.00", "uses_max": "5", "code": "***"}
        assert action["effect"] == {
            "coupon_id": chosen["coupon_id"],
            "code_prefix": "SPRI",
            "amount": "300.00",
            "uses_max": "5",
        }
        statement = await customer.statement()
        assert {each["reason"] for each in statement} == {f"coupon {made['coupon_id']}" for made in (drawn, chosen)}

        async def reported() -> str | None:
            reports = (await operator.http.get("/ops/api/reports?kind=action&limit=100")).text
            return reports if "end coupon: done; reason: a test" in reports else None

        shown = [await until(reported), str(ended), str(statement), shared_service.log_path.read_text()]
        for path in ("api/coupons", "api/actions", "actions", "reports", f"accounts/{customer.account_id}"):
            shown.append((await operator.http.get(f"/ops/{path}")).text)
        with connected(shared_service.database_url) as rows:
            tables = rows.scalars(text("select tablename from pg_tables where schemaname = 'public'")).all()
            shown += [str(rows.execute(text(f"select to_json(t) from {name} t")).all()) for name in tables]
        for code in (drawn["code"], "spring-meadow", "wrong-but-close"):
            assert [each for each in shown if code.lower() in each.lower()] == []
    assert shared_service.audit() == []
