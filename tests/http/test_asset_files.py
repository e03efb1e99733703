"""Stored results by signed link: whole files, ranges, and refusals."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
import trio
from tests.clients import refused

from holdfast.http.kit.stored_content import read_range
from holdfast.ledger.links import sign_link
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.records import tables
from holdfast.providers.storage.base import AssetMissing, StoreFault

if TYPE_CHECKING:
    from tests.http.api import Api

DATA = bytes(range(256)) * 5
SHA256 = hashlib.sha256(DATA).hexdigest()


async def stored_asset(api: Api, *, stored: bool = True, **columns: Any) -> str:
    """Keep an asset; the path of its link."""
    await api.store.prepare()
    if stored:
        await trio.to_thread.run_sync(api.store.put, DATA, SHA256, "png")
    values = {
        "account_id": api.account_id, "request_id": "task_a", "position": 0, "asset_id": "asset_a",
        "sha256": SHA256, "bytes": len(DATA), "content_type": "image/png", "created_at": api.now,
        "expires_at": api.now + timedelta(days=7), **columns,
    }  # fmt: skip
    await api.write(tables.assets.insert().values(**values))
    return link(api)


def link(api: Api, asset_id: str = "asset_a", *, for_s: int = 3600) -> str:
    query = sign_link(asset_id, api.now + timedelta(seconds=for_s), api.deps.urls.link_keys[0])
    return f"/v2/assets/{asset_id}?{query}"


async def test_a_link_returns_the_file_with_safe_headers(api: Api) -> None:
    response = await api.call("GET", await stored_asset(api))
    assert (response.status_code, response.content) == (200, DATA)
    expected = {
        "Content-Type": "image/png",
        "Content-Length": "1280",
        "ETag": f'"{SHA256}"',
        "Accept-Ranges": "bytes",
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "Content-Disposition": 'inline; filename="asset_a.png"',
        "Cache-Control": "private, max-age=3600",
    }
    assert {name: response.headers[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("asked", "start", "stop"),
    [("bytes=0-0", 0, 1), ("bytes=100-", 100, 1280), ("bytes=-10", 1270, 1280), ("bytes=1000-5000", 1000, 1280)],
)
async def test_a_range_is_served(api: Api, asked: str, start: int, stop: int) -> None:
    response = await api.call("GET", await stored_asset(api), headers={"Range": asked})
    assert (response.status_code, response.content) == (206, DATA[start:stop])
    assert response.headers["Content-Range"] == f"bytes {start}-{stop - 1}/1280"


@pytest.mark.parametrize("asked", ["bytes=1280-", "bytes=9999-10000", "bytes=-0"])
async def test_a_range_beyond_the_end_is_416(api: Api, asked: str) -> None:
    response = await api.call("GET", await stored_asset(api), headers={"Range": asked})
    refused(response, 416, "range_not_satisfiable")
    assert response.headers["Content-Range"] == "bytes */1280"


@pytest.mark.parametrize(
    "asked", [None, "", "bytes", "bytes=", "bytes=-", "bytes=2-1", "bytes=0-1,3-4", "lines=1-2"]
)
def test_anything_but_a_single_range_gets_the_whole_file(asked: str | None) -> None:
    assert read_range(asked, 10) is None


def test_an_empty_file_has_no_range() -> None:
    assert isinstance(read_range("bytes=0-", 0), Refusal)
    assert read_range("bytes=0-9", 10) == range(10)


async def test_a_cached_file_is_not_sent_again(api: Api) -> None:
    path = await stored_asset(api)
    response = await api.call("GET", path, headers={"If-None-Match": f'"other", W/"{SHA256}"'})
    assert (response.status_code, response.content) == (304, b"")
    stale = {"Range": "bytes=0-9", "If-Range": '"other"'}
    assert (await api.call("GET", path, headers=stale)).status_code == 200


async def test_head_returns_the_length_without_opening_the_file(api: Api) -> None:
    path = await stored_asset(api, stored=False)
    async with api.serving() as base, httpx2.AsyncClient(base_url=base) as client:
        whole, part = await client.head(path), await client.head(path, headers={"Range": "bytes=0-9"})
    assert (whole.status_code, whole.headers["Content-Length"]) == (200, str(len(DATA)))
    assert (part.status_code, part.headers["Content-Length"]) == (206, "10")
    assert whole.content == part.content == b""


async def test_altered_links_are_403_and_expired_links_410(api: Api) -> None:
    path = await stored_asset(api)
    other = path[:-1] + ("1" if path.endswith("0") else "0")
    for wrong in (other, path[:-1], path.replace("asset_a", "asset_b"), "/v2/assets/asset_a",
                  path + "&sig=" + "0" * 64, path.replace("exp=", "exp=1")):  # fmt: skip
        refused(await api.call("GET", wrong), 403, "invalid_link")
    refused(await api.call("GET", link(api, for_s=0)), 410, "asset_expired")
    refused(await api.call("GET", link(api, "asset_swept")), 410, "asset_expired")
    await api.write(tables.assets.update().values(expires_at=api.now))
    refused(await api.call("GET", path), 410, "asset_expired")


async def test_a_missing_file_is_a_500(api: Api) -> None:
    path = await stored_asset(api, stored=False)
    refused(await api.call("GET", path), 500, "internal_error")


async def test_a_file_deleted_after_its_row_was_read_has_expired(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    path = await stored_asset(api, stored=False)

    async def swept(key: str, *span: int) -> Any:
        await api.write(tables.assets.delete())
        raise AssetMissing(key)

    monkeypatch.setattr(api.store, "open", swept)
    refused(await api.call("GET", path), 410, "asset_expired")


async def test_an_unavailable_store_is_a_503_without_detail(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    path = await stored_asset(api)

    async def away(key: str, *span: int) -> Any:
        raise StoreFault("the bucket 'secret-name' cannot be reached")

    monkeypatch.setattr(api.store, "open", away)
    response = await api.call("GET", path)
    error = refused(response, 503, "temporarily_unavailable")
    assert "secret-name" not in error["message"]
    assert response.headers["Retry-After"] == "1"
