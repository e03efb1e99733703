"""Files over HTTP: uploaded, edited by a provider that fetches them, listed, deleted, expired, and swept."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import psycopg
import pytest
import trio
from PIL import Image
from tests.clients import Customer, code_of, ok, refused, until

from holdfast.http.kit.uploads import SPOOL_MEMORY_BYTES

from .conftest import NewCustomer, NewService
from .quiet_provider import MODEL, QuietProvider
from .service_process import Service

if TYPE_CHECKING:
    from tests.bucket_server import BucketServer

UPLOADS = 12
FILE_MIB = 16


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


def expire_contents(service: Service) -> None:
    """Let all claims of contents expire now, as long after the uploads."""
    change(service, "update files set created_at = created_at - interval '1 hour'")
    change(service, "update contents set claimed_until = claimed_until - interval '1 day'")


async def gone(service: Service, file: dict[str, Any]) -> bool:
    """Whether the file's content has been removed, once its claims have expired."""
    expire_contents(service)
    return not is_stored(service, file)


def memory_bytes(service: Service) -> int:
    """Return the most memory that the service has had."""
    assert service.process is not None
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def has_open_files_below(service: Service, folder: Path) -> bool:
    """Whether the service has a file below a folder open, with or without a name."""
    assert service.process is not None
    opened = list(Path(f"/proc/{service.process.pid}/fd").iterdir())
    return any(str(each.readlink()).startswith(f"{folder}/") for each in opened if each.is_symlink())


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


@pytest.mark.slow
async def test_a_task_has_its_file_until_it_ends(
    quiet_service: Service, provider: QuietProvider, new_customer: NewCustomer
) -> None:
    ada = await new_customer(quiet_service, credit="5.00")
    content = picture()
    file = await upload(ada, content)
    body = {"model": MODEL, "input": {"prompt": file["file_id"], "image": file["file_id"]}}
    request_id = ok(await ada.as_key("POST", "/v2/task/create", body))["request_id"]
    await ada.submitted(request_id)
    [job] = [job for name, job in provider.jobs.items() if name.startswith(request_id)]
    link = job["input"]["image"]
    # Only where the model takes a link.
    assert job["input"]["prompt"] == file["file_id"]
    assert (await ada.http.get(link)).content == content

    ok(await ada.as_key("DELETE", f"/v2/files/{file['file_id']}"))
    assert code_of(await ada.as_key("GET", f"/v2/files/{file['file_id']}")) == "file_not_found"
    again = await ada.as_key("POST", "/v2/task/create", body)
    assert again.json()["error"]["param"] == "input.image"
    assert (await ada.http.get(link)).content == content
    expire_contents(quiet_service)
    assert is_stored(quiet_service, file)

    ok(await ada.as_key("POST", f"/v2/task/{request_id}/cancel"))
    await until(lambda: gone(quiet_service, file))
    assert code_of(await ada.http.get(link)) == "asset_expired"
    refused(await ada.as_key("POST", f"/v2/task/{request_id}/retry"), 404, "file_not_found")
    assert quiet_service.audit() == []


@pytest.mark.slow
async def test_the_file_of_a_form_is_released_with_its_task(
    quiet_service: Service, provider: QuietProvider, new_customer: NewCustomer
) -> None:
    ada = await new_customer(quiet_service, credit="5.00")
    content = picture(3)
    request_ids: list[str] = []

    async def send() -> None:
        form = {"data": {"model": MODEL, "prompt": "dusk"}, "files": {"image": ("a.png", content)}}
        response = await ada.as_key("POST", "/v1/images/edits", headers={"X-Stainless-Retry-Count": "0"}, **form)
        request_ids.append(response.headers["X-Task-Id"])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        [request_id] = await until(ada.tasks)
        await ada.submitted(request_id)
        [file] = ok(await ada.as_key("GET", "/v2/files"))["data"]
        assert file["sha256"] == hashlib.sha256(content).hexdigest()
        expire_contents(quiet_service)
        change(quiet_service, "update files set expires_at = now() where file_id = %s", file["file_id"])
        [job] = [job for name, job in provider.jobs.items() if name.startswith(request_id)]
        assert (await ada.http.get(job["input"]["image"])).content == content
        ok(await ada.as_key("POST", f"/v2/task/{request_id}/cancel"))
    assert request_ids == [request_id]
    await until(lambda: gone(quiet_service, file))
    assert quiet_service.audit() == []


async def test_a_task_that_was_not_created_needs_no_file(
    shared_service: Service, new_customer: NewCustomer
) -> None:
    ada = await new_customer(shared_service)
    file = await upload(ada, picture())
    refused(await edit(ada, image=file["file_id"]), 402, "insufficient_credit")
    expire_contents(shared_service)
    ok(await ada.as_key("DELETE", f"/v2/files/{file['file_id']}"))
    with psycopg.connect(shared_service.database_url) as rows:
        left = "select from files where file_id = %s union all select from file_uses where file_id = %s"
        assert rows.execute(left, [file["file_id"]] * 2).fetchall() == []


