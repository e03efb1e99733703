"""Operators' decisions over real HTTP on reviews and held payments, and the usage totals after them."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator
from decimal import Decimal

import pytest
import trio
from tests.clients import Customer, Totals, ok, until

from .conftest import NewCustomer
from .operator_client import Operator
from .quiet_provider import MODEL, QuietProvider, signed
from .service_process import Service

FLAGGED = {"flagged": True, "categories": ["gore"]}


@pytest.fixture
async def operator(quiet_service: Service) -> AsyncIterator[Operator]:
    """An operator of the shared service."""
    operator = Operator(quiet_service)
    async with operator.http:
        yield operator


async def delivered(customer: Customer, provider: QuietProvider, file: str, **fields: object) -> str:
    """Create a task and report one output."""
    request_id: str = ok(await customer.create(MODEL))["request_id"]
    await report_output(customer, provider, request_id, file, **fields)
    return request_id


async def report_output(
    customer: Customer, provider: QuietProvider, request_id: str, file: str, **fields: object
) -> None:
    """Report one output once the provider has the job."""
    await customer.submitted(request_id)
    outputs = [{"url": f"{provider.url}/{file}", "content_type": "image/png"}]
    body = provider.callback_body(request_id, "succeeded", event_id="evt_1", sequence=1, outputs=outputs, **fields)
    ok(await customer.http.post("/v2/callback", content=body, headers=signed(body)))


async def test_contradicting_concurrent_decisions_have_one_outcome(
    quiet_service: Service, provider: QuietProvider, new_customer: NewCustomer, operator: Operator
) -> None:
    with trio.fail_after(240):
        ada = await new_customer(quiet_service, credit="1.00")
        request_id = await delivered(ada, provider, "picture.png", moderation=FLAGGED)
        case = await operator.case_of(ada)
        statuses: list[int] = []

        async def decide(word: str) -> None:
            statuses.append((await operator.say(case, word)).status_code)

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(decide, "approve" if number % 2 else "reject")
        assert set(statuses) <= {200, 409}
        task = (await ada.all_ended())[request_id]
        left = {"succeeded": Decimal(0), "failed": Decimal(1)}[task["status"]]
        assert await ada.totals() == Totals(left, Decimal(0), left)
    assert quiet_service.audit() == []


# ------------------------------------------------------------------------------------------------- the usage log


async def test_usage_totals_equal_the_captured_credit(
    quiet_service: Service, provider: QuietProvider, new_customer: NewCustomer, operator: Operator
) -> None:
    with trio.fail_after(240):
        ada = await new_customer(quiet_service, credit="10.00")
        created = [await delivered(ada, provider, "picture.png") for _ in range(4)]
        await delivered(ada, provider, "gone.png")
        await delivered(ada, provider, "picture.png", moderation=FLAGGED)
        await until(lambda: ended(ada, created))

        async def lines(query: str = "") -> list[dict[str, str]]:
            answer = await ada.as_session("GET", f"/v2/usage/logs?format=csv{query}")
            assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"
            return list(csv.DictReader(io.StringIO(answer.text, newline="")))

        def cost(found: list[dict[str, str]]) -> Decimal:
            return sum((Decimal(each["cost_credits"]) for each in found), Decimal(0))

        whole = await lines()
        assert len(whole) == 6
        page = ok(await ada.as_session("GET", "/v2/usage/logs"))["data"]
        assert [each["request_id"] for each in whole] == [each["request_id"] for each in page]
        statement = ok(await ada.as_session("GET", "/v2/control/ledger?kind=capture&limit=100"))
        captured = {each["operation_id"]: -Decimal(each["balance_change"]) for each in statement["data"]}
        assert cost(whole) == sum(captured.values()) == Decimal(4)
        costs = {each["operation_id"]: Decimal(each["cost_credits"]) for each in whole}
        assert {key: costs[key] for key in captured} == captured
        moments = sorted(each["ts"] for each in whole)
        first, last = moments[0], "2999-01-01"
        for between in moments[1:]:
            before = await lines(f"&from={first}&to={between}")
            after = await lines(f"&from={between}&to={last}")
            assert cost(before) + cost(after) == cost(whole)
            assert len(before) + len(after) == len(whole)


async def ended(customer: Customer, request_ids: list[str]) -> bool:
    """Whether these tasks have succeeded."""
    tasks = await customer.tasks()
    return all(tasks[request_id]["status"] == "succeeded" for request_id in request_ids)
