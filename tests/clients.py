"""A client of the API with the words of a customer: over a socket to a service, or in process to an application."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple, TypeVar

import httpx2
import trio

T = TypeVar("T")
ENDED = frozenset({"succeeded", "failed", "canceled"})
IMAGE = {"prompt": "a lighthouse at dusk", "width": 256, "height": 256}


class Totals(NamedTuple):
    """An account's credit."""

    balance: Decimal
    held: Decimal
    available: Decimal


@dataclass
class Caller:
    """Requests of one account, over any transport of ``http``: a socket, or an application in this process."""

    http: httpx2.AsyncClient
    account_id: str = ""
    session: str = ""
    key: str = ""

    async def call(
        self,
        method: str,
        path: str,
        json: Any = None,
        *,
        credential: str = "",
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        **options: Any,
    ) -> httpx2.Response:
        """Send one request, with a credential and with an Idempotency-Key if given."""
        sent = {} if not credential else {"Authorization": f"Bearer {credential}"}
        if key is not None:
            sent["Idempotency-Key"] = key
        raw = [(name.encode(), value.encode("latin-1")) for name, value in {**sent, **(headers or {})}.items()]
        return await self.http.request(method, path, json=json, headers=raw, **options)

    async def as_key(self, method: str, path: str, json: Any = None, **options: Any) -> httpx2.Response:
        """Send one request with the API key."""
        return await self.call(method, path, json, credential=self.key, **options)

    async def as_session(self, method: str, path: str, json: Any = None, **options: Any) -> httpx2.Response:
        """Send one request with the session token."""
        return await self.call(method, path, json, credential=self.session, **options)


@dataclass
class Customer(Caller):
    """What a customer does. Its tasks are of ``model``."""

    model: str = "studio/image-1"
    email: str = field(default_factory=lambda: f"{secrets.token_hex(8)}@example.com")

    async def sign_in(self) -> None:
        """Sign in with the code that development shows, and create an API key."""
        sent = ok(await self.http.post("/v2/control/auth/otp", json={"email": self.email}))
        proof = {"email": self.email, "otp_id": sent["otp_id"], "otp": sent["debug_otp"]}
        verified = ok(await self.http.post("/v2/control/auth/verify", json=proof))
        self.account_id, self.session = verified["account_id"], verified["session"]["token"]
        created = ok(await self.as_session("POST", "/v2/control/api-keys", {}))
        self.key = created["api_key"]

    async def recharge(self, amount: str, *, key: str | None = None) -> None:
        """Add sandbox credit."""
        path = "/v2/control/sandbox/recharge"
        ok(await self.as_session("POST", path, {"amount": amount}, key=key))

    async def create(
        self, model: str | None = None, *, key: str | None = None, **wanted: object
    ) -> httpx2.Response:
        """Create a task for a small image, or with other input."""
        body = {"model": model or self.model, "input": {**IMAGE, **wanted}}
        return await self.as_key("POST", "/v2/task/create", body, key=key)

    async def task(self, request_id: str) -> dict[str, Any]:
        """Read one of the account's tasks."""
        return ok(await self.as_key("GET", f"/v2/task/{request_id}"))

    async def tasks(self) -> dict[str, dict[str, Any]]:
        """Read all the account's tasks, by id."""
        return {task["request_id"]: task for task in await every(partial(self.as_key, "GET"), "/v2/task/list")}

    async def statement(self) -> list[dict[str, Any]]:
        """Read all operations of the account, oldest first."""
        return (await every(partial(self.as_session, "GET"), "/v2/control/ledger"))[::-1]

    async def submitted(self, request_id: str) -> None:
        """Wait until the provider's acceptance of a task's job is stored."""

        async def is_submitted() -> bool:
            task = await self.task(request_id)
            return any(line["status"] == "submitted" for line in task["provider_progress"])

        await until(is_submitted)

    async def totals(self) -> Totals:
        """Read the account's credit."""
        account = ok(await self.as_session("GET", "/v2/control/account"))
        return Totals(*(Decimal(account[name]) for name in ("balance", "held_total", "available_balance")))

    async def all_ended(self, *, within_s: float = 120.0) -> dict[str, dict[str, Any]]:
        """Wait until all the account's tasks have ended, and return them."""

        async def ended() -> dict[str, dict[str, Any]] | None:
            tasks = await self.tasks()
            return tasks if all(task["status"] in ENDED for task in tasks.values()) else None

        return await until(ended, within_s=within_s)


async def every(read: Callable[[str], Awaitable[httpx2.Response]], path: str) -> list[dict[str, Any]]:
    """Read all pages of a list."""
    found: list[dict[str, Any]] = []
    query = "?limit=100"
    while query:
        page = ok(await read(path + query))
        found += page["data"]
        query = f"?limit=100&cursor={page['next_cursor']}" if page["next_cursor"] else ""
    return found


def loopback_client(**options: Any) -> httpx2.AsyncClient:
    """Return a client for plain HTTP, without CA certificates, whose loading takes longer than the requests."""
    return httpx2.AsyncClient(verify=False, **options)


def ok(response: httpx2.Response) -> dict[str, Any]:
    """Return the body of a response that must be a success."""
    assert response.status_code == 200, f"{response.request.url.path}: {response.status_code} {response.text}"
    body: dict[str, Any] = response.json()
    return body


def refused(response: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    """Check that a response is this refusal in the one error format; its ``error`` object."""
    assert (response.status_code, code_of(response)) == (status, code), response.text
    assert response.headers["Content-Type"] == "application/json"
    error: dict[str, Any] = response.json()["error"]
    assert {"message", "type", "code", "param", "request_id"} <= set(error)
    assert error["request_id"] == response.headers["X-Request-Id"]
    return error


def code_of(response: httpx2.Response) -> str:
    """Return the error code of a response that must be an error."""
    assert response.status_code >= 400, response.text
    return str(response.json()["error"]["code"])


async def until(find: Callable[[], Awaitable[T | None]], *, within_s: float = 60.0) -> T:
    """Poll ``find`` until it returns a true value, and return that."""
    with trio.fail_after(within_s):
        while True:
            found = await find()
            if found:
                return found
            await trio.sleep(0.05)
