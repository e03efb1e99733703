"""The provider registry: reloads, unchanged providers, and how long earlier catalogs are retained."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio

from holdfast.settings import load_settings
from holdfast.wiring.provider_registry import PAST_CATALOGS_MAX, ProviderRegistry

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
CATALOG = """
[providers.box]
kind = "cog"
url = "http://Box.internal:5000"
secret = "secret of the box"
[providers.spare]
kind = "cog"
url = "https://spare.example"
secret = "secret of the spare"
[[models]]
id = "m"
modality = "image"
type = "async"
created = "2026-11-01"
pricing = { mode = "per_request", unit_price = "1" }
upstream = { provider = "box" }
input_schema = { type = "object" }
"""


class Stocked:
    """A registry over a file that the test writes, at a time that it sets."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "catalog.toml"
        self.file.write_text(CATALOG)
        self.now = NOW
        self.counted_s = 0.0
        values = {"HOLDFAST_CATALOG": str(self.file), "HOLDFAST_DATA_DIR": str(folder)}
        self.registry = ProviderRegistry(
            load_settings(values),
            studio_url="http://127.0.0.1:7000",
            now=lambda: self.now,
            counter=lambda: self.counted_s,
        )

    async def write(self, text: str) -> bool:
        self.file.write_text(text)
        with trio.fail_after(10):
            return await self.registry.reload()


@pytest.fixture
def stocked(tmp_path: Path) -> Stocked:
    return Stocked(tmp_path)


def priced(price: str) -> str:
    return CATALOG.replace('unit_price = "1"', f'unit_price = "{price}"')


async def test_a_reload_reaches_holders_of_the_registrys_mappings(stocked: Stocked) -> None:
    providers, origins = stocked.registry.providers, stocked.registry.origins
    assert set(origins) == {("box.internal", 5000), ("spare.example", 443)}
    assert await stocked.write(CATALOG.replace("spare.example", "new.example").replace("5000", "5001"))
    assert stocked.registry.providers is providers
    assert stocked.registry.origins is origins
    assert set(origins) == {("box.internal", 5001), ("new.example", 443)}


async def test_a_provider_whose_table_has_not_changed_keeps_its_connections(stocked: Stocked) -> None:
    box, spare = stocked.registry.providers["box"], stocked.registry.providers["spare"]
    assert await stocked.write(priced("2").replace("spare.example", "other.example"))
    assert stocked.registry.providers["box"] is box
    assert stocked.registry.providers["spare"] is not spare
    assert await stocked.write(CATALOG[CATALOG.index("[[models]]") :].replace('"box"', '"studio"'))
    assert list(stocked.registry.slots()) == ["studio"]


async def test_a_provider_that_leaves_the_catalog_ends_its_jobs_within_a_grace(stocked: Stocked) -> None:
    registry, box = stocked.registry, stocked.registry.providers["box"]
    without_box = CATALOG[CATALOG.index("[[models]]") :].replace('"box"', '"studio"')
    assert await stocked.write(without_box)
    # It gets no new jobs, and updates of its jobs are accepted.
    assert ("box" in registry.slots(), registry.traits("box").listed, registry.providers["box"]) == (
        False,
        "lately",
        box,
    )
    assert list(registry.callback_secrets("box")) == ["secret of the box"]
    stocked.counted_s += 299
    assert not registry.removed("box")
    assert await stocked.write(CATALOG)
    assert registry.traits("box").listed == "yes"
    assert await stocked.write(without_box)
    stocked.counted_s += 300
    assert (registry.removed("box"), registry.traits("box").listed) == (True, "no")
    assert list(registry.callback_secrets("box")) == []


async def test_a_provider_that_was_gone_before_the_start_has_a_grace_from_the_first_question(
    stocked: Stocked,
) -> None:
    assert stocked.registry.traits("unheard-of").listed == "lately"
    stocked.counted_s += 300
    assert stocked.registry.traits("unheard-of").listed == "no"


@pytest.mark.parametrize(
    "text",
    [
        "nonsense = [",
        CATALOG.replace("per_request", "per_wish"),
        "",
        CATALOG.replace("spare.example", "256.1.1.1"),
        CATALOG.replace("spare.example", "spare\\u0001.example"),
    ],
)
async def test_a_catalog_with_faults_changes_nothing(stocked: Stocked, text: str) -> None:
    catalog, providers = stocked.registry.catalog, dict(stocked.registry.providers)
    assert not await stocked.write(text)
    stocked.file.unlink()
    assert not await stocked.registry.reload()
    assert stocked.registry.catalog is catalog
    assert stocked.registry.providers == providers
    assert stocked.registry.origins


async def test_an_earlier_catalog_is_known_as_long_as_its_quotes_live(stocked: Stocked) -> None:
    first = stocked.registry.catalog
    assert stocked.registry.catalog_of(first.version) is first
    assert await stocked.write(priced("2"))
    assert stocked.registry.catalog_of(first.version) is first
    assert stocked.registry.catalog_of("cat_unknown") is None
    stocked.now = NOW + timedelta(seconds=899)
    assert stocked.registry.catalog_of(first.version) is first
    stocked.now = NOW + timedelta(seconds=900)
    assert stocked.registry.catalog_of(first.version) is None


async def test_a_catalog_that_comes_back_is_in_force_and_was_never_past(stocked: Stocked) -> None:
    first = stocked.registry.catalog.version
    for text in (priced("2"), CATALOG, CATALOG):
        assert await stocked.write(text)
    assert stocked.registry.catalog.version == first
    stocked.now = NOW + timedelta(days=1)
    assert stocked.registry.catalog_of(first) is stocked.registry.catalog


async def test_only_so_many_catalogs_are_remembered(stocked: Stocked) -> None:
    seen: list[str] = []
    for number in range(PAST_CATALOGS_MAX + 3):
        seen.append(stocked.registry.catalog.version)
        assert await stocked.write(priced(f"{number + 2}"))
    known = [stocked.registry.catalog_of(version) is not None for version in seen]
    assert known == [False] * 3 + [True] * PAST_CATALOGS_MAX
