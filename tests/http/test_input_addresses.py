"""Addresses in inputs: what reaches a provider is public and https, ours, or allowed by the provider's entry."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx2
import msgspec
import pytest
from tests.clients import refused

from holdfast.actors.account.messages import CreateTask
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.task import Task

from .identities import PUBLIC_URL

if TYPE_CHECKING:
    from tests.http.api import Api

EDIT = "studio/edit-1"
NOT_DONE = Refusal(code="insufficient_credit", message="It ends here.")
PRIVATE = [
    "file:///etc/passwd",
    "http://169.254.169.254/latest/meta-data/",
    "https://169.254.169.254/latest/meta-data/",
    "http://example.com/a.png",
    "https://127.0.0.1:8000/a.png",
    "https://[::1]/a.png",
    "https://2130706433/a.png",
    "https://localhost/a.png",
    "https://metadata.google.internal/",
    "https://ann:secret@example.com/a.png",
    "gopher://example.com/a",
    "ftp://example.com/a.png",
    "//example.com/a.png",
    "example.com/a.png",
    "not a uri",
    "https://example.com/a b.png",
    "",
]
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "create": ("/v2/task/create", {"model": EDIT}),
    "quote": ("/v2/quote", {"model": EDIT}),
    "openai": ("/v1/images/generations", {"model": EDIT, "prompt": "dusk"}),
    "replicate": ("/replicate/v1/predictions", {"version": EDIT}),
}


def take_any_text(api: Api) -> None:
    """Let the field have no pattern, which the shipped model has."""
    catalog = api.deps.registry.catalog
    model = catalog.models[EDIT]
    document = {
        "type": "object",
        "properties": {"prompt": {"type": "string"}, "image_url": {"type": "string", "format": "uri"}},
    }
    changed = msgspec.structs.replace(model, input_schema=document, schema=type(model.schema)(document))
    api.sell(replace(catalog, models={**catalog.models, EDIT: changed}))


async def send(api: Api, layer: str, address: str) -> httpx2.Response:
    path, body = CALLS[layer]
    if layer == "openai":
        return await api.as_key("POST", path, json={**body, "image_url": address})
    return await api.as_key("POST", path, json={**body, "input": {"image_url": address}})


@pytest.mark.parametrize("layer", CALLS)
async def test_an_address_that_is_not_public_is_refused_by_its_fields_name(api: Api, layer: str) -> None:
    take_any_text(api)
    for address in PRIVATE:
        response = await send(api, layer, address)
        error = response.json() if layer == "replicate" else response.json()["error"]
        assert (response.status_code, error["code"]) in {(400, "invalid_input"), (422, "invalid_input")}, address
        assert error["param"].endswith("image_url"), address
        assert "public and https" in response.text, address
    assert api.accounts.asked == []


@pytest.mark.parametrize(
    "address",
    [
        "https://example.com/a.png?sig=1",
        "https://93.184.216.34:8443/a.png",
        f"{PUBLIC_URL}/v2/assets/asset_1?exp=1&sig=2",
        "data:image/png;base64,iVBO",
    ],
)
@pytest.mark.parametrize("layer", ["create", "openai", "replicate"])
async def test_a_public_address_and_a_link_of_ours_reach_the_provider(api: Api, layer: str, address: str) -> None:
    api.accounts.answer = NOT_DONE
    take_any_text(api)
    await send(api, layer, address)
    [(_, command)] = api.accounts.asked
    assert isinstance(command, CreateTask)
    assert command.request.input["image_url"] == address


async def test_a_provider_may_be_allowed_private_addresses_by_its_entry(api: Api) -> None:
    api.accounts.answer = NOT_DONE
    take_any_text(api)
    refused(await send(api, "create", "http://files.internal:9000/a.png"), 400, "invalid_input")
    catalog = api.deps.registry.catalog
    name = catalog.models[EDIT].upstream.provider
    entry = msgspec.structs.replace(catalog.providers[name], input_origins=("http://files.internal:9000",))
    api.sell(replace(catalog, providers={**catalog.providers, name: entry}))
    await send(api, "create", "http://files.internal:9000/a.png")
    assert len(api.accounts.asked) == 1
    refused(await send(api, "create", "http://files.internal:9001/a.png"), 400, "invalid_input")


async def test_an_address_that_was_accepted_once_is_checked_again_at_a_retry(api: Api) -> None:
    take_any_text(api)
    task = api.task("task_" + "1" * 32)
    await api.add_task(ended(task, {"image_url": "http://10.0.0.7/a.png"}))
    error = refused(await api.as_key("POST", f"/v2/task/{task.request_id}/retry"), 400, "invalid_input")
    assert error["param"] == "input.image_url"


def ended(task: Task, given: dict[str, object]) -> Task:
    request = msgspec.structs.replace(task.request, input=given)
    return msgspec.structs.replace(task, status="failed", model=EDIT, request=request, wake_at=None)
