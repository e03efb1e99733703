"""A public price list becomes a catalog file: exact prices, marked gaps, and nothing that the check refuses."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.ledger import price_import
from holdfast.ledger.catalog import Catalog, parse_catalog
from holdfast.ledger.price_import import NotAPriceList, PriceImport, import_prices
from holdfast.ledger.quotes import PricedInput, quote_input

TODAY = date(2026, 11, 20)

# Written as text, so that the numbers stand as they do in the real list.
ROWS = """{
  "sample_spec": {"mode": "one of: chat, …", "input_cost_per_token": 0.0, "litellm_provider": "one of …"},
  "chatty": {"mode": "chat", "litellm_provider": "acme", "input_cost_per_token": 1.5e-07,
             "output_cost_per_token": 6E-7, "cache_read_input_token_cost": 7.5e-08, "max_output_tokens": 16384,
             "source": "https://acme.example/prices\\n[models]", "deprecation_date": "2026-11-20"},
  "acme/later": {"mode": "responses", "litellm_provider": "acme", "input_cost_per_token": 0.000001,
                 "output_cost_per_token": 2e-06, "deprecation_date": "2027-01-01"},
  "long": {"mode": "chat", "litellm_provider": "acme", "input_cost_per_token": 1e-6, "output_cost_per_token": 1e-6,
           "input_cost_per_token_above_200k_tokens": 2e-6},
  "thinker": {"mode": "chat", "litellm_provider": "acme", "input_cost_per_token": 1e-6,
              "output_cost_per_token": 1e-6, "output_cost_per_reasoning_token": 3e-6},
  "gift": {"mode": "chat", "litellm_provider": "acme", "input_cost_per_token": 0, "output_cost_per_token": 0.0},
  "half": {"mode": "chat", "litellm_provider": "acme", "input_cost_per_token": 1e-6},
  "silent": {"mode": "chat", "litellm_provider": "acme"},
  "fine": {"mode": "chat", "litellm_provider": "acme", "input_cost_per_token": 1.23456789e-12,
           "output_cost_per_token": 1e-16},
  "words": {"mode": "embedding", "litellm_provider": "acme", "input_cost_per_token": 1e-8},
  "pix/a b/painter": {"mode": "image_generation", "litellm_provider": "pix", "output_cost_per_image": 0.04,
                      "input_cost_per_token": 1e-6},
  "pix/old": {"mode": "image_generation", "litellm_provider": "pix", "input_cost_per_image": 0.02},
  "pix/sizes": {"mode": "image_generation", "litellm_provider": "pix", "output_cost_per_image": 0.08,
                "output_cost_per_image_4K": 0.16, "output_cost_per_image_0.5K": 0.06},
  "pix/odd": {"mode": "image_generation", "litellm_provider": "pix", "output_cost_per_image": 0.08,
              "output_cost_per_image_premium_image": 0.16},
  "pix/dots": {"mode": "image_generation", "litellm_provider": "pix", "output_cost_per_pixel": 2.5e-08,
               "output_cost_per_image": 0.025},
  "pix/touch": {"mode": "image_edit", "litellm_provider": "pix", "output_cost_per_image": 0.03},
  "reel/wan": {"mode": "video_generation", "litellm_provider": "Reel Co", "output_cost_per_second": 0.165025,
               "output_cost_per_second_1080p": 0.165025, "output_cost_per_second_480p": 0.041256},
  "reel/flat": {"mode": "video_generation", "litellm_provider": "Reel Co", "output_cost_per_video_per_second": 0.1},
  "voice/tts": {"mode": "audio_speech", "litellm_provider": "voice", "input_cost_per_character": 1.5e-05},
  "voice/timed": {"mode": "audio_speech", "litellm_provider": "voice", "output_cost_per_second": 0.00025},
  "voice/heard": {"mode": "audio_transcription", "litellm_provider": "voice", "input_cost_per_second": 0.0001}
}"""


def imported(rows: str | dict[str, Any] = ROWS, **options: Any) -> PriceImport:
    text = rows if isinstance(rows, str) else json.dumps(rows)
    return import_prices(text.encode(), today=TODAY, **options)


def catalog_of(made: PriceImport) -> Catalog:
    """The file as it is judged once each provider it needs has its table."""
    tables = "".join(f'[providers.{name}]\nkind = "cog"\nurl = "http://127.0.0.1"\n' for name in made.needs)
    return parse_catalog(made.text + tables, read_schema=str)


def reason(made: PriceImport, name: str) -> str:
    return dict(made.skipped)[name]


def estimate_micro(catalog: Catalog, model: str, given_input: Mapping[str, object]) -> int:
    priced = quote_input(catalog, model, dict(given_input))
    assert isinstance(priced, PricedInput), priced
    return priced.terms.estimate_micro


def test_tokens_are_priced_by_the_million_and_exactly() -> None:
    model = catalog_of(imported(select=["chatty"])).models["chatty"]
    assert (model.modality, model.type, model.status) == ("llm", "sync", "deprecated")
    assert (model.pricing.input_price, model.pricing.output_price) == ("0.15", "0.6")
    assert (model.pricing.unit, model.pricing.unit_size) == ("1M tokens", 1_000_000)
    assert model.schema.number_range("max_output_tokens")[1] == 16384


def test_language_models_alone_need_no_provider() -> None:
    made = imported(select=["chatty", "acme/*"])
    assert made.needs == ()
    assert list(parse_catalog(made.text, read_schema=str).models) == ["chatty", "acme/later"]
    assert parse_catalog(made.text, read_schema=str).models["acme/later"].status == "active"
    assert parse_catalog(made.text, read_schema=str).models["acme/later"].upstream_model == "later"


def test_the_markup_is_that_of_the_whole_file() -> None:
    models = catalog_of(imported(markup="1.25")).models.values()
    assert {model.markup_multiplier for model in models} == {"1.25"}


def test_media_are_priced_by_what_the_list_counts() -> None:
    catalog = catalog_of(imported())
    assert estimate_micro(catalog, "pix/a-b/painter", {"prompt": "x", "n": 2}) == 80_000
    assert estimate_micro(catalog, "pix/old", {"prompt": "x"}) == 20_000
    assert estimate_micro(catalog, "pix/dots", {"prompt": "x", "width": 1000, "height": 2000}) == 50_000
    edit = {"prompt": "x", "image_url": "https://example.com/x.png"}
    assert estimate_micro(catalog, "pix/touch", edit) == 30_000
    assert estimate_micro(catalog, "reel/flat", {"prompt": "x", "duration": 3}) == 300_000
    assert estimate_micro(catalog, "voice/tts", {"text": "x" * 1000}) == 15_000
    assert estimate_micro(catalog, "voice/timed", {"text": "x", "duration": 4}) == 1_000


def test_columns_of_resolutions_become_tiers_beside_a_base_for_inputs_that_name_none() -> None:
    catalog = catalog_of(imported())
    for resolution, cost in (("480p", 41_256), ("1080p", 165_025), (None, 165_025)):
        named: dict[str, object] = {} if resolution is None else {"resolution": resolution}
        assert estimate_micro(catalog, "reel/wan", {"prompt": "x", "duration": 1, **named}) == cost
    assert [tier.when["resolution"] for tier in catalog.models["pix/sizes"].pricing.tiers] == ["0.5K", "4K"]
    assert catalog.warnings == ()


def test_each_provider_that_is_needed_is_marked_in_the_file() -> None:
    made = imported(select=["pix/*", "reel/*", "voice/*"])
    assert made.needs == ("pix", "reel-co", "voice")
    for name in made.needs:
        assert f"# [providers.{name}]" in made.text
    assert imported(provider="box").needs == ("box",)


def test_the_studio_of_the_service_can_run_them_all() -> None:
    made = imported(provider="studio")
    assert made.needs == ()
    assert {model.provider for model in parse_catalog(made.text, read_schema=str).models.values()} == {"studio"}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("long", "input_cost_per_token_above_200k_tokens"),
        ("thinker", "reasoning costs more"),
        ("gift", "all zero"),
        ("half", "not priced by tokens in and out"),
        ("silent", "names no price"),
        ("fine", "more digits than a catalog takes"),
        ("words", "mode embedding"),
        ("voice/heard", "mode audio_transcription"),
        ("pix/odd", "output_cost_per_image_premium_image"),
    ],
)
def test_what_cannot_be_said_is_left_out_with_its_reason(name: str, said: str) -> None:
    made = imported()
    assert said in reason(made, name)
    assert f"#   {name}: {reason(made, name)}" in made.text
    assert any(said in line for line in made.summary())
    assert name not in catalog_of(made).models


def test_the_example_row_is_no_model() -> None:
    assert "sample_spec" not in imported().text


def test_remarks_stay_remarks() -> None:
    text = imported(select=["chatty", "pix/a*"]).text
    assert "# source: https://acme.example/prices?[models]\n" in text
    assert "# deprecation_date: 2026-11-20\n" in text
    assert "# not counted in the price: cache_read_input_token_cost\n" in text
    assert "# not counted in the price: input_cost_per_token\n" in text


def test_names_that_become_one_id_are_numbered() -> None:
    row = {"mode": "image_edit", "output_cost_per_image": 1}
    made = imported({"a b": row, "a+b": row, "a-b": row, "/": row, "x" * 999: row, "a/b/c/d/e/f": row})
    assert list(catalog_of(made).models) == ["a-b", "a-b-2", "a-b-3", "a/b/c/d-e-f"]
    assert made.needs == ("unknown",)
    assert {each.reason for each in made.skipped} == {
        "its name has no letter or digit",
        "its name is not plain text",
    }


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"[]", "not an object"),
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b'{"a": NaN}', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"{}", "No entry"),
    ],
)
def test_what_is_no_price_list_is_refused(raw: bytes, said: str) -> None:
    with pytest.raises(NotAPriceList, match=said):
        import_prices(raw, today=TODAY)


def test_odd_options_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for options in (
        {"markup": "0"},
        {"markup": "1,2"},
        {"markup": "-1"},
        {"provider": "A B"},
        {"select": ["nothing*"]},
    ):
        with pytest.raises(NotAPriceList):
            imported(**options)
    monkeypatch.setattr(price_import, "FILE_BYTES_MAX", 10)
    with pytest.raises(NotAPriceList, match="10 bytes"):
        imported()


columns = st.sampled_from(
    [
        "input_cost_per_token",
        "output_cost_per_token",
        "output_cost_per_image",
        "output_cost_per_image_4K",
        "output_cost_per_pixel",
        "output_cost_per_second",
        "output_cost_per_second_720p",
        "input_cost_per_character",
        "max_output_tokens",
    ]
)
cells = (
    st.decimals(0, 10, places=9).map(str)
    | st.sampled_from(["1e-6", "0", "-1", "1e999999999", "1e-999999999", '"x"', "null", "true", "[]", "1" * 50])
    | st.text(max_size=5).map(json.dumps)
)
modes = st.sampled_from(["chat", "image_generation", "image_edit", "video_generation", "audio_speech", "other"])


@given(
    rows=st.dictionaries(
        st.text(max_size=12),
        st.tuples(modes, st.text(max_size=8), st.dictionaries(columns, cells, max_size=4)),
        min_size=1,
        max_size=5,
    )
)
def test_any_list_gives_a_file_that_passes_or_reasons(
    rows: dict[str, tuple[str, str, dict[str, str]]],
) -> None:
    written = []
    for name, (mode, text, cost) in rows.items():
        fixed = {"mode": mode, "litellm_provider": text, "source": text, "deprecation_date": text}
        pairs = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in fixed.items()]
        pairs += [f"{json.dumps(key)}: {value}" for key, value in cost.items()]
        written.append(f"{json.dumps(name)}: {{{', '.join(pairs)}}}")
    if set(rows) == {"sample_spec"}:
        return
    made = imported(f"{{{', '.join(written)}}}")
    assert made.models + len(made.skipped) == len(rows.keys() - {"sample_spec"})
    assert bool(made.text) == bool(made.models)
    if made.models:
        assert len(catalog_of(made).models) == len(tomllib.loads(made.text)["models"]) == made.models


@given(price=st.decimals(Decimal("1e-9"), Decimal("0.5"), places=12))
def test_a_price_keeps_every_digit(price: Decimal) -> None:
    row = f'{{"m": {{"mode": "chat", "input_cost_per_token": {price:e}, "output_cost_per_token": {price}}}}}'
    pricing = catalog_of(imported(row)).models["m"].pricing
    assert pricing.input_price == pricing.output_price
    assert Decimal(pricing.input_price or "") == price * 1_000_000
