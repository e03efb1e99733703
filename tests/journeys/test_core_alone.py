"""A service with the core alone does the interface's main job, and says what it lacks."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from tests.clients import Totals, ok, refused
from tests.hidden_distributions import BESIDE, hidden

from .conftest import NewCustomer, NewService
from .receiver import Receiver
from .scripted_provider import IMAGE, PICTURE, Script, ScriptedProvider
from .task_scenarios import CREDIT, TaskRun

LACKING = {
    "no APIs for OpenAI's and Replicate's clients, and for agents: holdfast-compat is not installed",
    "no pages for operators and accounts: holdfast-console is not installed",
}
ELSEWHERE = (
    ("POST", "/v1/images/generations"),
    ("POST", "/v1/videos"),
    ("POST", "/replicate/v1/predictions"),
    ("GET", "/replicate/v1/account"),
    ("GET", "/ops"),
    ("GET", "/ops/sign-in"),
)
"""What the distributions beside it serve."""


def totals(*amounts: str) -> Totals:
    return Totals(*map(Decimal, amounts))


async def test_the_core_alone_runs_tasks_and_says_what_it_lacks(
    tmp_path: Path, new_service: NewService, scripted: ScriptedProvider, new_customer: NewCustomer
) -> None:
    service = new_service(CATALOG=str(scripted.write_catalog(tmp_path)))
    service.environment |= hidden(tmp_path, *BESIDE)
    service.start()
    assert {line["event"] for line in service.log_lines()} >= LACKING
    customer = await new_customer(service, credit=CREDIT)
    run = TaskRun("core-alone", service, scripted, customer)
    await run.create()
    assert await customer.totals() == totals("10", "1", "9")
    await run.wait_submitted()
    await run.report_success(run.file())
    task = await run.wait_for("succeeded")
    assert await customer.totals() == totals("9", "0", "9")
    assert (await customer.http.get(task["output"][0]["url"])).content == PICTURE
    await run.create()
    ok(await run.cancel())
    assert await customer.totals() == totals("9", "0", "9")

    for method, path in ELSEWHERE:
        refused(await customer.as_key(method, path, {} if method == "POST" else None), 404, "route_not_found")
    paths = ok(await customer.http.get("/openapi.json"))["paths"]
    assert "/v2/task/create" in paths
    assert {path for path in paths if path.startswith(("/v1/", "/replicate/"))} == {
        "/v1/models", "/v1/models/{model_id}"
    }  # fmt: skip
    assert (await customer.http.get("/docs")).status_code == 200
    assert service.faults() == []
    assert service.audit() == []
    assert service.stop() == 0


@pytest.mark.slow
async def test_a_prediction_is_sent_as_an_event_once_its_api_was_removed(
    tmp_path: Path,
    new_service: NewService,
    scripted: ScriptedProvider,
    endpoint: Receiver,
    new_customer: NewCustomer,
) -> None:
    service = new_service(CATALOG=str(scripted.write_catalog(tmp_path)))
    service.start()
    customer = await new_customer(service, credit=CREDIT)
    run = TaskRun("removed-api", service, scripted, customer)
    scripted.scripts[run.name] = Script()
    wanted = {"version": IMAGE, "input": {"prompt": run.name}, "webhook": f"{endpoint.url}/removed"}
    created = await customer.as_key("POST", "/replicate/v1/predictions", wanted)
    assert created.status_code == 201, created.text
    run.request_id = created.json()["id"]
    await run.wait_submitted()
    assert service.stop() == 0

    service.environment |= hidden(tmp_path, "holdfast_compat")
    service.start()
    await run.report_success(run.file())
    [post] = await endpoint.wait("/removed", 1, "task.succeeded")
    assert post.event["data"]["request_id"] == run.request_id
    assert service.faults() == []
