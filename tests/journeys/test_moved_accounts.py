"""An account that was moved to another cell is served as before, at whichever cell its requests arrive."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from html import unescape
from itertools import count
from typing import Any, TypeAlias

import httpx2
import pytest
import standardwebhooks
import trio
from tests.clients import Customer, code_of, loopback_client, ok, refused, until
from tests.event_streams import reading
from tests.tools import needs

from holdfast.commands.move_account import EndOfMove, move_account
from holdfast.ledger.values import place_of
from holdfast.settings.settings import load_settings

from .card_provider import CardProviderProcess, Payer
from .quiet_provider import MODEL, QuietProvider, quiet_provider, signed
from .receiver import Receiver
from .running_cells import Ranges, RunningCells, running_cells
from .test_payments import call_back, sandbox_order

pytestmark = [needs("haproxy"), pytest.mark.slow]

TWO = (Ranges("000-7ff"), Ranges("800-fff"))
KEYS = "/v2/control/api-keys"
SECRET = "/v2/control/webhook-secret"
WEBHOOKS = "/v2/control/webhooks"
NUMBERS = count()

Doors: TypeAlias = list[httpx2.AsyncClient]
"""Clients of HAProxy, of the cell that an account leaves, and of the one that it moves to."""


@pytest.fixture(scope="module")
def provider() -> Iterator[QuietProvider]:
    """A provider of these cells alone."""
    with quiet_provider() as found:
        yield found


@pytest.fixture(scope="module")
def cells(
    provider: QuietProvider, card_provider: CardProviderProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningCells]:
    """Two cells that run."""
    catalog = provider.write_catalog(tmp_path_factory.mktemp("catalog"))
    with running_cells(catalog, TWO, card_provider.settings()) as found:
        # Events of the card provider arrive at the cell that the accounts leave.
        card_provider.serve(found.services[0])
        yield found
        assert [each.faults() + each.audit() for each in found.services] == [[], []]


@pytest.fixture
async def doors(cells: RunningCells) -> AsyncIterator[Doors]:
    """Clients of HAProxy and of both cells."""
    urls = [cells.proxy.url, *(f"http://{cells.address_of(number)}" for number in (1, 2))]
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(loopback_client(base_url=url, timeout=60)) for url in urls]


@pytest.fixture
async def ada(cells: RunningCells, doors: Doors) -> Customer:
    """A customer with credit, whose account is in the first cell, through HAProxy."""
    for number in (1, 2):
        await cells.is_mapped(number)
    emails = (f"ada-{number}@example.com" for number in NUMBERS)
    customer = Customer(doors[0], model=MODEL, email=next(each for each in emails if place_of(each) < 0x800))
    await customer.sign_in()
    await customer.recharge("100.00")
    return customer


async def move(cells: RunningCells, account_id: str) -> None:
    """Move an account from the first cell to the second."""
    ends = [EndOfMove(load_settings(each.environment), each.database_url) for each in cells.services]
    said: list[str] = []
    await trio.to_thread.run_sync(lambda: move_account(account_id, *ends, say=said.append))
    assert said[-1] == f"{account_id} is in cell 2"


def path_of(link: str) -> str:
    """Return the path of a link, with its query."""
    return httpx2.URL(link).raw_path.decode()


async def succeed(request_id: str, provider: QuietProvider, at: httpx2.AsyncClient) -> None:
    """Have the provider deliver a task's picture to a cell."""
    body = provider.success(request_id, event_id="evt_1", sequence=1)
    ok(await at.post("/v2/callback", content=body, headers=signed(body)))


async def hosted(customer: Customer, request_id: str) -> str:
    """Wait until a task's picture is stored, and return the path of its link."""

    async def found() -> str | None:
        output = (await customer.task(request_id))["output"]
        return output[0]["url"] if output else None

    return path_of(await until(found))


