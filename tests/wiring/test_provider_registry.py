"""The provider registry: reloads, unchanged providers, and how long earlier catalogs are retained."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
import trio

from holdfast.settings.settings import load_settings
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


class Setup:
    """A registry over a file that the test writes, at a time that it sets."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "catalog.toml"
        self.file.write_text(CATALOG)
        self.counted_s = 0.0
        values = {
            "HOLDFAST_CATALOG": str(self.file),
            "HOLDFAST_DATA_DIR": str(folder),
            "HOLDFAST_STUDIO_PORT": "7001",
        }
        self.registry = ProviderRegistry(
            load_settings(values),
            counter=lambda: self.counted_s,
        )

    async def write(self, text: str) -> bool:
        self.file.write_text(text)
        with trio.fail_after(60):
            return await self.registry.reload()


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


def priced(price: str) -> str:
    return CATALOG.replace('unit_price = "1"', f'unit_price = "{price}"')


async def test_a_reload_updates_the_shared_mappings(setup: Setup) -> None:
    providers, origins = setup.registry.providers, setup.registry.origins
    assert set(origins) == {("box.internal", 5000), ("spare.example", 443)}
    assert await setup.write(CATALOG.replace("spare.example", "new.example").replace("5000", "5001"))
    assert setup.registry.providers is providers
    assert setup.registry.origins is origins
    assert set(origins) == {("box.internal", 5001), ("new.example", 443)}


async def test_a_reload_keeps_unchanged_providers(setup: Setup) -> None:
    box, spare = setup.registry.providers["box"], setup.registry.providers["spare"]
    assert await setup.write(priced("2").replace("spare.example", "other.example"))
    assert setup.registry.providers["box"] is box
    assert setup.registry.providers["spare"] is not spare
    assert await setup.write(CATALOG[CATALOG.index("[[models]]") :].replace('"box"', '"studio"'))
    assert list(setup.registry.slots()) == ["studio"]


async def test_a_removed_provider_has_a_grace_period(setup: Setup) -> None:
    registry, box = setup.registry, setup.registry.providers["box"]
    without_box = CATALOG[CATALOG.index("[[models]]") :].replace('"box"', '"studio"')
    assert await setup.write(without_box)
    # It gets no new jobs, and updates of its jobs are accepted.
    assert ("box" in registry.slots(), registry.traits("box").listed, registry.providers["box"]) == (
        False,
        "recently",
        box,
    )
    assert list(registry.callback_secrets("box")) == ["secret of the box"]
    setup.counted_s += 299
    assert not registry.track_grace("box")
    assert await setup.write(CATALOG)
    assert registry.traits("box").listed == "yes"
    assert await setup.write(without_box)
    setup.counted_s += 300
    assert (registry.track_grace("box"), registry.traits("box").listed) == (True, "no")
    assert list(registry.callback_secrets("box")) == []


async def test_an_unknown_provider_has_a_grace_period_from_its_first_use(
    setup: Setup,
) -> None:
    assert setup.registry.traits("unknown").listed == "recently"
    setup.counted_s += 300
    assert setup.registry.traits("unknown").listed == "no"


@pytest.mark.parametrize(
    "text",
    [
        "nonsense = [",
        CATALOG.replace("per_request", "per_thing"),
        "",
        CATALOG.replace("spare.example", "256.1.1.1"),
        CATALOG.replace("spare.example", "spare\\u0001.example"),
    ],
)
async def test_a_catalog_with_faults_changes_nothing(setup: Setup, text: str) -> None:
    catalog, providers = setup.registry.catalog, dict(setup.registry.providers)
    assert not await setup.write(text)
    setup.file.unlink()
    assert not await setup.registry.reload()
    assert setup.registry.catalog is catalog
    assert setup.registry.providers == providers
    assert setup.registry.origins


async def test_an_earlier_catalog_is_retained_while_its_quotes_are_valid(setup: Setup) -> None:
    first = setup.registry.catalog
    assert setup.registry.catalog_of(first.version) is first
    assert await setup.write(priced("2"))
    assert setup.registry.catalog_of(first.version) is first
    assert setup.registry.catalog_of("cat_unknown") is None
    setup.counted_s = 899.0
    assert setup.registry.catalog_of(first.version) is first
    setup.counted_s = 900.0
    assert setup.registry.catalog_of(first.version) is None


async def test_a_catalog_that_returns_becomes_the_current_one(setup: Setup) -> None:
    first = setup.registry.catalog.version
    for text in (priced("2"), CATALOG, CATALOG):
        assert await setup.write(text)
    assert setup.registry.catalog.version == first
    setup.counted_s = 86_400.0
    assert setup.registry.catalog_of(first) is setup.registry.catalog


async def test_the_number_of_retained_catalogs_is_bounded(setup: Setup) -> None:
    seen: list[str] = []
    for number in range(PAST_CATALOGS_MAX + 3):
        seen.append(setup.registry.catalog.version)
        assert await setup.write(priced(f"{number + 2}"))
    known = [setup.registry.catalog_of(version) is not None for version in seen]
    assert known == [False] * 3 + [True] * PAST_CATALOGS_MAX


async def test_callback_addresses_of_checks_are_sealed_once(setup: Setup) -> None:
    hosted = '[providers.hosted]\nkind = "replicate"\ntoken = "r8_token_of_the_test"\n[[models]]'
    setup.file.write_text(CATALOG.replace("[[models]]", hosted, 1))
    assert await setup.registry.reload()

    def address(provider: str) -> str:
        return setup.registry.check_callback_url(
            provider, "check_1", public_url="https://holdfast.test", local_url="http://127.0.0.1:8000"
        )

    sealed, _, query = address("box").partition("?")
    assert sealed == "https://holdfast.test/v2/callback/box"
    assert query.startswith("request_id=check_1&attempt=1&seal=")
    # The provider of this kind adds the seal itself when it submits a job.
    assert address("hosted") == "https://holdfast.test/v2/callback/hosted"
