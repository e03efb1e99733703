"""A client under load that records every response and compares them with the service afterwards."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import httpx2
import trio
from tests.clients import ENDED, Customer, Totals, ok, until

PATIENCE_S = 0.25
"""How long a client waits after a lost response or a 503."""


@dataclass
class Witness:
    """Creates and cancels tasks, and records every response.

    ``keys`` are all Idempotency-Keys ever sent, ``created`` the tasks that were answered, by key; ``ends`` the
    final states that were answered, by task; ``turned_away`` the answers of 500 and above. ``pause_s`` is the time
    between a worker's requests.
    """

    customer: Customer
    seed: int
    keys: list[str] = field(default_factory=list)
    created: dict[str, dict[str, Any]] = field(default_factory=dict)
    ends: dict[str, str] = field(default_factory=dict)
    turned_away: list[httpx2.Response] = field(default_factory=list)
    answered: int = 0
    is_stopping: bool = False
    pause_s: float = 0.0
    _numbers: Any = field(default_factory=itertools.count)

    async def work(self) -> None:
        """Create tasks, read them and cancel some, until stopped. A lost response is not recorded."""
        rng = random.Random(self.seed + next(self._numbers))
        while not self.is_stopping:
            key = f"key-{next(self._numbers)}"
            self.keys.append(key)
            request_id = await self._create(key)
            if request_id is not None and rng.random() < 0.4:
                await self._note("POST", f"/v2/task/{request_id}/cancel")
            elif self.created:
                known = rng.choice(list(self.created.values()))
                await self._note("GET", f"/v2/task/{known['request_id']}")
            await trio.sleep(PATIENCE_S if request_id is None else self.pause_s)

    async def answers(self, more: int, *, within_s: float = 120.0) -> None:
        """Wait for so many more answers."""
        wanted = self.answered + more

        async def enough() -> bool:
            return self.answered >= wanted

        await until(enough, within_s=within_s)

    async def hold_to_it(self, *, may_add: bool = False) -> None:
        """Check that answered requests had their effect and unanswered ones can be repeated.

        ``may_add``: a later release answers, with the same values and perhaps more fields.
        """
        for key in self.keys:
            answer = await self._repeat(key)
            body = ok(answer)
            if key in self.created:
                first = self.created[key]
                assert {name: body[name] for name in (first if may_add else body)} == first
                assert answer.headers["Idempotent-Replayed"] == "true"
            self.created[key] = body
        tasks = await self.customer.tasks()
        request_ids = {body["request_id"] for body in self.created.values()}
        assert len(request_ids) == len(self.keys)
        assert set(tasks) == request_ids
        for request_id, status in self.ends.items():
            assert tasks[request_id]["status"] == status

    async def _repeat(self, key: str) -> httpx2.Response:
        """Repeat a request, waiting as Retry-After says."""

        async def answered() -> httpx2.Response | None:
            answer = await self.customer.create(key=key)
            return None if answer.status_code == 503 else answer

        return await until(answered)

    async def settle(self, credit: Decimal, *, within_s: float = 180.0) -> dict[str, dict[str, Any]]:
        """Wait for all tasks to end, and check that the credit went down by what they cost."""
        tasks = await self.customer.all_ended(within_s=within_s)
        for request_id, status in self.ends.items():
            assert tasks[request_id]["status"] == status
        spent = sum(
            (Decimal(task["usage"]["cost_credits"]) for task in tasks.values()),
            start=Decimal(0),
        )
        assert await self.customer.totals() == Totals(credit - spent, Decimal(0), credit - spent)
        succeeded = [task for task in tasks.values() if task["status"] == "succeeded"]
        assert all(task["hosting"]["final_url_ready"] for task in succeeded)
        for task in succeeded[:10]:
            found = await self.customer.http.get(task["output"][0]["url"])
            assert found.status_code == 200
        return tasks

    async def _create(self, key: str) -> str | None:
        try:
            answer = await self.customer.create(key=key)
        except httpx2.TransportError:
            return None
        if not self._was_served(answer):
            return None
        self.created[key] = ok(answer)
        request_id: str = self.created[key]["request_id"]
        return request_id

    async def _note(self, method: str, path: str) -> None:
        try:
            answer = await self.customer.as_key(method, path)
        except httpx2.TransportError:
            return
        if answer.status_code == 409:
            assert answer.json()["error"]["code"] == "task_already_terminal"
        elif self._was_served(answer):
            task = ok(answer)
            if task["status"] in ENDED:
                assert self.ends.setdefault(task["request_id"], task["status"]) == task["status"]

    def _was_served(self, answer: httpx2.Response) -> bool:
        if answer.status_code >= 500:
            self.turned_away.append(answer)
            return False
        self.answered += 1
        return True