async def archived(customer: Customer) -> str:
    """Have an archive of the account made, and return the path of its link."""

    async def is_made() -> str | None:
        url: str | None = ok(await customer.as_session("GET", "/v2/control/archive"))["url"]
        return url

    ok(await customer.as_session("POST", "/v2/control/archive"))
    return path_of(await until(is_made))


async def test_results_files_and_archives_are_served_at_every_cell(
    cells: RunningCells, doors: Doors, ada: Customer, provider: QuietProvider
) -> None:
    task = ok(await ada.create())["request_id"]
    await ada.submitted(task)
    await succeed(task, provider, doors[2])
    file = ok(await ada.as_key("POST", "/v2/files", files={"file": ("note.txt", b"0123456789")}))
    links = [await hosted(ada, task), path_of(file["url"]), await archived(ada)]
    contents = [(await ada.http.get(link)).content for link in links]
    for has_moved in (False, True):
        if has_moved:
            await move(cells, ada.account_id)
        for door in doors:
            for link, content in zip(links, contents, strict=True):
                whole = await door.get(link)
                assert (whole.status_code, whole.content) == (200, content), whole.text
                part = await door.get(link, headers={"Range": "bytes=2-4"})
                assert (part.status_code, part.content) == (206, content[2:5])
                assert part.headers["Content-Range"] == f"bytes 2-4/{len(content)}"
                head = await door.head(link)
                assert (head.status_code, head.headers["Content-Length"]) == (200, str(len(content)))
                cached = await door.get(link, headers={"If-None-Match": whole.headers["ETag"]})
                assert (cached.status_code, cached.content) == (304, b"")
                beyond = await door.get(link, headers={"Range": "bytes=9999999-"})
                refused(beyond, 416, "range_not_satisfiable")
    # What is uploaded now is in the new cell, and what is deleted is nowhere.
    for door in doors:
        at = replace(ada, http=door)
        for sent in ({"files": {"file": ("b.txt", b"b" * 300_000)}}, {"content": b"b" * 300_000}):
            added = ok(await at.as_key("POST", "/v2/files", **sent))
            assert {(await each.get(path_of(added["url"]))).content for each in doors} == {b"b" * 300_000}
            ok(await at.as_key("DELETE", f"/v2/files/{added['file_id']}"))
            for each in doors:
                refused(await each.get(path_of(added["url"])), 410, "asset_expired")


def field_of(page: str, name: str) -> str:
    """Return the value of the first field of a name on a page."""
    found = re.search(rf'name="{name}" value="([^"]*)"', page)
    assert found is not None, page
    return unescape(found[1])


class Browser:
    """A browser that keeps its cookies and follows a form's redirect, at one door."""

    def __init__(self, cells: RunningCells, door: httpx2.AsyncClient, session: str = "") -> None:
        self._origin = cells.proxy.url
        self._door = door
        self.cookies = {"holdfast_account": session} if session else {}

    async def get(self, path: str, *, status: int = 200) -> httpx2.Response:
        """Open a page."""
        return await self._send("GET", path, status)

    async def post(self, path: str, form: Mapping[str, str], *, status: int = 303) -> httpx2.Response:
        """Send a form."""
        return await self._send("POST", path, status, data=form)

    async def _send(self, method: str, path: str, status: int, **sent: Any) -> httpx2.Response:
        cookies = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        headers = {"Accept": "text/html", "Origin": self._origin, "Cookie": cookies}
        answer = await self._door.request(method, path, headers=headers, **sent)
        assert answer.status_code == status, answer.text
        for each in answer.headers.get_list("Set-Cookie"):
            name, _, value = each.partition(";")[0].partition("=")
            self.cookies[name] = value
        self._door.cookies.clear()
        return answer


