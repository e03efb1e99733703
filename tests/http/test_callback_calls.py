"""Signed callbacks of media providers: the signature is verified before anything else."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.clients import refused

from holdfast.actors.task.messages import ReceiveProviderUpdate, TaskReply
from holdfast.ledger.refusals import Refusal
from holdfast.providers.signatures import sign
from holdfast.telemetry.reports.conditions import Conditions
from holdfast.telemetry.reports.report import in_words
from holdfast.telemetry.reports.reporter import Reporter

if TYPE_CHECKING:
    import httpx2
    from tests.http.api import Api
    from tests.http.stage import Stage

SECRET = "studio-callback-secret"


def update(**fields: Any) -> bytes:
    body = {"event_id": "evt_1", "request_id": "task_a", "attempt": 1, "status": "processing", **fields}
    return msgspec.json.encode(body)


async def send(
    stage: Stage, raw: bytes, *, signature: str | None = None, key_name: str | None = "studio", age_s: int = 0
) -> httpx2.Response:
    at = int((stage.now - timedelta(seconds=age_s)).timestamp())
    signature = sign(SECRET, raw, at=at, key_name=key_name) if signature is None else signature
    headers = {"Content-Type": "application/json", "X-Callback-Signature": signature}
    return await stage.call("POST", "/v2/callback", content=raw, headers=headers)


async def test_a_signed_update_reaches_its_task(api: Api) -> None:
    api.tasks.answer = TaskReply(api.task("task_a", status="processing"))
    response = await send(api, update(percent=40))
    body = response.json()
    assert (body["request_id"], body["status"], api.rows.reads) == ("task_a", "processing", 0)
    ((key, command),) = api.tasks.asked
    assert isinstance(command, ReceiveProviderUpdate)
    assert (key, command.update.provider, command.update.percent) == ("task_a", "studio", 40)
    assert command.body == update(percent=40)


@pytest.mark.parametrize(
    ("signature", "code"),
    [("", "missing_signature"), (" ", "missing_signature"), ("t=1,v1=00", "invalid_signature"),
     ("nonsense", "invalid_signature"), ("k=unknown,t=1,v1=" + "0" * 64, "invalid_signature")],
)  # fmt: skip
async def test_without_a_valid_signature_no_row_is_read(stage: Stage, signature: str, code: str) -> None:
    refused(await send(stage, update(), signature=signature), 401, code)
    refused(await send(stage, b"not json", signature=signature), 401, code)


async def test_the_signature_header_is_required(stage: Stage) -> None:
    headers = {"Content-Type": "application/json"}
    response = await stage.call("POST", "/v2/callback", content=update(), headers=headers)
    refused(response, 401, "missing_signature")


@pytest.mark.parametrize("age_s", [301, -301])
async def test_old_and_future_signatures_have_expired(stage: Stage, age_s: int) -> None:
    refused(await send(stage, update(), age_s=age_s), 401, "signature_expired")


async def test_a_signature_is_judged_by_the_wall_clock(api: Api) -> None:
    """Who signed it has no access to service time, which may follow a database's clock that was set."""
    api.tasks.answer = TaskReply(api.task("task_a"))
    await api.add_task(api.task("task_a"))
    signature = sign(SECRET, update(), at=int(api.now.timestamp()), key_name="studio")
    later = api.now + timedelta(hours=2)
    api.change(now=lambda: later)
    assert (await send(api, update(), signature=signature)).status_code == 200


async def test_a_changed_byte_voids_the_signature(stage: Stage) -> None:
    signature = sign(SECRET, update(), at=int(stage.now.timestamp()), key_name="studio")
    refused(await send(stage, update() + b" ", signature=signature), 401, "invalid_signature")


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"{}", b"\xff", update(status="done"), update(percent=101), update(attempt=0)]
)
async def test_a_signed_malformed_body_is_refused(stage: Stage, raw: bytes) -> None:
    refused(await send(stage, raw), 400, "invalid_event")


async def test_a_large_callback_is_413(stage: Stage) -> None:
    refused(await send(stage, update(message="x" * 300_000)), 413, "request_too_large")


async def test_updates_of_unknown_or_other_providers_tasks_are_404(api: Api) -> None:
    refused(await send(api, update(request_id="~invalid~")), 404, "task_not_found")
    api.sign_callbacks({None: (SECRET,)})
    refused(await send(api, update(), key_name=None), 404, "task_not_found")
    await api.add_task(api.task("task_a", provider="other"))
    refused(await send(api, update(provider="studio"), key_name=None), 404, "task_not_found")
    assert api.tasks.asked == []


async def test_a_sender_without_a_key_name_updates_only_its_own_tasks(api: Api) -> None:
    api.tasks.answer = TaskReply(api.task("task_a"))
    secrets = {"studio": (SECRET,), "other": ("other-secret",), None: (SECRET, "other-secret")}
    api.sign_callbacks(secrets)
    await api.add_task(api.task("task_a"))
    assert (await send(api, update(), key_name=None)).status_code == 200
    forged = sign("other-secret", update(provider="studio"), at=int(api.now.timestamp()))
    response = await send(api, update(provider="studio"), signature=forged)
    refused(response, 401, "invalid_signature")
    assert len(api.tasks.asked) == 1


async def test_without_any_secret_callbacks_are_refused(stage: Stage) -> None:
    stage.sign_callbacks({"studio": ("",)})
    response = await send(stage, update(), signature="t=1,v1=" + "0" * 64)
    refused(response, 503, "provider_not_configured")


async def test_a_refusal_by_the_task_reaches_the_sender(api: Api) -> None:
    api.tasks.answer = Refusal(code="task_not_found", message="No such task.")
    await api.add_task(api.task("task_a"))
    refused(await send(api, update()), 404, "task_not_found")


async def test_refused_callbacks_are_reported_by_provider_reason_and_origin(stage: Stage) -> None:
    reporter = Reporter(now=lambda: stage.now)
    stage.change(conditions=Conditions(reporter, lambda: 0.0))
    origins = iter(range(1, 100))

    async def send_from(raw: bytes, *, path: str = "/v2/callback", signature: str = "t=1,v1=00") -> None:
        headers = {"Content-Type": "application/json", "X-Callback-Signature": signature}
        scope = {"client": (f"192.0.2.{next(origins)}", 50_000)}
        await stage.call("POST", path, content=raw, headers=headers, extensions=scope)

    for _ in range(3):
        await send_from(update(), signature="k=studio,t=1,v1=00")
    await send_from(update(), signature="k=neighbour,t=1,v1=00")
    await send_from(update(provider="studio"), signature="")
    await send_from(update(provider="neighbour"), signature="")
    await send_from(b"not json", signature="k=neighbour,t=1,v1=00")
    found = [(report.provider, in_words(report)) for report in reversed(reporter.recent())]
    refused, by_key = "callbacks are refused", "the provider as its signature's key claims"
    assert found == [
        ("studio", f"{refused}: invalid_signature, from 192.0.2.1, {by_key}"),
        ("unknown", f"{refused}: invalid_signature, from 192.0.2.4"),
        ("studio", f"{refused}: missing_signature, from 192.0.2.5, the provider as its body claims"),
        ("unknown", f"{refused}: missing_signature, from 192.0.2.6"),
    ]
