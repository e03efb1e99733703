"""Files over HTTP: uploaded, edited by a provider that fetches them, listed, deleted, expired, and swept."""

from __future__ import annotations

import io
from typing import Any

import httpx2
import psycopg
from PIL import Image
from tests.clients import Customer, code_of, ok, refused

from .conftest import NewCustomer
from .service_process import Service


def picture(number: int = 0, size: tuple[int, int] = (320, 200)) -> bytes:
    """A picture, another for every number."""
    out = io.BytesIO()
    Image.effect_noise(size, 40 + number).save(out, "PNG")
    return out.getvalue()


async def upload(ada: Customer, content: bytes, name: str = "picture.png") -> dict[str, Any]:
    """Upload a file as the part of a form."""
    file: dict[str, Any] = ok(await ada.as_key("POST", "/v2/files", files={"file": (name, content)}))
    return file


async def edit(ada: Customer, **wanted: object) -> httpx2.Response:
    """Create an edit."""
    body = {"model": "studio/edit-1", "input": {"width": 64, "height": 64, **wanted}}
    return await ada.as_key("POST", "/v2/task/create", body)


def is_stored(service: Service, file: dict[str, Any]) -> bool:
    """Whether the file's content is in the folder of the store."""
    return any((service.data_dir / "assets" / file["sha256"][:2]).glob(f"{file['sha256']}.*"))


def change(service: Service, statement: str, *values: object) -> None:
    """Change rows, as time would."""
    with psycopg.connect(service.database_url) as rows:
        rows.execute(statement.encode(), values)


async def test_a_file_is_edited_by_its_id_and_by_its_addresses(
    shared_service: Service, new_customer: NewCustomer
) -> None:
    ada = await new_customer(shared_service, credit="1.00")
    content = picture()
    file = await upload(ada, content)
    assert (await ada.http.get(file["url"])).content == content
    plain = file["url"].partition("?")[0]
    quotes = []
    for name, text in (("image", file["file_id"]), ("image", file["url"]), ("image_url", plain)):
        body = {"model": "studio/edit-1", "input": {name: text, "width": 64, "height": 64}}
        quote = ok(await ada.call("POST", "/v2/quote", body, credential=ada.key))
        quotes.append(quote["input_hash"])
        created = ok(await ada.as_key("POST", "/v2/task/create", {**body, "quote_id": quote["quote_id"]}))
        task = (await ada.all_ended())[created["request_id"]]
        assert (task["status"], task["error"]) == ("succeeded", None)
        with Image.open(io.BytesIO((await ada.http.get(task["output"][0]["url"])).content)) as edited:
            assert edited.size == (64, 40)
    # An id and a link name the same file, and so are the same input.
    assert quotes[0] == quotes[1] != quotes[2]
    retried = ok(await ada.as_key("POST", f"/v2/task/{created['request_id']}/retry"))
    assert (await ada.all_ended())[retried["request_id"]]["status"] == "succeeded"
    assert shared_service.audit() == []


async def test_a_file_that_is_gone_or_of_another_is_refused_by_its_name(
    shared_service: Service, new_customer: NewCustomer
) -> None:
    ada, eve = [await new_customer(shared_service, credit="1.00") for _ in range(2)]
    theirs, deleted, expired = [await upload(each, picture()) for each in (eve, ada, ada)]
    ok(await ada.as_key("DELETE", f"/v2/files/{deleted['file_id']}"))
    change(shared_service, "update files set expires_at = now() where file_id = %s", expired["file_id"])
    before = await ada.totals()
    for file in (theirs, deleted, expired):
        response = await edit(ada, image=file["file_id"])
        refused(response, 404, "file_not_found")
        assert response.json()["error"]["param"] == "input.image"
        assert file["file_id"] in response.json()["error"]["message"]
        assert code_of(await ada.as_key("GET", f"/v2/files/{file['file_id']}")) == "file_not_found"
    assert await ada.totals() == before
    assert ok(await ada.as_key("GET", "/v2/files"))["data"] == []
