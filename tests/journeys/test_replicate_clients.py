"""Replicate's clients, unmodified, against the service: each program as its users write it."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from typing import Any

import pytest
import standardwebhooks
from PIL import Image
from tests.clients import Customer, ok
from tests.tools import CLIENTS_NODE, needs

from .client_programs import run_node, run_python
from .conftest import NewCustomer
from .quiet_provider import MODEL, QuietProvider
from .receiver import receiver
from .replicate_programs import PROGRAMS, STARTS
from .service_process import Service, new_folder, running_service

pytestmark = [needs(CLIENTS_NODE), pytest.mark.slow]

CLIENTS = list(PROGRAMS)
SCOPES = ["tasks:read", "tasks:write", "account:read"]

TYPES = {
    "image": b"\x89PNG",
    "edit": b"RIFF",
    "sound": b"RIFF",
    "clip": b"\x1aE\xdf\xa3",
}
"""How the files of each begin."""


def having(feature: str) -> pytest.MarkDecorator:
    """Run a test by all clients that have a feature."""
    return pytest.mark.parametrize("client", [name for name in CLIENTS if feature in PROGRAMS[name]])


def picture() -> str:
    file = io.BytesIO()
    Image.new("RGB", (48, 32), (20, 90, 160)).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


async def run(client: str, feature: str, service: Service, key: str, **given: Any) -> Any:
    """Run a client's program with a customer's API key."""
    start = run_python if client == "replicate (Python)" else run_node
    values = {"url": service.url, "key": key, "picture": picture(), **given}
    return await start(STARTS[client] + PROGRAMS[client][feature], values)


async def key_of(customer: Customer) -> str:
    """Create an API key that may read the account, too."""
    created = ok(await customer.as_session("POST", "/v2/control/api-keys", {"scopes": SCOPES}))
    return str(created["api_key"])


@pytest.mark.parametrize(
    ("client", "feature"), [(client, each) for client in CLIENTS for each in TYPES if each in PROGRAMS[client]]
)
async def test_makes_each_kind_of_result(
    shared_service: Service, new_customer: NewCustomer, client: str, feature: str
) -> None:
    customer = await new_customer(shared_service, credit="5.00")

    made = await run(client, feature, shared_service, customer.key)

    assert len(made) == (2 if feature == "image" else 1)
    for each in made:
        content = (await customer.http.get(each)).content if each.startswith("http") else base64.b64decode(each)
        assert content.startswith(TYPES[feature])
    tasks = await customer.tasks()
    assert {task["status"] for task in tasks.values()} == {"succeeded"}
    assert (await customer.totals()).held == 0


@having("upload")
async def test_uploads(shared_service: Service, new_customer: NewCustomer, client: str) -> None:
    customer = await new_customer(shared_service, credit="5.00")

    output, is_kept, content_type, deleted, left = await run(client, "upload", shared_service, customer.key)

    assert is_kept
    assert content_type == "image/png"
    assert (deleted, left) == ([True, True], [])
    [link] = output
    assert (await customer.http.get(link)).content.startswith(TYPES["edit"])
    [task] = (await customer.tasks()).values()
    assert task["status"] == "succeeded"


@having("wait")
async def test_waits_in_one_call(shared_service: Service, new_customer: NewCustomer, client: str) -> None:
    customer = await new_customer(shared_service, credit="5.00")

    waited = await run(client, "wait", shared_service, customer.key)

    if client == "@ai-sdk/replicate":
        assert waited == 1
    else:
        made, first, ended, has_progress = waited
        assert (made, ended, has_progress) == ("succeeded", "succeeded", True)
        assert first in {"starting", "succeeded"}


@having("late")
async def test_a_wait_that_ends_first_is_no_end(
    quiet_service: Service, new_customer: NewCustomer, client: str
) -> None:
    """Anything but "starting", such as "processing", these clients take for the end."""
    customer = await new_customer(quiet_service, credit="5.00")

    assert await run(client, "late", quiet_service, customer.key, model=MODEL) == "starting"


@having("stream")
async def test_follows(shared_service: Service, new_customer: NewCustomer, client: str) -> None:
    customer = await new_customer(shared_service, credit="5.00")

    events = await run(client, "stream", shared_service, customer.key)

    kinds = [kind for kind, _ in events]
    assert kinds[-2:] == ["output", "done"]
    assert set(kinds[:-2]) == {"logs"}
    assert (await customer.http.get(events[-2][1])).content.startswith(TYPES["image"])


@having("webhook")
async def test_receives_webhooks(shared_service: Service, new_customer: NewCustomer, client: str) -> None:
    customer = await new_customer(shared_service, credit="5.00")
    key = await key_of(customer)
    if client == "@ai-sdk/replicate":
        assert await run(client, "webhook", shared_service, key) == [1, "succeeded", "studio/clip-1", 1]
        return
    with receiver() as hook:
        task_id = await run(client, "webhook", shared_service, key, receiver=hook.url + "/hook")
        posts = await hook.wait("/hook", 2)

        bodies = {post.event["status"]: post.event for post in posts}
        assert {body["id"] for body in bodies.values()} == {task_id}
        assert set(bodies) == {"processing", "succeeded"}
        assert (await customer.http.get(bodies["succeeded"]["output"][0])).content.startswith(TYPES["image"])
        secret = ok(await customer.call("GET", "/replicate/v1/webhooks/default/secret", credential=key))["key"]
        for post in posts:
            standardwebhooks.Webhook(secret).verify(post.body, post.headers)
            sent = {"headers": post.headers, "body": post.body.decode()}
            assert await run(client, "webhook_checked", shared_service, key, **sent) is True


@having("cancel")
async def test_cancels(quiet_service: Service, new_customer: NewCustomer, client: str) -> None:
    customer = await new_customer(quiet_service, credit="5.00")

    task_id, status, again = await run(client, "cancel", quiet_service, customer.key, model=MODEL)

    assert (status, again) == ("canceled", "canceled")
    assert (await customer.task(task_id))["status"] == "canceled"
    assert (await customer.totals()).held == 0


@having("list")
async def test_lists_tasks_of_any_api(quiet_service: Service, new_customer: NewCustomer, client: str) -> None:
    customer = await new_customer(quiet_service, credit="50.00")
    created = [ok(await customer.create(MODEL))["request_id"] for _ in range(22)]

    pages = await run(client, "list", quiet_service, customer.key)

    assert [len(page) for page in pages] == [20, 2]
    assert [each for page in pages for each in page] == created[::-1]


@having("models")
async def test_reads_models(shared_service: Service, new_customer: NewCustomer, client: str) -> None:
    customer = await new_customer(shared_service, credit="5.00")

    listed, maximum, count = await run(client, "models", shared_service, customer.key)

    assert listed == ["studio/image-1", "studio/edit-1", "studio/tone-1", "studio/clip-1"]
    assert (maximum, count) == (4, 1)


@having("account")
async def test_reads_the_account(shared_service: Service, new_customer: NewCustomer, client: str) -> None:
    customer = await new_customer(shared_service)
    assert await run(client, "account", shared_service, await key_of(customer)) == customer.account_id


@having("errors")
async def test_reports_errors(shared_service: Service, new_customer: NewCustomer, client: str) -> None:
    poor, rich = await new_customer(shared_service), await new_customer(shared_service, credit="5.00")
    wrong = rich.key[:-1] + ("0" if rich.key[-1] != "0" else "1")
    image, lighthouse = "studio/image-1", {"prompt": "a lighthouse"}

    async def error(key: str, model: str, given: dict[str, Any]) -> list[Any]:
        found = await run(client, "errors", shared_service, key, model=model, input=given)
        assert isinstance(found, list)
        return found

    assert (await error(wrong, image, lighthouse))[:2] == [401, "Invalid api key"]
    assert (await error(poor.key, image, lighthouse))[:2] == [402, "Insufficient credit"]
    assert (await error(rich.key, "studio/none", lighthouse))[:2] == [404, "Model not found"]
    status, title, detail = await error(rich.key, image, {"prompt": ""})
    assert (status, title) == (422, "Invalid input")
    assert "input.prompt must not be blank" in detail
    assert not await rich.tasks()


@pytest.fixture(scope="module")
def narrow_service(provider: QuietProvider) -> Iterator[Service]:
    """A running service at which an account may have one task at a time."""
    folder = new_folder()
    with running_service(folder, CATALOG=str(provider.write_catalog(folder)), TASKS_IN_FLIGHT_MAX="1") as service:
        yield service


@having("errors")
async def test_reports_limits(narrow_service: Service, new_customer: NewCustomer, client: str) -> None:
    customer = await new_customer(narrow_service, credit="5.00")
    ok(await customer.create(MODEL))

    status, title, _ = await run(
        client, "errors", narrow_service, customer.key, model=MODEL, input={"prompt": "a gull"}
    )

    assert (status, title) == (429, "Concurrency limit exceeded")
    assert len(await customer.tasks()) == 1
