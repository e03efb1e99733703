"""The store of finished media, and the links that open it."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from holdfast.providers.assets import BLOCK_BYTES, AssetCorrupt, AssetMissing, AssetStore, LocalStore, asset_key
from holdfast.providers.links import check_link, sign_link

CONTENT = bytes(range(256)) * 2000
SHA = hashlib.sha256(CONTENT).hexdigest()
NOW = datetime(2026, 11, 20, 18, 40, tzinfo=UTC)
KEY = b"asset-link-key"


def source_file(directory: Path) -> Path:
    path = directory / "source"
    path.write_bytes(CONTENT)
    return path


async def read(store: AssetStore, key: str, start: int = 0, end: int | None = None) -> bytes:
    async with await store.open(key, start, end) as reader:
        assert reader.size_bytes == len(CONTENT)
        return b"".join([block async for block in reader])


def files_in(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


async def test_content_is_stored_under_its_hash_and_read_back(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "data")
    source = source_file(tmp_path)
    key = await store.put(source, SHA, "png")
    assert key == f"assets/{SHA[:2]}/{SHA}.png"
    assert await store.exists(key)
    assert await read(store, key) == CONTENT
    assert await read(store, key, 10, 20) == CONTENT[10:20]
    assert await read(store, key, BLOCK_BYTES - 1) == CONTENT[BLOCK_BYTES - 1 :]
    assert await read(store, key, 5, 10**9) == CONTENT[5:]
    assert await read(store, key, 10**9) == b""
    assert store.local_path(key) == tmp_path / "data" / key
    assert source.exists()
    assert files_in(tmp_path / "data") == [key]


async def test_storing_again_is_storing_once(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "data")
    source = source_file(tmp_path)
    keys = {await store.put(source, SHA, "png") for _ in range(3)}
    assert files_in(tmp_path / "data") == [*keys]


async def test_stream_is_stored_like_a_file(tmp_path: Path) -> None:
    async def blocks() -> AsyncIterator[bytes]:
        for place in range(0, len(CONTENT), 100_000):
            yield CONTENT[place : place + 100_000]

    store = LocalStore(tmp_path)
    assert await read(store, await store.put(blocks(), SHA, "png")) == CONTENT


async def test_other_content_than_announced_is_not_stored(tmp_path: Path) -> None:
    async def blocks() -> AsyncIterator[bytes]:
        yield b"other"

    store = LocalStore(tmp_path / "data")
    with pytest.raises(AssetCorrupt):
        await store.put(blocks(), SHA, "png")
    with pytest.raises(AssetCorrupt):
        await store.put(source_file(tmp_path), "0" * 64, "png")
    assert files_in(tmp_path / "data") == []


async def test_stream_that_breaks_leaves_nothing(tmp_path: Path) -> None:
    async def blocks() -> AsyncIterator[bytes]:
        yield b"some"
        raise ConnectionError

    store = LocalStore(tmp_path)
    with pytest.raises(ConnectionError):
        await store.put(blocks(), SHA, "png")
    with trio.move_on_after(0.05):

        async def stuck() -> AsyncIterator[bytes]:
            yield b"some"
            await trio.sleep_forever()

        await store.put(stuck(), SHA, "png")
    assert files_in(tmp_path) == []


async def test_delete_is_final_and_repeatable(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "data")
    key = await store.put(source_file(tmp_path), SHA, "png")
    await store.delete(key)
    await store.delete(key)
    assert not await store.exists(key)
    with pytest.raises(AssetMissing):
        await store.open(key)


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
async def test_what_is_no_key_is_refused(tmp_path: Path, key: str) -> None:
    store = LocalStore(tmp_path)
    for ask in (store.open, store.exists, store.delete):
        with pytest.raises(ValueError, match="key"):
            await ask(key)


@pytest.mark.parametrize(("sha256", "extension"), [("A" * 64, "png"), ("ab", "png"), (SHA, "../x"), (SHA, "")])
def test_what_cannot_be_a_key_makes_none(sha256: str, extension: str) -> None:
    with pytest.raises(ValueError, match="key"):
        asset_key(sha256, extension)


async def test_old_leftovers_of_a_crash_are_cleared(tmp_path: Path) -> None:
    aside = tmp_path / "assets" / "incoming"
    aside.mkdir(parents=True)
    for name, age_s in (("old", 90_000), ("young", 10)):
        (aside / name).write_bytes(b"x")
        os.utime(aside / name, (time.time() - age_s,) * 2)
    await LocalStore(tmp_path).prepare()
    assert files_in(aside) == ["young"]


def query(link: str) -> tuple[str, str]:
    exp, sig = link.split("&")
    return exp.removeprefix("exp="), sig.removeprefix("sig=")


def test_link_opens_one_asset_until_it_expires() -> None:
    exp, sig = query(sign_link("a1", NOW + timedelta(hours=1), KEY))
    assert check_link("a1", exp, sig, KEY, NOW) == "valid"
    assert check_link("a1", exp, sig, KEY, NOW + timedelta(seconds=3599)) == "valid"
    assert check_link("a1", exp, sig, KEY, NOW + timedelta(seconds=3600)) == "expired"
    assert check_link("a2", exp, sig, KEY, NOW) == "invalid"
    assert check_link("a1", str(int(exp) + 1), sig, KEY, NOW) == "invalid"
    assert check_link("a1", exp, sig, b"other", NOW) == "invalid"
    assert check_link("a1", exp, sig, b"", NOW) == "invalid"
    assert check_link("a1", exp, sig.upper(), KEY, NOW) in ("valid" if sig.isdigit() else "invalid", "invalid")


def test_link_needs_a_key() -> None:
    with pytest.raises(ValueError, match="key"):
        sign_link("a1", NOW, b"")


@given(st.text(), st.none() | st.text(), st.none() | st.text())
def test_no_query_raises_or_opens(asset_id: str, exp: str | None, sig: str | None) -> None:
    assert check_link(asset_id, exp, sig, KEY, NOW) == "invalid"
