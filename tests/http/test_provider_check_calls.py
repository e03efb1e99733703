"""``POST /ops/api/providers/{provider}/check``, and the callbacks about its job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest
from tests.clients import refused

from holdfast.providers.media.callbacks import PURPOSE, hook_address
from holdfast.providers.media.provider_check import CheckStep
from holdfast.providers.signatures import sign

if TYPE_CHECKING:
    import httpx2
    from tests.http.fake_parts import FakeProviderChecks
    from tests.http.stage import Stage

SECRET = "studio-callback-secret"


def checks_of(stage: Stage) -> FakeProviderChecks:
    return cast("FakeProviderChecks", stage.deps.operating.provider_checks)


async def check(stage: Stage, provider: str = "studio", **body: Any) -> httpx2.Response:
    return await stage.call(
        "POST", f"/ops/api/providers/{provider}/check", credential=stage.deps.settings.operator_token, json=body
    )


async def test_the_cheapest_model_is_run_with_a_made_up_input(stage: Stage) -> None:
    response = await check(stage)
    body = response.json()
    assert response.status_code == 200, body
    assert (body["provider"], body["ok"], body["charges"]) == ("studio", True, False)
    [(provider, upstream_model, job_input, wait_s)] = checks_of(stage).runs
    catalog = stage.deps.registry.catalog
    model = catalog.models[body["model"]]
    assert (provider, upstream_model, wait_s) == ("studio", model.upstream.model, 30.0)
    assert model.schema.violations(job_input) == []
    assert [step["name"] for step in body["steps"]] == ["connection"]


async def test_a_model_and_an_input_may_be_named(stage: Stage) -> None:
    wanted = {"prompt": "a harbour", "width": 256, "height": 256}
    response = await check(stage, model="studio/image-1", input=wanted, wait_s=5, reason="it was slow")
    assert (response.json())["model"] == "studio/image-1"
    [(_, upstream_model, job_input, wait_s)] = checks_of(stage).runs
    assert (upstream_model, wait_s) == ("poster", 5.0)
    assert job_input.items() >= wanted.items()


async def test_a_failed_step_is_shown(stage: Stage) -> None:
    checks_of(stage).steps = [CheckStep("connection", "failed", "the name does not resolve", 0.2)]
    body = (await check(stage)).json()
    assert body["ok"] is False
    assert body["steps"][0]["detail"] == "the name does not resolve"
    assert [each.reason for each in stage.reports] == ["check provider: failed; failed_step: connection"]


@pytest.mark.parametrize(
    ("provider", "body", "status", "code"),
    [
        ("absent", {}, 404, "provider_not_found"),
        ("studio", {"model": "studio/none"}, 404, "model_not_found"),
        ("studio", {"model": "gateway/chat-1"}, 400, "invalid_parameter"),
        ("studio", {"input": {}}, 400, "invalid_parameter"),
        ("studio", {"model": "studio/image-1", "input": {"width": "wide"}}, 400, "invalid_input"),
    ],
)
async def test_what_cannot_be_checked_is_refused(
    stage: Stage, provider: str, body: dict[str, Any], status: int, code: str
) -> None:
    refused(await check(stage, provider, **body), status, code)
    assert checks_of(stage).runs == []


async def test_a_cost_must_be_accepted_first(stage: Stage) -> None:
    checks_of(stage).charging["studio"] = True
    error = refused(await check(stage), 409, "cost_not_accepted")
    assert "studio charges for a job of studio/" in error["message"]
    assert checks_of(stage).runs == []
    body = (await check(stage, accept_cost=True)).json()
    assert (body["charges"], len(checks_of(stage).runs)) == (True, 1)


def callback_path(stage: Stage, provider: str = "studio", check_id: str = "check_1") -> str:
    key = stage.deps.settings.derived_key(PURPOSE)
    return hook_address("/v2/callback", key, provider, check_id, 1)


async def send(stage: Stage, path: str, *, secret: str = SECRET) -> httpx2.Response:
    body = {"event_id": "evt_1", "request_id": "check_1", "attempt": 1, "status": "succeeded"}
    raw = msgspec.json.encode(body)
    signature = sign(secret, raw, at=int(stage.now.timestamp()), key_name="studio")
    headers = {"Content-Type": "application/json", "X-Callback-Signature": signature}
    return await stage.call("POST", path, content=raw, headers=headers)


async def test_a_callback_about_a_check_is_recorded_and_no_task_is_asked(stage: Stage) -> None:
    response = await send(stage, callback_path(stage))
    assert response.status_code == 200
    assert response.json() == {"check_id": "check_1"}
    [(check_id, update, refused)] = checks_of(stage).recorded
    assert update is not None
    assert (check_id, update.status, update.provider, refused) == ("check_1", "succeeded", "studio", None)
    assert stage.tasks.asked == []


async def test_a_refused_callback_is_recorded_by_the_seal_of_its_address(stage: Stage) -> None:
    response = await send(stage, callback_path(stage), secret="another-secret")
    refused(response, 401, "invalid_signature")
    assert checks_of(stage).recorded == [("check_1", None, "invalid_signature")]


@pytest.mark.parametrize("change", ["", "&request_id=check_2", "0"])
async def test_without_our_seal_a_refused_callback_is_not_recorded(stage: Stage, change: str) -> None:
    path = "/v2/callback" if not change else callback_path(stage) + change
    refused(await send(stage, path, secret="another-secret"), 401, "invalid_signature")
    assert checks_of(stage).recorded == []


async def test_a_seal_of_a_task_records_nothing(stage: Stage) -> None:
    path = callback_path(stage, check_id="task_1")
    refused(await send(stage, path, secret="another-secret"), 401, "invalid_signature")
    assert checks_of(stage).recorded == []
