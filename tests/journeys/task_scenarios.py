"""One task at the scripted provider, with the steps that advance it and the checks of its state."""

from __future__ import annotations

import json
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, TypeAlias

import httpx2
import psycopg
import trio
from tests.clients import ENDED, Customer, Totals, ok, until

from .conftest import NewCustomer
from .scripted_provider import IMAGE, Answer, Script, ScriptedProvider, signed
from .service_process import OPERATOR_TOKEN, Service

CREDIT = "10.00"
PAID = ("queued", "processing", "succeeded")
"""The statuses of a successful task."""

Scenario: TypeAlias = Callable[["TaskRun"], Awaitable[None]]


@dataclass
class TaskRun:
    """A customer with 10.00 of credit and, once created, a task."""

    name: str
    service: Service
    provider: ScriptedProvider
    customer: Customer
    request_id: str = ""
    hold: Decimal = Decimal(0)
    updates_sent: int = 0
    gates: list[threading.Event] = field(default_factory=list)

    @property
    def job(self) -> str:
        """The provider's job id of the first attempt."""
        return f"{self.request_id}.1"

    @property
    def calls(self) -> list[str]:
        """The requests the provider received for the first attempt."""
        return self.provider.calls[self.job]

    def file(self, name: str = "a.png", answer: Answer | None = None) -> str:
        """Return the URL of a file of this scenario."""
        return self.provider.file(f"{self.name}/{name}", answer)

    async def create(self, model: str = IMAGE, script: Script | None = None, **wanted: object) -> None:
        """Create the task; its estimate is held."""
        self.provider.scripts[self.name] = script or Script()
        body = {"model": model, "input": {"prompt": self.name, **wanted}}
        created = ok(await self.customer.as_key("POST", "/v2/task/create", body))
        assert created["status"] == "queued"
        self.request_id = created["request_id"]
        self.hold = Decimal(created["estimated_cost"]["credits"])

    async def wait_submitted(self) -> None:
        """Wait until the provider has accepted the job."""
        await self.until(lambda task: any(line["status"] == "submitted" for line in task["provider_progress"]))

    async def start_processing(self) -> None:
        """Let the provider accept the job and report progress."""
        await self.wait_submitted()
        assert (await self.send_update("processing", percent=10))["status"] == "processing"

    async def send_update(self, status: str, **fields: object) -> dict[str, Any]:
        """Send a signed callback and return the task from the response."""
        return ok(await self.post(self.update_body(status, **fields)))

    def update_body(self, status: str, **fields: object) -> bytes:
        """Return the body of a callback with the next sequence number, unless ``fields`` say otherwise."""
        self.updates_sent += 1
        body = {
            "event_id": f"evt_{self.updates_sent}",
            "request_id": self.request_id,
            "attempt": 1,
            "status": status,
            "sequence": self.updates_sent,
            **fields,
        }
        return json.dumps(body).encode()

    async def post(self, body: bytes, headers: dict[str, str] | None = None) -> httpx2.Response:
        """Send a callback with this body, signed by the provider unless ``headers`` are given."""
        headers = signed(body) if headers is None else headers
        return await self.customer.http.post("/v2/callback", content=body, headers=headers)

    async def report_success(self, *outputs: str, **fields: object) -> dict[str, Any]:
        """Report success, with outputs at these URLs."""
        return await self.send_update("succeeded", outputs=[{"url": url} for url in outputs], **fields)

    async def cancel(self) -> httpx2.Response:
        """Cancel the task as the customer."""
        return await self.customer.as_key("POST", f"/v2/task/{self.request_id}/cancel")

    async def decide_review(self, decision: str) -> httpx2.Response:
        """Decide the review as an operator."""
        case_id = (await self.task())["review_case_id"]
        headers = {"Authorization": f"Bearer {OPERATOR_TOKEN}"}
        return await self.customer.http.post(f"/ops/api/reviews/{case_id}/{decision}", json={}, headers=headers)

    async def task(self) -> dict[str, Any]:
        """Read the task as its owner."""
        return await self.customer.task(self.request_id)

    async def until(self, found: Callable[[dict[str, Any]], bool], *, within_s: float = 60) -> dict[str, Any]:
        """Wait until ``found`` is true of the task, and return it."""

        async def look() -> dict[str, Any] | None:
            task = await self.task()
            return task if found(task) else None

        try:
            return await until(look, within_s=within_s)
        except trio.TooSlowError:
            raise AssertionError(f"{self.name}: still {await self.task()}") from None

    async def wait_for(self, status: str, *, within_s: float = 60) -> dict[str, Any]:
        """Wait for a status and return the task; it may not end with another one."""
        task = await self.until(lambda task: task["status"] in {status, *ENDED}, within_s=within_s)
        assert task["status"] == status, task
        return task

    async def check(
        self, *path: str, cost: str = "0.00", units: int = 0, error: str | None = None, hosting: str = "pending"
    ) -> dict[str, Any]:
        """Check that task, credit, usage log and statement agree, and return the task.

        ``path`` are its statuses so far, the current one last; ``error`` is the beginning of its error.
        """
        task, charged = await self.task(), Decimal(cost)
        status = path[-1]
        assert task["status"] == status, task
        is_over = status in ENDED
        held = Decimal(0) if is_over else self.hold
        balance = Decimal(CREDIT) - charged
        assert await self.customer.totals() == Totals(balance, held, balance - held)

        page = ok(await self.customer.as_session("GET", "/v2/usage/logs?limit=100"))
        [entry] = [each for each in page["data"] if each["request_id"] == self.request_id]
        history = entry["status_history"]
        assert (entry["status"], [change["status"] for change in history]) == (status, list(path))
        assert [Decimal(change["cost_credits"]) for change in history[:-1]] == [Decimal(0)] * (len(path) - 1)
        assert Decimal(history[-1]["cost_credits"]) == Decimal(entry["cost_credits"]) == charged
        assert (entry["billable_units"], entry["error"]) == (units, task["error"])
        assert (entry["latency_ms"] is not None, entry["operation_id"] is not None) == (is_over, is_over)

        statement = ok(await self.customer.as_session("GET", "/v2/control/ledger?limit=100"))["data"]
        moves = [each["kind"] for each in reversed(statement) if each["kind"] != "credit"]
        ending = ([] if not is_over else ["capture"] if status == "succeeded" else ["release"]) if self.hold else []
        assert moves == ["hold", *ending]
        if is_over:
            assert statement[0]["operation_id"] == entry["operation_id"]
            usage = task["usage"]
            assert (Decimal(usage["cost_credits"]), usage["billable_units"]) == (charged, units)
            assert usage["total_ms"] == entry["latency_ms"] >= 0
        else:
            assert task["usage"] == {}
        assert (task["completed_at"] is not None) == (status in {"succeeded", "failed"})
        assert (task["canceled_at"] is not None) == (status == "canceled")

        assert (task["error"] or "").startswith(error or "\0" if error is not None else ""), task["error"]
        assert (task["error"] is None) == (error is None), task["error"]
        assert task["hosting"]["status"] == hosting, task["hosting"]
        assert task["hosting"]["final_url_ready"] == (status == "succeeded")
        assert (task["review_case_id"] is None) == ("review" not in path)
        if status != "succeeded":
            assert task["output"] == []
        percents = [line["percent"] for line in task["provider_progress"] if line["percent"] is not None]
        assert percents == sorted(percents)
        return task

    async def check_images(self, count: int) -> None:
        """Check that the output's links work."""
        output = (await self.task())["output"]
        assert [item["index"] for item in output] == list(range(count)) or len(output) == count
        for item in output:
            fetched = await self.customer.http.get(item["url"])
            assert (fetched.status_code, fetched.headers["Content-Type"]) == (200, item["content_type"])

    def last_progress(self, task: dict[str, Any], status: str) -> dict[str, Any]:
        """Return the newest progress entry of that status."""
        lines = [line for line in task["provider_progress"] if line["status"] == status]
        assert lines, task["provider_progress"]
        line: dict[str, Any] = lines[-1]
        return line


