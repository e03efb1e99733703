"""Files in inputs: found where a schema has a link, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.ledger.catalog.catalog import load_catalog
from holdfast.ledger.catalog.input_schema import (
    InputFile,
    LinkFields,
    addresses_of,
    file_id_of,
    name_files,
    with_links,
)
from holdfast.ledger.catalog.pricing import PricedInput, quote_input
from holdfast.providers.media.kinds import kind_rules

BASE = "https://holdfast.example/at"
FILE, OTHER = "file_" + "1" * 32, "file_" + "2" * 32
LINK = {"type": "string", "format": "uri"}


@pytest.mark.parametrize(
    ("text", "file_id"),
    [
        (FILE, FILE),
        (f"{BASE}/v2/files/{FILE}", FILE),
        (f"{BASE}/v2/files/{FILE}/content?exp=1&sig=ab", FILE),
        (f"{BASE}/layer/v1/files/{FILE}", FILE),
        (f"{BASE}/v2/files/{FILE}/other", None),
        (f"{BASE}/v2/files/{FILE}1", None),
        (f"{BASE}.evil.example/v2/files/{FILE}", None),
        (f"https://other.example/v2/files/{FILE}", None),
        (f" {FILE}", None),
        (FILE.upper(), None),
        (f"{FILE}\n", None),
        ("file_1", None),
        ("", None),
    ],
)
def test_a_file_is_named_by_its_id_or_by_a_link_below_our_own_address(text: str, file_id: str | None) -> None:
    assert file_id_of(text, BASE) == file_id
    assert file_id_of(text, None) == (file_id if text == FILE else None)


def test_files_are_found_where_the_schema_has_a_link() -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "$defs": {"link": LINK},
        "properties": {
            "plain": {"type": "string"},
            "image": LINK,
            "masks": {"type": "array", "items": {"$ref": "#/$defs/link"}},
            "audio": {"anyOf": [LINK, {"type": "null"}]},
            "inner": {"type": "object", "properties": {"deep": {"allOf": [LINK]}}},
        },
    }
    given: dict[str, Any] = {
        "plain": FILE, "unknown": FILE, "image": f"{BASE}/v2/files/{FILE}",
        "masks": [OTHER, "https://a.example/", 3], "audio": FILE, "inner": {"deep": OTHER, "plain": OTHER},
    }  # fmt: skip
    named = name_files(given, LinkFields(schema).links_of(given), BASE)
    assert set(named) == {
        InputFile(("image",), FILE),
        InputFile(("masks", 0), OTHER),
        InputFile(("audio",), FILE),
        InputFile(("inner", "deep"), OTHER),
    }
    assert given["image"] == FILE
    linked = with_links(given, named, lambda each: f"link to {each[-1]}")
    assert linked == {
        "plain": FILE, "unknown": FILE, "image": "link to 1", "masks": ["link to 2", "https://a.example/", 3],
        "audio": "link to 1", "inner": {"deep": "link to 2", "plain": OTHER},
    }  # fmt: skip
    assert given["masks"][0] == OTHER
    assert LinkFields({"type": "object", "properties": {"plain": {"type": "string"}}}).links_of(given) == {}


def test_an_input_with_a_file_is_valid_and_the_same_by_id_and_link() -> None:
    catalog = load_catalog(None, kind_rules())
    priced = [
        quote_input(catalog, "studio/edit-1", {name: text}, base_url=BASE)
        for name, text in (
            ("image", FILE),
            ("image", f"{BASE}/v2/files/{FILE}/content?exp=1&sig=2"),
            ("image", OTHER),
        )
    ]
    hashes = []
    for each in priced:
        assert isinstance(each, PricedInput)
        hashes.append(each.terms.input_hash)
    assert hashes[0] == hashes[1] != hashes[2]


ALLOWED = ("https://holdfast.example/at/", "http://files.internal:9000")


@pytest.mark.parametrize(
    ("schema", "text", "is_address"),
    [
        (LINK, "https://a.example/b", True),
        (LINK, "file:///etc/passwd", True),
        (LINK, "not a uri", True),
        (LINK, "", True),
        (LINK, FILE, False),
        (LINK, "data:image/png;base64,iVBO", False),
        (LINK, f"{BASE}/v2/assets/asset_1?sig=1", False),
        (LINK, "http://files.internal:9000/a.png", False),
        (LINK, "http://files.internal:90001/a.png", True),
        (LINK, "http://files.internal:9000@a.example/", True),
        (LINK, f"{BASE}.a.example/", True),
        ({"anyOf": [LINK, {"type": "null"}]}, "not a uri", True),
        ({"type": ["string", "null"], "format": "uri"}, "not a uri", True),
        ({"oneOf": [LINK, {"contentEncoding": "base64"}]}, "iVBO+/==", False),
        ({"oneOf": [LINK, {"contentEncoding": "base64"}]}, "gopher://a.example/", True),
        ({"anyOf": [LINK, {"type": "string"}]}, " file:/etc/passwd", True),
        ({"anyOf": [LINK, {"type": "string"}]}, "voice: calm", False),
        ({"anyOf": [LINK, {"type": "string"}]}, FILE, False),
        ({"anyOf": [{"anyOf": [LINK]}, {"type": "string"}]}, "a name", False),
        ({"allOf": [LINK, {"type": "string", "minLength": 1}]}, "not a uri", True),
    ],
)
def test_what_is_sent_as_an_address_is_found(schema: dict[str, Any], text: str, is_address: bool) -> None:
    fields = LinkFields({"type": "object", "properties": {"a": {"type": "array", "items": schema}}})
    expected = {("a", 1): text} if is_address else {}
    assert addresses_of(fields.links_of({"a": [7, text]}), ALLOWED) == expected
