"""The store of finished media, and the links that open it."""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from holdfast.ledger.links import PublicUrls, check_link, sign_link
from holdfast.providers.storage.base import (
    BLOCK_BYTES,
    AssetCorrupt,
    AssetMissing,
    AssetStore,
    StoreFault,
    asset_key,
)
from holdfast.providers.storage.local import LocalStore
from holdfast.providers.storage.s3 import PART_BYTES, PIECE_BYTES, S3Store
from holdfast.providers.storage.spool import MEMORY_BYTES_MAX, Spool

if TYPE_CHECKING:
    from tests.bucket_server import BucketServer

CONTENT = bytes(range(256)) * 2000
SHA = hashlib.sha256(CONTENT).hexdigest()
NOW = datetime(2026, 11, 20, 18, 40, tzinfo=UTC)
KEY = b"asset-link-key"
KINDS = ("local", "s3")


class Stored(NamedTuple):
    """A store under test, and a look into it that does not go through it."""

    store: AssetStore
    keys: Callable[[], list[str]]


@pytest.fixture(params=KINDS)
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stored]:
    """Each kind of store in turn, empty."""
    if request.param == "local":
        yield Stored(LocalStore(tmp_path / "data"), lambda: files_in(tmp_path / "data"))
        return
    bucket: BucketServer = request.getfixturevalue("bucket")
    bucket.empty()
    yield Stored(s3_store(bucket, tmp_path), lambda: sorted(bucket.objects()))


def s3_store(server: BucketServer, directory: Path, **changed: Any) -> S3Store:
    return S3Store(msgspec.structs.replace(server.location, **changed), retries_max=0)


def source_file(directory: Path, content: bytes = CONTENT) -> Path:
    path = directory / "source"
    path.write_bytes(content)
    return path


UNREADABLE = Path("/proc/self/mem")
"""A file that can be opened, and whose beginning cannot be read."""


async def put(store: AssetStore, content: bytes | Path, sha256: str, extension: str) -> str:
    if isinstance(content, bytes):
        return await trio.to_thread.run_sync(store.put, content, sha256, extension)
    with content.open("rb") as file:
        return await trio.to_thread.run_sync(store.put, file, sha256, extension)


async def read(store: AssetStore, key: str, start: int = 0, end: int | None = None) -> bytes:
    async with await store.open(key, start, end) as reader:
        blocks = [block async for block in reader]
    assert all(0 < len(block) <= BLOCK_BYTES for block in blocks)
    return b"".join(blocks)


def files_in(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


async def test_content_is_stored_under_its_hash_and_read_back(stored: Stored, tmp_path: Path) -> None:
    store = stored.store
    await store.prepare()
    source = source_file(tmp_path)
    key = await put(store, source, SHA, "png")
    assert key == f"assets/{SHA[:2]}/{SHA}.png"
    assert await read(store, key) == CONTENT
    assert await read(store, key, 10, 20) == CONTENT[10:20]
    assert await read(store, key, 7, 7) == b""
    assert await read(store, key, BLOCK_BYTES - 1) == CONTENT[BLOCK_BYTES - 1 :]
    assert await read(store, key, 5, 10**9) == CONTENT[5:]
    assert await read(store, key, 10**9) == b""
    assert stored.keys() == [key]


async def test_storing_again_is_storing_once(stored: Stored, tmp_path: Path) -> None:
    source = source_file(tmp_path)
    keys = {await put(stored.store, source, SHA, "png") for _ in range(3)}
    assert stored.keys() == [*keys]


async def test_bytes_are_stored_like_a_file(stored: Stored) -> None:
    key = await put(stored.store, CONTENT, SHA, "png")
    assert await read(stored.store, key) == CONTENT


async def test_nothing_at_all_can_be_content(stored: Stored) -> None:
    key = await put(stored.store, b"", hashlib.sha256(b"").hexdigest(), "png")
    async with await stored.store.open(key) as reader:
        assert [block async for block in reader] == []


async def test_other_content_than_announced_is_not_stored(stored: Stored, tmp_path: Path) -> None:
    with pytest.raises(AssetCorrupt):
        await put(stored.store, b"other", SHA, "png")
    with pytest.raises(AssetCorrupt):
        await put(stored.store, source_file(tmp_path), "0" * 64, "png")
    assert stored.keys() == []


async def test_content_that_cannot_be_read_leaves_nothing(stored: Stored, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"Input/output error|cannot be read"):
        await put(stored.store, UNREADABLE, SHA, "png")
    assert stored.keys() == []


async def test_delete_is_final_and_repeatable(stored: Stored, tmp_path: Path) -> None:
    store = stored.store
    key = await put(store, source_file(tmp_path), SHA, "png")
    await store.delete(key)
    await store.delete(key)
    assert stored.keys() == []
    for start, end in ((0, None), (3, 5), (7, 7)):
        with pytest.raises(AssetMissing):
            await store.open(key, start, end)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "assets/../etc/passwd",
        f"assets/aa/{SHA}.png",
        f"assets/{SHA[:2]}/{SHA}.png/x",
        f"assets/{SHA[:2]}/{SHA}",
    ],
)
async def test_what_is_no_key_is_refused(stored: Stored, key: str) -> None:
    for ask in (stored.store.open, stored.store.delete):
        with pytest.raises(ValueError, match="key"):
            await ask(key)


