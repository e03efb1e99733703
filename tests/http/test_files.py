"""Uploaded files: stored, described, listed, served and deleted."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
import trio
from sqlalchemy import text
from tests.clients import ok, refused

from holdfast.http.kit.uploads import (
    CLAIM_TRIES,
    FIELDS_BYTES_MAX,
    PARTS_MAX,
    SPOOL_MEMORY_BYTES,
    clean_filename,
    sent_filename,
)
from holdfast.persistence.claims.contents import START, Content, mark_contents
from holdfast.persistence.claims.files import UPLOAD_S, ExpiredFile, files_total, sweep_files
from holdfast.persistence.claims.tasks import FIRST_EXPIRED
from holdfast.providers.storage.base import StoreFault

if TYPE_CHECKING:
    from tests.http.api import Api

PNG = b"\x89PNG\r\n\x1a\n" + b"not much of a picture"
GIF_AND_SCRIPT = b"GIF89a/*" + b" " * 40 + b"*/=1;alert(document.domain)//<script>"
PAGE = b"<!doctype html><script>alert(1)</script>"
LARGE = PNG + bytes(range(256)) * 4 * 1024
assert len(LARGE) > SPOOL_MEMORY_BYTES


async def upload(api: Api, content: bytes = PNG, name: str = "a.png", **options: Any) -> httpx2.Response:
    return await api.as_key("POST", "/v2/files", files={"file": (name, content)}, **options)


async def send(api: Api, body: bytes, content_type: str = "multipart/form-data; boundary=x") -> httpx2.Response:
    return await api.as_key("POST", "/v2/files", content=body, headers={"Content-Type": content_type})


def part(name: str, content: bytes, filename: str | None = None) -> bytes:
    extra = "" if filename is None else f'; filename="{filename}"'
    return f'--x\r\nContent-Disposition: form-data; name="{name}"{extra}\r\n\r\n'.encode() + content + b"\r\n"


def leftovers(api: Api) -> list[str]:
    """The temporary files and contents below the folder of the data."""
    folder = api.deps.settings.data_dir
    return sorted(str(path.relative_to(folder)) for path in folder.glob("incoming/*"))


def path_of(url: str) -> str:
    return url.removeprefix("https://holdfast.example")


async def test_a_file_of_a_form_is_described_and_served(api: Api) -> None:
    file = ok(await upload(api))
    assert file == {
        "file_id": file["file_id"],
        "filename": "a.png",
        "content_type": "image/png",
        "bytes": len(PNG),
        "sha256": hashlib.sha256(PNG).hexdigest(),
        "url": file["url"],
        "created_at": "2026-11-20T12:00:00.000Z",
        "expires_at": "2026-11-27T12:00:00.000Z",
    }
    assert ok(await api.as_key("GET", f"/v2/files/{file['file_id']}")) == file
    expected = {
        "Content-Type": "image/png",
        "Content-Length": str(len(PNG)),
        "Content-Disposition": 'inline; filename="a.png"',
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "private, max-age=3600",
    }
    for served in (
        await api.call("GET", path_of(file["url"])),
        await api.as_key("GET", f"/v2/files/{file['file_id']}/content"),
    ):
        assert (served.status_code, served.content) == (200, PNG)
        assert {name: served.headers[name] for name in expected} == expected
    some = await api.call("GET", path_of(file["url"]), headers={"Range": "bytes=0-7"})
    assert (some.status_code, some.content) == (206, PNG[:8])


@pytest.mark.parametrize("content", [PNG, LARGE])
async def test_a_whole_body_is_a_file_too(api: Api, content: bytes) -> None:
    headers = {"Content-Type": "image/jpeg", "Content-Disposition": 'attachment; filename="../b.png"'}
    file = ok(await api.as_key("POST", "/v2/files", content=content, headers=headers))
    assert (file["content_type"], file["bytes"], file["filename"]) == ("image/png", len(content), "b.png")
    assert (await api.call("GET", path_of(file["url"]))).content == content
    unnamed = ok(await send(api, content, "application/octet-stream"))
    assert (unnamed["sha256"], unnamed["filename"]) == (file["sha256"], "file.png")
    assert leftovers(api) == []


@pytest.mark.parametrize(
    ("content", "content_type", "disposition"),
    [
        (GIF_AND_SCRIPT, "image/gif", "inline"),
        (PAGE, "application/octet-stream", "attachment"),
        (b'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"/>', "application/octet-stream", "attachment"),
        (b"%PDF-1.7" + PNG, "application/octet-stream", "attachment"),
    ],
)
async def test_a_lying_file_is_named_by_its_bytes_and_cannot_run(
    api: Api, content: bytes, content_type: str, disposition: str
) -> None:
    sent = {"file": ("page.html", content, "text/html")}
    file = ok(await api.as_key("POST", "/v2/files", files=sent))
    assert file["content_type"] == content_type
    served = await api.call("GET", path_of(file["url"]))
    assert served.headers["Content-Type"] == content_type
    assert served.headers["Content-Disposition"] == f'{disposition}; filename="page.html"'
    assert served.headers["Content-Security-Policy"] == "sandbox; default-src 'none'"
    assert served.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    ("sent", "filename"),
    [
        (None, "file.png"),
        ("", "file.png"),
        ("..", "file.png"),
        ("/etc/passwd", "passwd"),
        ("C:\\Users\\ada\\a.png", "a.png"),
        ("a\r\nX-Header: 1\0.png", "aX-Header: 1.png"),
        ("ü" * 300, "ü" * 200),
    ],
)
def test_a_filename_is_a_bare_printable_name(sent: str | None, filename: str) -> None:
    assert clean_filename(sent, "png") == filename


@pytest.mark.parametrize(
    ("disposition", "filename"),
    [
        ("attachment; filename*=UTF-8''%e2%82%ac%20rates.png", "€ rates.png"),
        ("attachment; filename=\"a.png\"; filename*=utf-8'en'na%C3%AFve.png", "naïve.png"),
        ("attachment; filename*=iso-8859-1''%A3.png; filename=a.png", "£.png"),
        ("attachment; filename=a.png; filename*=UTF-8''%ff", "a.png"),
        ("attachment; filename=a.png; filename*=koi8-r''%ff", "a.png"),
        ("attachment; filename*=UTF-8''..%2f..%2Fetc%00.png", "etc.png"),
        ("attachment; filename=\"a; filename*=UTF-8''b.png\"", "a; filename*=UTF-8''b.png"),
        ("attachment; filename*=nonsense", "file.png"),
        ("attachment; x=\"\\\"; filename*=UTF-8''b.png", None),  # a quotation that does not end is read once
        ("attachment; " + '\\"' * 40_000 + "; filename*=UTF-8''late.png", None),
    ],
)
async def test_an_encoded_filename_is_read(disposition: str, filename: str | None) -> None:
    found = sent_filename(disposition)
    assert (found if filename is None else clean_filename(found, "png")) == filename


async def test_a_part_with_an_encoded_filename_alone_is_a_file(api: Api) -> None:
    head = b"Content-Disposition: form-data; name=\"file\"; filename*=utf-8''%C3%BC.png"
    body = b"--x\r\n" + head + b"\r\n\r\na file\r\n--x--\r\n"
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    for path, status in (("/v2/files", 200), ("/replicate/v1/files", 201)):
        sent = body.replace(b'"file"', b'"content"') if status == 201 else body
        response = await api.as_key("POST", path, content=sent, headers=headers)
        assert response.status_code == status, response.text
        assert response.json()["name" if status == 201 else "filename"] == "ü.png"
    headers["Content-Disposition"] = "attachment; filename*=UTF-8''%C3%BC.png"
    headers["Content-Type"] = "image/png"
    assert ok(await api.as_key("POST", "/v2/files", content=b"a file", headers=headers))["filename"] == "ü.png"


async def test_any_filename_is_served_in_one_header(api: Api) -> None:
    file = ok(await upload(api, name='a"b;%ü\\.png'))
    disposition = (await api.call("GET", path_of(file["url"]))).headers["Content-Disposition"]
    assert disposition.startswith('inline; filename="')
    assert disposition.isascii()
    assert disposition.count('"') == 2


async def test_files_are_listed_by_pages_and_only_to_their_account(api: Api) -> None:
    ids = []
    for number in range(3):
        api.change(now=lambda at=api.now + timedelta(seconds=number): at)
        ids.append(ok(await upload(api, PNG + bytes([number])))["file_id"])
    first = ok(await api.as_key("GET", "/v2/files?limit=2"))
    second = ok(await api.as_key("GET", f"/v2/files?limit=2&cursor={first['next_cursor']}"))
    assert [each["file_id"] for each in first["data"] + second["data"]] == ids[::-1]
    assert second["next_cursor"] is None
    other = (await api.add_key(api.other_account_id, "key_" + "2" * 32)).secret
    assert ok(await api.call("GET", "/v2/files", credential=other))["data"] == []
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        theirs = await api.call(method, f"/v2/files/{ids[0]}{path}", credential=other)
        refused(theirs, 404, "file_not_found")


async def test_a_time_of_a_file_that_cannot_be_read_closes_no_list(api: Api) -> None:
    ids = [ok(await upload(api, PNG + bytes([number])))["file_id"] for number in range(2)]
    await api.write(text(f"update files set created_at = 'infinity' where file_id = '{ids[0]}'"))
    found = ok(await api.as_key("GET", "/v2/files"))
    assert ([each["file_id"] for each in found["data"]], found["unreadable"]) == ([ids[1]], [ids[0]])


async def test_an_expired_file_is_gone(api: Api) -> None:
    file = ok(await upload(api))
    api.change(now=lambda: api.now + timedelta(days=7))
    assert ok(await api.as_key("GET", "/v2/files"))["data"] == []
    refused(await api.as_key("GET", f"/v2/files/{file['file_id']}"), 404, "file_not_found")
    refused(await api.as_key("DELETE", f"/v2/files/{file['file_id']}"), 404, "file_not_found")
    refused(await api.call("GET", path_of(file["url"])), 410, "asset_expired")


async def test_a_deleted_file_is_gone_at_once(api: Api) -> None:
    file = ok(await upload(api))
    deleted = ok(await api.as_key("DELETE", f"/v2/files/{file['file_id']}"))
    assert deleted == {"file_id": file["file_id"], "deleted": True}
    refused(await api.as_key("DELETE", f"/v2/files/{file['file_id']}"), 404, "file_not_found")
    refused(await api.call("GET", path_of(file["url"])), 410, "asset_expired")
    refused(await api.as_key("DELETE", "/v2/files/%ff"), 404, "file_not_found")


async def test_a_link_opens_one_file_unaltered(api: Api) -> None:
    first, second = ok(await upload(api)), ok(await upload(api))
    query = first["url"].partition("?")[2]
    refused(await api.call("GET", f"/v2/files/{second['file_id']}/content?{query}"), 403, "invalid_link")
    refused(await api.call("GET", f"/v2/files/{first['file_id']}/content?sig=1"), 403, "invalid_link")
    refused(await api.call("GET", f"/v2/files/{first['file_id']}/content"), 401, "missing_credentials")
    refused(await api.call("GET", f"/v2/assets/{first['file_id']}?{query}"), 410, "asset_expired")


async def test_a_part_that_is_not_taken_is_named_with_those_that_are(api: Api) -> None:
    error = refused(
        await api.as_key("POST", "/v2/files", files={"image": ("a.png", PNG)}), 400, "invalid_parameter"
    )
    assert error["param"] == "image"
    assert error["message"] == "The parameter 'image' is not a file of this endpoint, which takes file."


async def test_a_key_needs_the_scope_of_what_it_does(api: Api) -> None:
    reads = (await api.add_key(api.account_id, "key_" + "3" * 32, scopes=("tasks:read",))).secret
    writes = (await api.add_key(api.account_id, "key_" + "4" * 32, scopes=("tasks:write",))).secret
    file = ok(await upload(api))
    sent = {"file": PNG}
    refused(await api.call("POST", "/v2/files", credential=reads, files=sent), 403, "insufficient_scope")
    path = f"/v2/files/{file['file_id']}"
    refused(await api.call("DELETE", path, credential=reads), 403, "insufficient_scope")
    for each in ("/v2/files", path, f"{path}/content"):
        refused(await api.call("GET", each, credential=writes), 403, "insufficient_scope")
        assert (await api.call("GET", each, credential=reads)).status_code == 200
    refused(await api.as_session("POST", "/v2/files", files=sent), 401, "wrong_credential_type")
    refused(await api.call("POST", "/v2/files", files=sent), 401, "missing_credentials")


async def test_files_are_limited_in_size_number_and_sum(api: Api) -> None:
    api.configure(file_bytes_max=2000, files_max=3, files_bytes_max=3000)
    refused(await upload(api, bytes(2001)), 413, "request_too_large")
    refused(await send(api, bytes(2001), "image/png"), 413, "request_too_large")
    ok(await upload(api, PNG + bytes(1500)))
    refused(await upload(api, PNG + bytes(1600)), 409, "file_limit_reached")
    ok(await upload(api))
    last = ok(await upload(api))
    response = await upload(api)
    refused(response, 409, "file_limit_reached")
    assert response.headers["X-Should-Retry"] == "false"
    api.change(now=lambda: api.now + timedelta(seconds=UPLOAD_S))
    ok(await api.as_key("DELETE", f"/v2/files/{last['file_id']}"))
    ok(await upload(api))
    assert leftovers(api) == []


async def test_uploads_that_are_deleted_again_stay_within_the_limit(api: Api) -> None:
    """What the store has of an account counts, also what was deleted and cannot be removed from the store yet."""
    api.configure(files_bytes_max=3 * len(LARGE))
    stored = []
    for number in range(5):
        response = await upload(api, LARGE + bytes([number]))
        if response.status_code == 200:
            file = ok(response)
            stored.append(Content(file["sha256"], file["content_type"]))
            ok(await api.as_key("DELETE", f"/v2/files/{file['file_id']}"))
        else:
            refused(response, 409, "file_limit_reached")
    assert len(stored) == 2
    assert ok(await api.as_key("GET", "/v2/files"))["data"] == []

    async def removable(after_s: float) -> list[Content]:
        at, first = api.now + timedelta(seconds=after_s), ExpiredFile(*FIRST_EXPIRED)
        await api.database.work(sweep_files, at, after=first, most=10)
        return (await api.database.work(mark_contents, at, after=START, page_max=10)).contents

    assert await removable(UPLOAD_S - 1) == []
    refused(await upload(api, LARGE + LARGE), 409, "file_limit_reached")
    assert {*stored} <= {*await removable(UPLOAD_S + 1)}
    ok(await upload(api, LARGE + LARGE))


async def test_the_fields_of_a_web_form_are_no_file(api: Api) -> None:
    content_type = "application/x-www-form-urlencoded"
    response = await api.as_key("POST", "/v2/files", content=b"file=a", headers={"Content-Type": content_type})
    error = refused(response, 415, "unsupported_media_type")
    assert error["message"] == (
        "A body of application/x-www-form-urlencoded is no file. Send the file as the part file of "
        "multipart/form-data, or alone with a Content-Type of its own, such as application/octet-stream."
    )
    assert ok(await api.as_key("GET", "/v2/files"))["data"] == []


async def test_what_exceeds_the_limit_does_not_reach_the_store(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    api.configure(files_bytes_max=3000)

    def put(*_: object) -> str:
        raise AssertionError("it was stored")

    async def chunks() -> AsyncIterator[bytes]:
        yield PNG
        yield bytes(3000)

    monkeypatch.setattr(api.store, "put", put)
    refused(await upload(api, PNG + bytes(3000)), 409, "file_limit_reached")
    headers = {"Content-Type": "image/png"}  # in chunks, without the length that shows it
    refused(await api.as_key("POST", "/v2/files", content=chunks(), headers=headers), 409, "file_limit_reached")


async def test_uploads_at_once_never_exceed_the_limit(api: Api) -> None:
    api.configure(files_max=5)
    responses: list[httpx2.Response] = []

    async def one() -> None:
        responses.append(await upload(api))

    async with trio.open_nursery() as nursery:
        for _ in range(12):
            nursery.start_soon(one)
    assert sorted(each.status_code for each in responses) == [200] * 5 + [409] * 7


BAD_FORMS = (
    (b"", 400, "invalid_form"),
    (b"not a form", 400, "invalid_form"),
    (part("file", PNG, "a.png"), 400, "invalid_form"),
    (b"--x--\r\n", 400, "missing_parameter"),
    (part("note", b"1") + b"--x--", 400, "missing_parameter"),
    (part("file", b"", "a.png") + b"--x--", 400, "invalid_parameter"),
    (part("file", PNG) + part("file", PNG) + b"--x--", 400, "invalid_parameter"),
    (part("file", PNG) + part("other", PNG, "b.png") + b"--x--", 400, "invalid_parameter"),
    (part("file", PNG) + part("note", b"\xff") + b"--x--", 400, "invalid_parameter"),
    (part("file", PNG) + part("note", bytes(1)) + b"--x--", 400, "invalid_parameter"),
    (part("note", b"1" * (FIELDS_BYTES_MAX + 1)) + b"--x--", 400, "invalid_parameter"),
    (part("a", b"1" * 40_000) + part("b", b"1" * 40_000) + part("file", PNG) + b"--x--", 400, "invalid_parameter"),
    (part("note", b"1") * (PARTS_MAX + 1) + b"--x--", 400, "invalid_form"),
    (part("file", PNG).replace(b"form-data", b"attachment") + b"--x--", 400, "invalid_form"),
    (part("file", PNG).replace(b"\r\n\r\n", b"\r\nA: " + b"1" * 9000 + b"\r\n\r\n"), 400, "invalid_form"),
)


async def test_a_bad_form_is_refused_and_stores_nothing(api: Api) -> None:
    for body, status, code in BAD_FORMS:
        refused(await send(api, body), status, code)
    assert ok(await api.as_key("GET", "/v2/files"))["data"] == []
    assert leftovers(api) == []


@pytest.mark.parametrize("content_type", ["multipart/mixed; boundary=x", "multipart/form-data"])
async def test_another_kind_of_form_is_refused(api: Api, content_type: str) -> None:
    refused(await send(api, part("file", PNG) + b"--x--", content_type), 415, "unsupported_media_type")


async def test_fields_beside_the_file_are_ignored(api: Api) -> None:
    ok(await send(api, part("purpose", b"vision") + part("file", PNG) + b"--x--\r\n"))


async def test_an_empty_body_is_no_file(api: Api) -> None:
    refused(await send(api, b"", "image/png"), 400, "invalid_parameter")


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 507, "storage_full"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), 507, "storage_full"),
        (OSError(errno.EIO, "Input/output error"), 503, "temporarily_unavailable"),
        (StoreFault("the bucket is away"), 503, "temporarily_unavailable"),
    ],
)
async def test_a_disk_that_takes_nothing_loses_nothing(
    api: Api, monkeypatch: pytest.MonkeyPatch, fault: OSError, status: int, code: str
) -> None:
    before = ok(await upload(api))

    def put(*_: object) -> str:
        raise fault

    with monkeypatch.context() as patch:
        patch.setattr(api.store, "put", put)
        response = await upload(api, LARGE)
        refused(response, status, code)
        assert "Retry-After" in response.headers
    assert [each["file_id"] for each in ok(await api.as_key("GET", "/v2/files"))["data"]] == [before["file_id"]]
    assert (await api.database.read(files_total, api.account_id)).files == 1
    assert ok(await upload(api, LARGE))["bytes"] == len(LARGE)
    assert leftovers(api) == []


async def test_a_full_disk_is_noticed_while_the_body_comes(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    refused(await upload(api, LARGE), 507, "storage_full")


async def test_a_resent_upload_is_another_file_of_the_same_content(api: Api) -> None:
    first, second = ok(await upload(api)), ok(await upload(api))
    assert first["file_id"] != second["file_id"]
    ok(await api.as_key("DELETE", f"/v2/files/{first['file_id']}"))
    late = api.now + timedelta(days=6)
    marked = await api.database.work(mark_contents, late, after=Content("", ""), page_max=10)
    assert marked.contents == []
    assert (await api.call("GET", path_of(second["url"]))).content == PNG
    ok(await api.as_key("DELETE", f"/v2/files/{second['file_id']}"))
    await api.database.work(sweep_files, late, after=ExpiredFile(*FIRST_EXPIRED), most=10)
    marked = await api.database.work(mark_contents, late, after=Content("", ""), page_max=10)
    assert marked.contents == [Content(first["sha256"], "image/png")]


class BusyClaims:
    """Refuses the first claims: their content is being removed."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.claimed: list[Content] = []

    def claim(self, content: Content, at: object) -> bool:
        self.claimed.append(content)
        return len(self.claimed) > self.refusals


@pytest.mark.parametrize("refusals", [1, CLAIM_TRIES])
async def test_a_content_that_is_being_removed_is_stored_after_that(
    api: Api, monkeypatch: pytest.MonkeyPatch, refusals: int
) -> None:
    monkeypatch.setattr("holdfast.http.kit.uploads.CLAIM_PAUSE_S", 0.0)
    claims = BusyClaims(refusals)
    api.change(claims=claims)
    response = await upload(api)
    if refusals < CLAIM_TRIES:
        assert ok(response)["bytes"] == len(PNG)
        assert len(claims.claimed) == refusals + 1
    else:
        refused(response, 503, "temporarily_unavailable")