async def test_the_accounts_own_pages_are_served_at_every_cell(
    cells: RunningCells, doors: Doors, ada: Customer
) -> None:
    await move(cells, ada.account_id)
    for number, door in enumerate(doors):
        browser = Browser(cells, door, ada.session)
        assert ada.email in (await browser.get("/account")).text
        # Who is signed in goes on from the sign-in.
        assert (await browser.get("/account/sign-in", status=303)).headers["Location"] == "/account"
        page = (await browser.get("/account/keys")).text
        form = {"csrf_token": field_of(page, "csrf_token"), "return_to": "/account/keys"}
        terms = {"name": f"shop {number}", "scope.tasks:read": "on", "scope.tasks:write": "on"}
        made = await browser.post("/account/keys/create", {**form, **terms}, status=200)
        secret = re.search(r"hk_test_\w{38}", made.text)
        assert secret is not None
        ok(await replace(ada, http=door, key=secret[0]).create())
        assert f"shop {number}" in (await browser.get("/account/keys")).text
        for path in ("/account/tasks", "/account/usage", "/account/receipts", "/account/statement"):
            await browser.get(path)
        await browser.post("/account/sign-out", form)
        # Another session at the same door, by the address.
        browser = Browser(cells, door)
        assert (await browser.get("/account", status=303)).headers["Location"].startswith("/account/sign-in")
        address = {"email": ada.email, "return_to": "/account/keys"}
        sent = (await browser.post("/account/sign-in", address, status=200)).text
        code = re.search(r"<code>([0-9 ]+)</code>", sent)
        assert code is not None, sent
        proof = {**address, "otp_id": field_of(sent, "otp_id"), "otp": code[1]}
        signed_in = await browser.post("/account/sign-in", proof)
        assert signed_in.headers["Location"] == "/account/keys"
        ada.session = browser.cookies["holdfast_account"]
        assert f"shop {number}" in (await browser.get("/account/keys")).text
    assert len(await ada.tasks()) == len(doors)


async def follow(at: Customer, path: str, credential: str, wanted: set[str], started: trio.Semaphore) -> None:
    """Read a stream, and resume it whenever it ends, until it has said that the tasks have succeeded."""
    last: dict[str, Any] = {}
    succeeded: set[str] = set()
    base = str(at.http.base_url).rstrip("/")
    while True:
        async with reading(base, credential, path=path, **last) as stream:
            started.release()
            while (event := await stream.next()) is not None:
                if "id" in event.fields:
                    last = {"Last_Event_ID": event.fields["id"]}
                if event.fields["event"] == "task" and event.data["status"] == "succeeded":
                    succeeded.add(event.data["request_id"])
                if succeeded == wanted:
                    return
            assert stream.is_complete


async def test_streams_and_waits_from_before_the_move_miss_nothing(
    cells: RunningCells, doors: Doors, ada: Customer, provider: QuietProvider
) -> None:
    tasks = [ok(await ada.create())["request_id"] for _ in doors]
    for task in tasks:
        await ada.submitted(task)
    started = trio.Semaphore(0)
    waited: list[str] = []

    async def wait(at: Customer, task: str) -> None:
        started.release()
        waited.append(ok(await at.as_key("GET", f"/v2/task/{task}?wait=60"))["status"])

    async with trio.open_nursery() as nursery:
        for door, task in zip(doors, tasks, strict=True):
            at = replace(ada, http=door)
            nursery.start_soon(follow, at, f"/v2/task/{task}/stream", ada.key, {task}, started)
            nursery.start_soon(follow, at, "/v2/control/stream", ada.session, {*tasks}, started)
            nursery.start_soon(wait, at, task)
        for _ in range(3 * len(doors)):
            await started.acquire()
        await move(cells, ada.account_id)
        for task in tasks:
            await succeed(task, provider, doors[1])
    assert waited == ["succeeded"] * len(doors)


