"""Signed callbacks over real HTTP: forged, repeated and late ones have no effect."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
import trio
from tests.clients import Customer, Totals, code_of, ok, until

from .conftest import NewCustomer
from .quiet_provider import MODEL, QuietProvider, signed
from .service_process import Service


async def running_task(customer: Customer) -> str:
    """Create a task and wait until its provider has accepted it."""
    request_id: str = ok(await customer.create(MODEL))["request_id"]

    async def taken() -> bool:
        task = await customer.task(request_id)
        return any(line["status"] == "submitted" for line in task["provider_progress"])

    await until(taken)
    return request_id


def unaffected(task: dict[str, Any]) -> dict[str, Any]:
    """Return everything that a callback could change."""
    return {name: task[name] for name in ("status", "updated_at", "provider_progress", "output", "usage")}


async def test_forged_callbacks_are_refused_without_effect(
    quiet_service: Service, provider: QuietProvider, new_customer: NewCustomer
) -> None:
    with trio.fail_after(60):
        ada = await new_customer(quiet_service, credit="1.00")
        request_id = await running_task(ada)
        before = unaffected(await ada.task(request_id))
        body = provider.success(request_id, event_id="evt_1", sequence=9)
        tampered = body.replace(b"succeeded", b"Succeeded")
        attempts = [
            (tampered, signed(body), "invalid_signature"),
            (body + b" ", signed(body), "invalid_signature"),
            (body, signed(body, shift_s=-301), "signature_expired"),
            (body, signed(body, shift_s=310), "signature_expired"),
            (body, signed(body, secret="another-secret-0123456789-0123456789"), "invalid_signature"),
            (body, {"Content-Type": "application/json"}, "missing_signature"),
            (body, signed(body) | {"X-Callback-Signature": "t=,v1="}, "invalid_signature"),
        ]
        for content, headers, code in attempts:
            answer = await ada.http.post("/v2/callback", content=content, headers=headers)
            assert (answer.status_code, code_of(answer)) == (401, code)
        assert unaffected(await ada.task(request_id)) == before
        assert await ada.totals() == Totals(Decimal(1), Decimal(1), Decimal(0))


@pytest.mark.parametrize("winner", ["succeeded", "failed"])
async def test_concurrent_copies_of_a_callback_settle_once(
    quiet_service: Service, provider: QuietProvider, new_customer: NewCustomer, winner: str
) -> None:
    with trio.fail_after(60):
        ada = await new_customer(quiet_service, credit="1.00")
        request_id = await running_task(ada)
        if winner == "succeeded":
            body = provider.success(request_id, event_id="evt_1", sequence=1)
        else:
            body = provider.callback_body(
                request_id, "failed", event_id="evt_1", sequence=1, error={"message": "no"}
            )

        async def deliver() -> None:
            ok(await ada.http.post("/v2/callback", content=body, headers=signed(body)))

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(deliver)
        task = (await ada.all_ended())[request_id]
        assert task["status"] == winner
        left = Decimal(0) if winner == "succeeded" else Decimal(1)
        assert await ada.totals() == Totals(left, Decimal(0), left)
    assert quiet_service.audit() == []