@pytest.mark.slow
async def test_a_content_is_removed_with_the_last_file_that_has_it(
    shared_service: Service, new_customer: NewCustomer
) -> None:
    ada, eve = [await new_customer(shared_service) for _ in range(2)]
    content = picture()
    first, second = await upload(ada, content), await upload(eve, content)
    assert first["sha256"] == second["sha256"]
    expire_contents(shared_service)
    change(shared_service, "update files set expires_at = now() where file_id = %s", first["file_id"])

    async def is_swept() -> bool:
        with psycopg.connect(shared_service.database_url) as rows:
            return not rows.execute("select from files where file_id = %s", [first["file_id"]]).fetchall()

    await until(is_swept)
    expire_contents(shared_service)
    assert (await ada.http.get(second["url"])).content == content
    assert (await ada.http.get(first["url"])).status_code == 410
    change(shared_service, "update files set expires_at = now() where file_id = %s", second["file_id"])
    await until(lambda: gone(shared_service, second))
    again = await upload(ada, content)
    assert (await ada.http.get(again["url"])).content == content


async def test_a_result_and_a_file_share_their_content(shared_service: Service, new_customer: NewCustomer) -> None:
    ada = await new_customer(shared_service, credit="1.00")
    ok(await ada.create(seed=7))
    [task] = (await ada.all_ended()).values()
    [item] = task["output"]
    file = await upload(ada, (await ada.http.get(item["url"])).content)
    assert file["sha256"] == item["sha256"]
    ok(await ada.as_key("DELETE", f"/v2/files/{file['file_id']}"))
    expire_contents(shared_service)
    assert hashlib.sha256((await ada.http.get(item["url"])).content).hexdigest() == item["sha256"]


@pytest.mark.slow
async def test_many_uploads_at_once_need_little_memory(new_service: NewService, new_customer: NewCustomer) -> None:
    service = new_service(FILES_BYTES_MAX=str(2**40))
    await trio.to_thread.run_sync(service.start)
    ada = await new_customer(service)
    await upload(ada, picture())
    before = memory_bytes(service)
    sent = bytes(range(256)) * 4096  # a mebibyte
    files: list[dict[str, Any]] = []

    async def blocks(number: int) -> AsyncIterator[bytes]:
        yield b"%d" % number
        for _ in range(FILE_MIB):
            yield sent

    async def one(number: int) -> None:
        headers = {"Content-Type": "application/octet-stream", "Authorization": f"Bearer {ada.key}"}
        files.append(ok(await ada.http.post("/v2/files", content=blocks(number), headers=headers, timeout=60)))

    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            for number in range(UPLOADS):
                nursery.start_soon(one, number)
    assert memory_bytes(service) - before < UPLOADS * FILE_MIB * 2**20 / 4
    assert len({each["sha256"] for each in files}) == UPLOADS
    for number in (0, UPLOADS - 1):
        expected = hashlib.sha256(b"%d" % number + sent * FILE_MIB).hexdigest()
        [file] = [each for each in files if each["sha256"] == expected]
        async with ada.http.stream("GET", file["url"]) as response:
            digest = hashlib.sha256()
            async for block in response.aiter_bytes():
                digest.update(block)
        assert digest.hexdigest() == expected
    assert service.faults() == []


@pytest.mark.slow
async def test_a_service_killed_during_uploads_leaves_nothing(
    new_service: NewService, new_customer: NewCustomer
) -> None:
    service = new_service()
    await trio.to_thread.run_sync(service.start)
    ada = await new_customer(service)
    kept = await upload(ada, picture(1))

    async def blocks() -> AsyncIterator[bytes]:
        for _ in range(32):
            yield bytes(64 * 1024)
        await trio.sleep_forever()

    async def send() -> None:
        headers = {"Content-Type": "image/png", "Authorization": f"Bearer {ada.key}"}
        await ada.http.post("/v2/files", content=blocks(), headers=headers, timeout=60)

    async def has_temporary_file() -> bool:
        return has_open_files_below(service, service.data_dir / "incoming")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await until(has_temporary_file)
        service.kill()
        nursery.cancel_scope.cancel()
    assert list((service.data_dir / "incoming").iterdir()) == []
    # As after a kill while the content was copied into the store, and before the row of a file was written.
    leftover = service.data_dir / "assets" / "incoming" / "half"
    leftover.write_bytes(b"half")
    os.utime(leftover, (0, 0))
    await trio.to_thread.run_sync(service.start)
    ada = await new_customer(service)
    orphan = await upload(ada, picture(2))
    change(service, "delete from files where file_id = %s", orphan["file_id"])
    await until(lambda: gone(service, orphan))
    assert is_stored(service, kept)
    stored = [path for path in (service.data_dir / "assets").rglob("*") if path.is_file()]
    assert [path.stem for path in stored] == [kept["sha256"]]
    assert service.audit() == []


@pytest.mark.slow
async def test_files_in_a_bucket(bucket: BucketServer, new_service: NewService, new_customer: NewCustomer) -> None:
    bucket.empty()
    service = new_service(**bucket.settings())
    await trio.to_thread.run_sync(service.start)
    ada = await new_customer(service)
    content = picture(size=(1200, 800))
    assert len(content) > SPOOL_MEMORY_BYTES
    file = await upload(ada, content)
    key = f"assets/{file['sha256'][:2]}/{file['sha256']}.png"
    assert bucket.objects() == {key: len(content)}
    part = await ada.http.get(file["url"], headers={"Range": "bytes=10-19"})
    assert (part.status_code, part.content) == (206, content[10:20])
    ok(await ada.as_key("DELETE", f"/v2/files/{file['file_id']}"))
    expire_contents(service)

    async def is_removed() -> bool:
        return key not in bucket.objects()

    await until(is_removed)
    assert service.faults() == []