@pytest.mark.parametrize(("sha256", "extension"), [("A" * 64, "png"), ("ab", "png"), (SHA, "../x"), (SHA, "")])
def test_what_cannot_be_a_key_makes_none(sha256: str, extension: str) -> None:
    with pytest.raises(ValueError, match="key"):
        asset_key(sha256, extension)


async def test_leftovers_of_a_crash_are_removed(tmp_path: Path) -> None:
    aside = tmp_path / "assets" / "incoming"
    aside.mkdir(parents=True)
    for name, age_s in (("left", 90), ("locked", 90), ("young", 10)):
        (aside / name).write_bytes(b"x")
        os.utime(aside / name, (time.time() - age_s,) * 2)
    with (aside / "locked").open("r+b") as of_a_writer:
        fcntl.flock(of_a_writer, fcntl.LOCK_EX)
        await LocalStore(tmp_path).prepare()
        assert files_in(aside) == ["locked", "young"]
    await LocalStore(tmp_path).remove_leftovers()
    assert files_in(aside) == ["young"]


async def test_a_fault_of_the_disk_names_the_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "data"
    with pytest.raises(NotADirectoryError) as not_stored:
        LocalStore(folder).put(CONTENT, SHA, "png")
    with pytest.raises(NotADirectoryError) as not_spooled:
        Spool(folder).write(bytes(MEMORY_BYTES_MAX + 1))
    assert [fault.value.strerror for fault in (not_stored, not_spooled)] == [
        f"Not a directory in {folder}/assets",
        f"Not a directory in {folder}",
    ]


async def test_a_large_file_goes_up_and_comes_down_in_parts(tmp_path: Path, bucket: BucketServer) -> None:
    content = CONTENT * (PART_BYTES // len(CONTENT) + 1)
    sha256 = hashlib.sha256(content).hexdigest()
    store = s3_store(bucket, tmp_path)
    key = await put(store, source_file(tmp_path, content), sha256, "mp4")
    etag = bucket.client().head_object(Bucket=bucket.location.s3_bucket, Key=key)["ETag"]
    assert etag.endswith('-2"')
    across = PIECE_BYTES - 10
    async with await store.open(key) as whole, await store.open(key, across, across + 20) as part:
        assert b"".join([block async for block in part]) == content[across : across + 20]
        assert b"".join([block async for block in whole]) == content
    async with await store.open(key) as left:
        assert len(await left.__anext__()) == BLOCK_BYTES
    await store.delete(key)


async def test_an_object_that_goes_while_it_is_read_breaks_the_reading(
    tmp_path: Path, bucket: BucketServer
) -> None:
    content = bytes(PIECE_BYTES + 1)
    store = s3_store(bucket, tmp_path)
    key = await put(store, content, hashlib.sha256(content).hexdigest(), "mp4")
    async with await store.open(key) as reader:
        await store.delete(key)
        with pytest.raises(AssetMissing):
            [block async for block in reader]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"s3_secret_access_key": "wrong-secret"}, "the secret of the access key is wrong"),
        ({"s3_access_key_id": "AKIAUNKNOWN"}, "the access key does not exist"),
        ({"s3_bucket": "elsewhere"}, "the access key may not"),
        ({"s3_bucket": "nowhere"}, "there is no bucket 'nowhere'"),
        ({"s3_endpoint": "http://127.0.0.1:1"}, "cannot be reached"),
    ],
)
async def test_the_error_of_an_unusable_bucket_names_no_secret(
    tmp_path: Path, bucket: BucketServer, changed: dict[str, str], message: str
) -> None:
    store = s3_store(bucket, tmp_path, **changed)
    key = asset_key(SHA, "png")
    for ask in (store.prepare, lambda: put(store, source_file(tmp_path), SHA, "png"), lambda: store.open(key)):
        with pytest.raises(StoreFault, match=message) as caught:
            await ask()
        whole = "".join(traceback.format_exception(caught.value))
        for secret in ("wrong-secret", bucket.location.s3_secret_access_key, "AKIAUNKNOWN", "<Error>", "http://"):
            assert secret not in whole


