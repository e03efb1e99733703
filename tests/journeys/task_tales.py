"""One task under way at the scripted provider, with the buttons that move it and the checks of where it stands."""

from __future__ import annotations

import json
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, TypeAlias

import httpx
import psycopg
import trio

from .conftest import NewCustomer
from .house import ENDED, OPERATOR_TOKEN, Customer, Service, Totals, ok, until
from .scripted_provider import IMAGE, Answer, Script, ScriptedProvider, signed

CREDIT = "10.00"
PAID = ("queued", "processing", "succeeded")
"""What a task has been that went well."""

Story: TypeAlias = Callable[["Tale"], Awaitable[None]]


@dataclass
class Tale:
    """A customer with 10.00 and, once it has begun, a task."""

    name: str
    service: Service
    provider: ScriptedProvider
    customer: Customer
    request_id: str = ""
    hold: Decimal = Decimal(0)
    told: int = 0
    gates: list[threading.Event] = field(default_factory=list)

    @property
    def job(self) -> str:
        """The provider's name of the first attempt."""
        return f"{self.request_id}.1"

    @property
    def calls(self) -> list[str]:
        """What the provider was asked about the first attempt."""
        return self.provider.calls[self.job]

    def file(self, name: str = "a.png", answer: Answer | None = None) -> str:
        """The URL of a file of this story's own."""
        return self.provider.file(f"{self.name}/{name}", answer)

    async def begins(self, model: str = IMAGE, script: Script | None = None, **wanted: object) -> None:
        """Create the task. It is queued and what it may cost is held, or it is already further."""
        self.provider.scripts[self.name] = script or Script()
        body = {"model": model, "input": {"prompt": self.name, **wanted}}
        created = ok(await self.customer.call("POST", "/v2/task/create", body))
        assert created["status"] == "queued"
        self.request_id = created["request_id"]
        self.hold = Decimal(created["estimated_cost"]["credits"])

    async def is_taken(self) -> None:
        """Wait until the provider is known to have the job."""
        await self.until(lambda task: any(line["status"] == "submitted" for line in task["provider_progress"]))

    async def runs(self) -> None:
        """The provider has the job and is at work on it."""
        await self.is_taken()
        assert (await self.hears("processing", percent=10))["status"] == "processing"

    async def hears(self, status: str, **fields: object) -> dict[str, Any]:
        """The provider's signed word, answered with the task as it then stands."""
        return ok(await self.post(self.news(status, **fields)))

    def news(self, status: str, **fields: object) -> bytes:
        """The body of a callback, each with the next number unless told otherwise."""
        self.told += 1
        body = {
            "event_id": f"evt_{self.told}",
            "request_id": self.request_id,
            "attempt": 1,
            "status": status,
            "sequence": self.told,
            **fields,
        }
        return json.dumps(body).encode()

    async def post(self, body: bytes, headers: dict[str, str] | None = None) -> httpx.Response:
        """Call back with this body, signed by the provider unless told otherwise."""
        headers = signed(body) if headers is None else headers
        return await self.customer.http.post("/v2/callback", content=body, headers=headers)

    async def succeeds(self, *outputs: str, **fields: object) -> dict[str, Any]:
        """The provider's word that the job is done, with outputs to be fetched at these URLs."""
        return await self.hears("succeeded", outputs=[{"url": url} for url in outputs], **fields)

    async def cancels(self) -> httpx.Response:
        """The customer cancels."""
        return await self.customer.call("POST", f"/v2/task/{self.request_id}/cancel")

    async def reviewed(self, decision: str) -> httpx.Response:
        """An operator decides the review."""
        case_id = (await self.task())["review_case_id"]
        headers = {"Authorization": f"Bearer {OPERATOR_TOKEN}"}
        return await self.customer.http.post(f"/ops/reviews/{case_id}/{decision}", json={}, headers=headers)

    async def task(self) -> dict[str, Any]:
        """The task as its owner reads it."""
        return await self.customer.task(self.request_id)

    async def until(self, found: Callable[[dict[str, Any]], bool], *, within_s: float = 60) -> dict[str, Any]:
        """The task, once it is so."""

        async def look() -> dict[str, Any] | None:
            task = await self.task()
            return task if found(task) else None

        try:
            return await until(look, within_s=within_s)
        except trio.TooSlowError:
            raise AssertionError(f"{self.name}: still {await self.task()}") from None

    async def becomes(self, status: str, *, within_s: float = 60) -> dict[str, Any]:
        """The task, once it has that status. It may not end with another."""
        task = await self.until(lambda task: task["status"] in {status, *ENDED}, within_s=within_s)
        assert task["status"] == status, task
        return task

    async def stands(
        self, *path: str, cost: str = "0.00", units: int = 0, error: str | None = None, hosting: str = "pending"
    ) -> dict[str, Any]:
        """Everything that is told of the task agrees.

        ``path`` are the statuses it has had, the last one being the present one; ``error`` is how its error begins.
        """
        task, charged = await self.task(), Decimal(cost)
        status = path[-1]
        assert task["status"] == status, task
        is_over = status in ENDED
        held = Decimal(0) if is_over else self.hold
        balance = Decimal(CREDIT) - charged
        assert await self.customer.totals() == Totals(balance, held, balance - held)

        page = ok(await self.customer.call("GET", "/v2/usage/logs?limit=100", as_session=True))
        [entry] = [each for each in page["data"] if each["request_id"] == self.request_id]
        history = entry["status_history"]
        assert (entry["status"], [change["status"] for change in history]) == (status, list(path))
        assert [Decimal(change["cost_credits"]) for change in history[:-1]] == [Decimal(0)] * (len(path) - 1)
        assert Decimal(history[-1]["cost_credits"]) == Decimal(entry["cost_credits"]) == charged
        assert (entry["billable_units"], entry["error"]) == (units, task["error"])
        assert (entry["latency_ms"] is not None, entry["operation_id"] is not None) == (is_over, is_over)

        statement = ok(await self.customer.call("GET", "/v2/control/ledger?limit=100", as_session=True))["data"]
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

    async def shows_pictures(self, count: int) -> None:
        """The links in the output work."""
        output = (await self.task())["output"]
        assert [item["index"] for item in output] == list(range(count)) or len(output) == count
        for item in output:
            fetched = await self.customer.http.get(item["url"])
            assert (fetched.status_code, fetched.headers["Content-Type"]) == (200, item["content_type"])

    def last_line(self, task: dict[str, Any], status: str) -> dict[str, Any]:
        """The newest line of progress of that status."""
        lines = [line for line in task["provider_progress"] if line["status"] == status]
        assert lines, task["provider_progress"]
        line: dict[str, Any] = lines[-1]
        return line


async def tell_all(
    stories: tuple[Story, ...], service: Service, provider: ScriptedProvider, new_customer: NewCustomer
) -> None:
    """Have all stories happen side by side, each to a customer of its own; every failure names its story."""
    failures: list[Exception] = []

    async def tell(story: Story) -> None:
        customer = await new_customer(service, credit=CREDIT, connections=20)
        tale = Tale(f"{story.__module__.rpartition('.')[2]}.{story.__name__}", service, provider, customer)
        try:
            await story(tale)
        except Exception as fault:
            fault.add_note(f"in the story {story.__name__}: {story.__doc__}")
            failures.append(fault)
        finally:
            for gate in tale.gates:
                gate.set()

    async with trio.open_nursery() as nursery:
        for story in stories:
            nursery.start_soon(tell, story)
    if failures:
        raise ExceptionGroup("stories that came out otherwise", failures)


def nothing_is_left_open(service: Service) -> None:
    """No hold is open, the audit is clean, and nothing unexpected was logged."""
    with psycopg.connect(service.database_url, autocommit=True) as connection:
        held = connection.execute("select coalesce(sum(held_micro), 0) from accounts").fetchone()
    assert held == (0,)
    assert service.audit() == []
    assert service.faults() == []