async def test_other_clients_that_wait_while_their_account_moves_get_their_tasks(
    cells: RunningCells, doors: Doors, ada: Customer, provider: QuietProvider
) -> None:
    at = replace(ada, http=doors[1])
    task = ok(await ada.create())["request_id"]
    image = {"model": MODEL, "prompt": "a lighthouse"}
    wait = {"name": "wait_for_task", "arguments": {"request_id": task, "wait_s": 50, "images": False}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": wait}
    answers: dict[str, httpx2.Response] = {}

    async def ask(name: str, path: str, body: object, headers: dict[str, str]) -> None:
        answers[name] = await at.as_key("POST", path, body, headers=headers)

    async def all_wait() -> bool:
        found = await ada.tasks()
        are_submitted = len(found) == 3 and all(each["provider_progress"] for each in found.values())
        return are_submitted and cells.services[0].metric("holdfast_http_waiting") == 4

    async with trio.open_nursery() as nursery:
        for name, path, body, headers in (
            ("image", "/v1/images/generations", image, {"X-Stainless-Retry-Count": "0"}),
            ("prediction", f"/replicate/v1/models/{MODEL}/predictions", {"input": {}}, {"Prefer": "wait"}),
            ("tool", "/mcp", message, {"Accept": "application/json"}),
            ("streamed tool", "/mcp", message, {"Accept": "application/json, text/event-stream"}),
        ):
            nursery.start_soon(ask, name, path, body, headers)
        await until(all_wait)
        await move(cells, ada.account_id)
        for each in await ada.tasks():
            await succeed(each, provider, doors[0])
    # Who may have created a task before is not sent on, and finds it by sending its request again.
    assert (answers["image"].status_code, code_of(answers["image"])) == (503, "temporarily_unavailable")
    again = ok(await at.as_key("POST", "/v1/images/generations", image, headers={"X-Stainless-Retry-Count": "1"}))
    assert (await at.http.get(path_of(again["data"][0]["url"]))).status_code == 200
    assert answers["prediction"].status_code == 201
    read = await at.as_key("GET", f"/replicate/v1/predictions/{answers['prediction'].json()['id']}")
    assert read.json()["status"] == "succeeded"
    assert ok(answers["tool"])["result"]["structuredContent"]["status"] == "succeeded"
    assert "account_moving" in answers["streamed tool"].text
    assert len(await ada.tasks()) == 3


async def test_keys_limits_quotes_and_repeated_requests_go_on_after_the_move(
    cells: RunningCells, doors: Doors, ada: Customer
) -> None:
    terms = {"scopes": ["tasks:read", "tasks:write", "keys:read", "keys:write"]}
    manager = replace(ada, key=ok(await ada.as_session("POST", KEYS, terms))["api_key"])
    limited = ok(await manager.as_key("POST", KEYS, {"limit": {"credits": "3.00", "window": "total"}}))
    shop = replace(ada, key=limited["api_key"])
    wanted = {"model": MODEL, "input": {"prompt": "a lighthouse"}}
    quotes = [ok(await ada.as_key("POST", "/v2/quote", wanted))["quote_id"] for _ in doors]
    first = ok(await shop.create(key="first"))
    recharge = partial(ada.as_session, "POST", "/v2/control/sandbox/recharge", {"amount": "5.00"}, key="more")
    credited = ok(await recharge())
    total = await ada.totals()
    await move(cells, ada.account_id)
    for number, (door, quote) in enumerate(zip(doors, quotes, strict=True)):
        owner, shop, manager = (replace(each, http=door) for each in (ada, shop, manager))
        again = await shop.create(key="first")
        assert (ok(again)["request_id"], again.headers["Idempotent-Replayed"]) == (first["request_id"], "true")
        refused(await shop.create(key="first", prompt="another"), 422, "idempotency_key_reused")
        repeated = await owner.as_session("POST", recharge.args[1], {"amount": "5.00"}, key="more")
        assert (ok(repeated), repeated.headers["Idempotent-Replayed"]) == (credited, "true")
        assert await owner.totals() == total
        quoted = ok(await owner.as_key("POST", "/v2/task/create", {**wanted, "quote_id": quote}))
        assert ok(await owner.as_key("POST", f"/v2/task/{quoted['request_id']}/cancel"))["status"] == "canceled"
        # What the key has spent before the move counts after it.
        created = await shop.create(key=f"after {number}")
        if number < 2:
            ok(created)
            total = await owner.totals()
        else:
            assert refused(created, 402, "key_limit_exceeded")["spent"] == "3.00"
        listed = {each["api_key_id"]: each for each in ok(await manager.as_key("GET", KEYS))["data"]}
        assert listed[limited["api_key_id"]]["spent"] == f"{min(number + 2, 3)}.00"
    path = f"{KEYS}/{limited['api_key_id']}"
    for door in doors:
        for paused in (True, False):
            assert (
                ok(await replace(manager, http=door).as_key("PATCH", path, {"paused": paused}))["paused"] is paused
            )
            for other in doors:
                found = await replace(shop, http=other).as_key("GET", "/v2/task/list")
                assert found.status_code == (401 if paused else 200), found.text


async def test_webhooks_are_signed_as_before_by_the_same_secret(
    cells: RunningCells, doors: Doors, ada: Customer, endpoint: Receiver
) -> None:
    created = ok(await ada.as_session("POST", WEBHOOKS, {"url": f"{endpoint.url}/ada", "events": ["*"]}))
    secret = ok(await ada.as_session("GET", SECRET))["secret"]
    before = ok(await ada.as_session("POST", f"{WEBHOOKS}/{created['webhook_id']}/test"))
    [sent] = await endpoint.wait("/ada", 1)
    assert standardwebhooks.Webhook(secret).verify(sent.body, sent.headers)["id"] == before["event_id"]
    await move(cells, ada.account_id)
    for number, door in enumerate(doors):
        at = replace(ada, http=door)
        assert ok(await at.as_session("GET", SECRET))["secret"] == secret
        event = ok(await at.as_session("POST", f"{WEBHOOKS}/{created['webhook_id']}/test"))
        *_, sent = await endpoint.wait("/ada", 2 + 2 * number)
        assert standardwebhooks.Webhook(secret).verify(sent.body, sent.headers)["id"] == event["event_id"]
        path = f"{WEBHOOKS}/{created['webhook_id']}/deliveries/{before['event_id']}/resend"
        ok(await at.as_session("POST", path))
        *_, sent = await endpoint.wait("/ada", 3 + 2 * number)
        assert sent.event_id == before["event_id"]
    rotated = ok(await replace(ada, http=doors[1]).as_session("POST", f"{SECRET}/rotate"))["secret"]
    ok(await replace(ada, http=doors[1]).as_session("POST", f"{WEBHOOKS}/{created['webhook_id']}/test"))
    *_, sent = await endpoint.wait("/ada", 2 + 2 * len(doors))
    for each in (secret, rotated):
        assert standardwebhooks.Webhook(each).verify(sent.body, sent.headers)
    assert {ok(await replace(ada, http=door).as_session("GET", SECRET))["secret"] for door in doors} == {rotated}


async def test_card_payments_receipts_and_statements_go_on_after_the_move(
    cells: RunningCells, doors: Doors, ada: Customer, card_provider: CardProviderProcess
) -> None:
    payer = Payer(ada, card_provider)
    paid = await payer.paid_order("10.00")
    ordered = await payer.order("7.00", key="seven")
    sandbox = [await sandbox_order(ada) for _ in doors]

    async def receipts(at: Customer) -> list[dict[str, Any]]:
        return list(ok(await at.as_session("GET", "/v2/control/receipts"))["data"])

    [receipt] = await until(partial(receipts, ada))
    pdf = (await ada.as_session("GET", f"/v2/control/receipts/{receipt['number']}/pdf")).content
    await move(cells, ada.account_id)
    # An order from before is paid, and a payment from before is refunded, of which events name the order or not.
    assert await payer.order("7.00", key="seven") == ordered
    await card_provider.act("payment_intents", ordered["provider_payment_id"], "pay")
    await payer.wait_for(ordered["order_id"], status="credited")
    charge = await card_provider.charge_of(paid["provider_payment_id"])
    await card_provider.act("charges", charge, "refund", amount=400)
    await payer.wait_for(paid["order_id"], reversal_status="partially_refunded")
    await card_provider.quiet(paid["provider_payment_id"])

    async def both() -> list[dict[str, Any]] | None:
        found = await receipts(ada)
        return found if len(found) == 3 else None

    numbers = {each["number"] for each in await until(both)}
    assert receipt["number"] in numbers
    for door, order in zip(doors, sandbox, strict=True):
        assert ok(await call_back(door, order))["status"] == "credited"
    operations = await ada.statement()
    for door in doors:
        at = replace(ada, http=door)
        assert {each["number"] for each in await receipts(at)} == numbers
        assert (await at.as_session("GET", f"/v2/control/receipts/{receipt['number']}")).json() == receipt
        again = await at.as_session("GET", f"/v2/control/receipts/{receipt['number']}/pdf")
        assert (again.headers["Content-Type"], again.content) == ("application/pdf", pdf)
        for path in ("/v2/control/receipts?format=csv", "/v2/usage/logs?format=csv"):
            file = await at.as_session("GET", path)
            assert (file.status_code, file.headers["Content-Type"]) == (200, "text/csv; charset=utf-8"), file.text
        assert (await at.as_session("GET", "/v2/control/statement")).status_code == 200
        assert await at.statement() == operations


async def keep(made: list[httpx2.Response], ask: Callable[[], Awaitable[httpx2.Response]]) -> None:
    made.append(await ask())


async def test_the_layers_for_other_clients_serve_a_moved_account(
    cells: RunningCells, doors: Doors, ada: Customer, provider: QuietProvider
) -> None:
    await move(cells, ada.account_id)
    for number, door in enumerate(doors):
        at = replace(ada, http=door)
        prompt = f"a lighthouse, {number}"
        made: list[httpx2.Response] = []

        for path, body, headers in (
            ("/v1/images/generations", {"model": MODEL, "prompt": prompt}, {"X-Stainless-Retry-Count": "0"}),
            (f"/replicate/v1/models/{MODEL}/predictions", {"input": {"prompt": prompt}}, {"Prefer": "wait"}),
        ):
            before = set(await at.tasks())
            async with trio.open_nursery() as nursery:
                nursery.start_soon(keep, made, partial(at.as_key, "POST", path, body, headers=headers))

                async def created(at: Customer = at, before: set[str] = before) -> list[str]:
                    return [each for each in await at.tasks() if each not in before]

                [task] = await until(created)
                await at.submitted(task)
                await succeed(task, provider, doors[0])
        image, prediction = (each.json() for each in made)
        assert [each.status_code for each in made] == [200, 201], made
        assert (await door.get(path_of(image["data"][0]["url"]))).status_code == 200
        assert prediction["status"] == "succeeded"
        read = await at.as_key("GET", f"/replicate/v1/predictions/{prediction['id']}")
        assert read.json()["output"] is not None
        stream = await door.get(path_of(prediction["urls"]["stream"]))
        assert stream.status_code == 200, stream.text

        async def tool(name: str, at: Customer = at, **arguments: object) -> dict[str, Any]:
            call = {"name": name, "arguments": arguments}
            message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
            result: dict[str, Any] = ok(await at.as_key("POST", "/mcp", message))["result"]
            assert not result.get("isError"), result
            return dict(result["structuredContent"])

        task = (await tool("create_task", model=MODEL, input={"prompt": prompt}, max_credits="1.00"))["request_id"]
        assert (await tool("get_task", request_id=task))["request_id"] == task
        assert (await tool("cancel_task", request_id=task))["status"] == "canceled"