async def run_scenarios(
    scenarios: tuple[Scenario, ...], service: Service, provider: ScriptedProvider, new_customer: NewCustomer
) -> None:
    """Run all scenarios concurrently, each with its own customer; every failure names its scenario."""
    failures: list[Exception] = []

    async def run_one(scenario: Scenario) -> None:
        customer = await new_customer(service, credit=CREDIT, connections=20)
        run = TaskRun(f"{scenario.__module__.rpartition('.')[2]}.{scenario.__name__}", service, provider, customer)
        try:
            await scenario(run)
        except Exception as fault:
            fault.add_note(f"in the scenario {scenario.__name__}: {scenario.__doc__}")
            failures.append(fault)
        finally:
            for gate in run.gates:
                gate.set()

    async with trio.open_nursery() as nursery:
        for scenario in scenarios:
            nursery.start_soon(run_one, scenario)
    if failures:
        raise ExceptionGroup("scenarios that failed", failures)


def check_nothing_is_open(service: Service) -> None:
    """Check that no hold is open, the audit passes, and no fault was logged."""
    with psycopg.connect(service.database_url, autocommit=True) as connection:
        held = connection.execute("select coalesce(sum(held_micro), 0) from accounts").fetchone()
    assert held == (0,)
    assert service.audit() == []
    assert service.faults() == []
