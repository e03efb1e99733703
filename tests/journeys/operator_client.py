"""A client of operators' endpoints."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import httpx2
import trio
from tests.clients import Customer, every, loopback_client, until

from .service_process import Service


async def command(service: Service, *words: str) -> list[str]:
    """Run a command that calls the service, and return the lines that it prints."""
    name, *options = words
    done = await trio.run_process(
        [sys.executable, "-m", "holdfast", name, "--url", service.url, *options],
        env=service.environment,
        capture_stdout=True,
        stderr=subprocess.STDOUT,
    )
    return done.stdout.decode().splitlines()


class Operator:
    """A client with the operators' token of a service."""

    def __init__(self, service: Service) -> None:
        token = (service.data_dir / "secrets" / "operator_token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        self.http = loopback_client(base_url=service.url, timeout=60, headers=headers)

    async def case_of(self, customer: Customer) -> dict[str, Any]:
        """Wait for the open review of a customer's task."""

        async def opened() -> dict[str, Any] | None:
            cases = await every(self.http.get, "/ops/api/reviews")
            mine = [each for each in cases if each["account_id"] == customer.account_id]
            return mine[0] if mine else None

        return await until(opened)

    async def say(self, case: dict[str, Any], word: str, note: str | None = None) -> httpx2.Response:
        """Approve or reject a review."""
        path = f"/ops/api/reviews/{case['review_case_id']}/{word}"
        return await self.http.post(path, **({} if note is None else {"json": {"note": note}}))  # type: ignore[arg-type]  # a body or none

    async def act(self, path: str, key: str | None = None, **body: object) -> httpx2.Response:
        """Post an action with a reason, and with an Idempotency-Key if it needs one."""
        headers = {} if key is None else {"Idempotency-Key": key}
        return await self.http.post(f"/ops/api/{path}", json={"reason": "a test", **body}, headers=headers)
