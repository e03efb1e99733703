"""OpenAI's clients, unmodified, against the service: each program as its users write it."""

from __future__ import annotations

import base64
import io
import random
from typing import Any

import pytest
from PIL import Image
from tests.clients import Customer
from tests.tools import CLIENTS, CLIENTS_NODE, needs

from .client_programs import PYTHON, run_node, run_python
from .conftest import NewCustomer
from .openai_programs import PROGRAMS, STARTS
from .quiet_provider import QuietProvider
from .service_process import Service, new_folder, running_service

pytestmark = [needs(CLIENTS_NODE), pytest.mark.slow]

FILES = {
    "image": b"\x89PNG",
    "image in base64": b"\x89PNG",
    "edit": b"RIFF",
    "upload": b"\x89PNG",
    "sound": b"RIFF",
    "clip": b"\x1aE\xdf\xa3",
}
"""How the files of each begin."""


def having(feature: str) -> pytest.MarkDecorator:
    """Run a test by all clients that have a feature."""
    return pytest.mark.parametrize("client", [name for name, having in PROGRAMS.items() if feature in having])


def picture(feature: str) -> str:
    """Return a picture; a larger one to upload, since the environment of a process has little room."""
    file = io.BytesIO()
    side = 270 if feature == "upload" else 96
    Image.frombytes("L", (side, side), random.Random(7).randbytes(side * side)).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


async def run(client: str, feature: str, service: Service, key: str, **given: Any) -> Any:
    """Run a client's program with a customer's API key."""
    program = STARTS[client] + PROGRAMS[client][feature]
    values = {"url": service.url, "key": key, "picture": picture(feature), **given}
    if client == "openai (JavaScript)":
        return await run_node(program, values)
    python = PYTHON if client == "openai (Python, 3)" else CLIENTS / "bin" / "python"
    return await run_python(program, values, python)


async def contents(customer: Customer, made: list[str]) -> list[bytes]:
    """Return files that were sent as links or in base64."""
    return [
        (await customer.http.get(each)).content if each.startswith("http") else base64.b64decode(each)
        for each in made
    ]


@pytest.mark.parametrize(
    ("client", "feature"), [(client, each) for client in PROGRAMS for each in FILES if each in PROGRAMS[client]]
)
async def test_makes_each_kind_of_result(
    shared_service: Service, new_customer: NewCustomer, client: str, feature: str
) -> None:
    customer = await new_customer(shared_service, credit="5.00")

    made = await contents(customer, await run(client, feature, shared_service, customer.key))

    assert len(made) == (2 if feature == "image" else 1)
    for content in made:
        assert content.startswith(FILES[feature])
        if feature in {"edit", "upload"}:
            with Image.open(io.BytesIO(content)) as result:
                assert max(result.size) <= 64
    [task] = (await customer.tasks()).values()
    assert task["status"] == "succeeded"
    is_labelled = feature == "edit" and client != "litellm"
    assert task["metadata"] == ({"job": "7", "for whom": "a b", "end_user": "ann"} if is_labelled else {})
    assert (await customer.totals()).held == 0


@having("wait")
async def test_waits(shared_service: Service, new_customer: NewCustomer, client: str) -> None:
    customer = await new_customer(shared_service, credit="5.00")
    assert await run(client, "wait", shared_service, customer.key) == 1


@having("cancel")
async def test_cancels(
    quiet_service: Service, provider: QuietProvider, new_customer: NewCustomer, client: str
) -> None:
    customer = await new_customer(quiet_service, credit="5.00")

    video_id, deleted, error = await run(client, "cancel", quiet_service, customer.key, model="quiet/clip-1")

    assert (deleted, error) == (True, "canceled")
    assert (await customer.task(video_id))["status"] == "canceled"
    assert (await customer.totals()).held == 0


@having("list")
async def test_lists(
    quiet_service: Service, provider: QuietProvider, new_customer: NewCustomer, client: str
) -> None:
    customer = await new_customer(quiet_service, credit="5.00")
    await customer.create("quiet/image-1")  # no video

    made, listed, oldest = await run(client, "list", quiet_service, customer.key, model="quiet/clip-1")

    # The clients read the pages one after the other.
    assert (listed, oldest) == (made[::-1], made)
    other = await new_customer(quiet_service, credit="5.00")
    assert (await other.as_key("GET", f"/v1/videos/{made[0]}")).status_code == 404
    assert (await other.as_key("GET", "/v1/videos")).json()["data"] == []


@having("models")
async def test_finds_models(shared_service: Service, new_customer: NewCustomer, client: str) -> None:
    customer = await new_customer(shared_service)
    listed, found = await run(client, "models", shared_service, customer.key)
    assert {"studio/image-1", "studio/clip-1"} <= set(listed)
    assert found == "studio/image-1"


@having("errors")
async def test_reads_errors(
    quiet_service: Service, provider: QuietProvider, new_customer: NewCustomer, client: str
) -> None:
    customer = await new_customer(quiet_service, credit="5.00")
    poor = await new_customer(quiet_service)
    wrong = customer.key[:-1] + ("0" if customer.key[-1] != "0" else "1")
    cases: list[Any] = [
        (wrong, "quiet/image-1", {}),
        (poor.key, "quiet/image-1", {}),
        (customer.key, "quiet/none", {}),
        (customer.key, "quiet/image-1", {"n": 2}),
    ]

    found = await run(client, "errors", quiet_service, customer.key, cases=cases)

    if client == "litellm":
        assert [status for status, _ in found] == [401, 402, 404, 400]
        assert {kind for _, kind in found} >= {"AuthenticationError", "NotFoundError", "BadRequestError"}
    else:
        assert [each[:3] for each in found] == [
            [401, "invalid_api_key", None],
            [402, "insufficient_credit", None],
            [404, "model_not_found", "model"],
            [400, "invalid_parameter", "n"],
        ]
        kinds = [each[3] for each in found]
        assert kinds[:1] + kinds[2:] == ["AuthenticationError", "NotFoundError", "BadRequestError"]
    assert await customer.tasks() == {}


@having("errors")
async def test_reads_the_refusal_of_a_limit(
    provider: QuietProvider, new_customer: NewCustomer, client: str
) -> None:
    folder = new_folder()
    with running_service(folder, CATALOG=str(provider.write_catalog(folder)), TASKS_IN_FLIGHT_MAX="1") as service:
        customer = await new_customer(service, credit="5.00")
        await customer.create("quiet/image-1")
        cases: list[Any] = [(customer.key, "quiet/image-1", {})]
        [found] = await run(client, "errors", service, customer.key, cases=cases, max_retries=0)
    assert (found[0], found[-1]) == (429, "RateLimitError")