async def test_a_file_that_cannot_be_read_is_not_a_bucket_that_is_missing(
    tmp_path: Path, bucket: BucketServer
) -> None:
    with pytest.raises(StoreFault, match="the file to be stored cannot be read"):
        await put(s3_store(bucket, tmp_path), UNREADABLE, SHA, "png")


async def test_what_stands_in_the_environment_for_others_changes_nothing(
    tmp_path: Path, bucket: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "AWS_SESSION_TOKEN": "another", "AWS_ACCESS_KEY_ID": "another", "AWS_SECRET_ACCESS_KEY": "another",
        "AWS_ENDPOINT": "http://127.0.0.1:1", "AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_REGION": "moon-1",
        "AWS_SKIP_SIGNATURE": "true", "AWS_BUCKET": "another",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    await s3_store(bucket, tmp_path).prepare()


async def test_a_server_that_goes_silent_is_given_up(tmp_path: Path, bucket: BucketServer) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        location = msgspec.structs.replace(bucket.location, s3_endpoint=f"http://127.0.0.1:{deaf.getsockname()[1]}")
        store = S3Store(location, request_timeout_s=0.2, retries_max=0)
        with pytest.raises(StoreFault, match="does not respond in time"):
            await store.open(asset_key(SHA, "png"))
        patient = S3Store(location)
        with trio.move_on_after(0.05) as hurried:
            await patient.open(asset_key(SHA, "png"))
        assert hurried.cancelled_caught


def query(link: str) -> tuple[str, str]:
    exp, sig = link.split("&")
    return exp.removeprefix("exp="), sig.removeprefix("sig=")


def test_link_opens_one_asset_until_it_expires() -> None:
    exp, sig = query(sign_link("a1", NOW + timedelta(hours=1), KEY))
    assert check_link("a1", exp, sig, [KEY], NOW) == "valid"
    assert check_link("a1", exp, sig, [KEY], NOW + timedelta(seconds=3599)) == "valid"
    assert check_link("a1", exp, sig, [KEY], NOW + timedelta(seconds=3600)) == "expired"
    assert check_link("a2", exp, sig, [KEY], NOW) == "invalid"
    assert check_link("a1", str(int(exp) + 1), sig, [KEY], NOW) == "invalid"
    assert check_link("a1", exp, sig, [b"other"], NOW) == "invalid"
    assert check_link("a1", exp, sig, [b""], NOW) == "invalid"
    assert check_link("a1", exp, sig, [b"other", KEY], NOW) == "valid"
    assert check_link("a1", exp, sig.upper(), [KEY], NOW) in ("valid" if sig.isdigit() else "invalid", "invalid")


def test_links_are_signed_with_the_newest_key_and_opened_with_each() -> None:
    before, rotated, after = (
        PublicUrls(base="https://api.example.com", link_keys=keys, link_ttl_s=60)
        for keys in ((b"old",), (b"new", b"old"), (b"new",))
    )
    sig = before.unsubscribe_url("acct_1").rpartition("sig=")[2]
    assert [each.is_unsubscribe_link("acct_1", sig) for each in (before, rotated, after)] == [True, True, False]
    assert rotated.unsubscribe_url("acct_1") == after.unsubscribe_url("acct_1")
    assert rotated.asset_url("a1", NOW) == after.asset_url("a1", NOW) != before.asset_url("a1", NOW)
    assert rotated.file_url("f1", NOW) == after.file_url("f1", NOW) != before.file_url("f1", NOW)


def test_link_needs_a_key() -> None:
    with pytest.raises(ValueError, match="key"):
        sign_link("a1", NOW, b"")


@given(st.text(), st.none() | st.text(), st.none() | st.text())
def test_no_query_raises_or_opens(asset_id: str, exp: str | None, sig: str | None) -> None:
    assert check_link(asset_id, exp, sig, [KEY], NOW) == "invalid"
