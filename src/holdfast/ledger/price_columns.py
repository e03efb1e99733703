"""What one row of a public price list says, in the words of our catalog: mode, prices, tiers and a plain schema.

A row's columns are amounts of USD for one unit: a token, an image, a pixel, a second, a character. Only what our
pricing modes say exactly is taken over. A row whose price rises with something that no mode measures is refused;
columns for other kinds of work (cached, batched, searched) are left out and named, for whoever reviews the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Context, Decimal
from typing import Any, NamedTuple

from holdfast.ledger.toml_tables import Table

Row = Mapping[str, object]

TOKENS_OUT_MAX = 10_000_000
TOKENS_OUT_USUAL = 4096
"""How many tokens an answer may have where the row does not say."""
IMAGES_MAX = 4
SIDE_PIXELS_MAX = 4096
SECONDS_MAX = 60
TEXT_CHARS_MAX = 20_000

_MILLION = Decimal(1_000_000)
_WIDE = Context(prec=60)
_DIGITS_MAX = 30
_SIZE = re.compile(r"[0-9]{1,4}(\.[0-9])?[pkK]?", re.ASCII)
"""How a column ends that prices one resolution: 720p, 4k, 0.5K, 1024."""


class CannotExpress(Exception):
    """The row has a price that no pricing mode of ours says. The text is the reason, without an end mark."""


class Listing(NamedTuple):
    """A row in our words. ``pricing``, ``units`` and ``schema`` are as they stand in a catalog file."""

    modality: str
    run_type: str
    capabilities: list[str]
    pricing: dict[str, Any]
    units: dict[str, Any]
    schema: dict[str, Any]
    left_out: list[str]


def listing_of(row: Row) -> Listing:
    """Read a row by its ``mode``. Raises :class:`CannotExpress`."""
    mode = row.get("mode")
    read = _READERS.get(mode) if isinstance(mode, str) else None
    if read is None:
        raise CannotExpress(f"the mode {_short(mode)} is not sold here" if mode else "it names no mode")
    if not _costs(row):
        raise CannotExpress("it names no price")
    return read(row)


def _llm(row: Row) -> Listing:
    used = ("input_cost_per_token", "output_cost_per_token")
    if any(name not in row for name in used):
        raise CannotExpress("it is not priced by tokens in and out")
    for name in _costs(row):
        rest = next((name.removeprefix(each) for each in used if name.startswith(each)), "")
        if re.fullmatch(r"_above_[0-9]+k_tokens", rest):
            raise CannotExpress(f"a token costs more in a long text ({name})")
    tokens_in, tokens_out = (_price(row, name) for name in used)
    if _price(row, "output_cost_per_reasoning_token", default=tokens_out) > tokens_out:
        raise CannotExpress("a token of reasoning costs more than another (output_cost_per_reasoning_token)")
    _not_free(tokens_in, tokens_out)
    return Listing(
        modality="llm",
        run_type="sync",
        capabilities=["chat"],
        pricing={
            "mode": "per_token",
            "unit": "1M tokens",
            "unit_size": 1_000_000,
            "input_price": _per_million("input_cost_per_token", tokens_in),
            "output_price": _per_million("output_cost_per_token", tokens_out),
        },
        units={"text": "messages", "output_tokens": "max_output_tokens"},
        schema=_object({"messages": _MESSAGES, "max_output_tokens": _tokens_out(row)}, "messages"),
        left_out=_others(row, *used),
    )


def _image(row: Row) -> Listing:
    return _pictures(row, "text_to_image", {"prompt": _text(2000)})


def _image_edit(row: Row) -> Listing:
    image = {"type": "string", "pattern": r"^https?://[^\s]+$", "maxLength": 2000}
    return _pictures(row, "image_edit", {"prompt": _text(2000), "image_url": image})


def _pictures(row: Row, capability: str, fields: dict[str, Any]) -> Listing:
    """By the pixel where it is the output that is measured in pixels, else by the image."""
    count = {"n": {"type": "integer", "minimum": 1, "maximum": IMAGES_MAX, "default": 1}}
    pixel = _price(row, "output_cost_per_pixel", default=Decimal(0))
    if not pixel and "output_cost_per_image" not in row and "input_cost_per_image" not in row:
        pixel = _price(row, "input_cost_per_pixel", default=Decimal(0))
    if pixel:
        side = {"type": "integer", "minimum": 64, "maximum": SIDE_PIXELS_MAX, "default": 1024}
        return Listing(
            modality="image",
            run_type="async",
            capabilities=[capability],
            pricing={"mode": "per_megapixel", "unit_price": _per_million("a pixel", pixel)},
            units={"n": "n", "width": "width", "height": "height"},
            schema=_object({**fields, **count, "width": side, "height": side}, *fields),
            left_out=_others(row, "output_cost_per_pixel", "input_cost_per_pixel"),
        )
    base = "output_cost_per_image" if "output_cost_per_image" in row else "input_cost_per_image"
    if base not in row:
        raise CannotExpress("it is not priced by the image or the pixel")
    pricing, sizes, used = _tiered(row, base, "per_image")
    return Listing(
        modality="image",
        run_type="async",
        capabilities=[capability],
        pricing=pricing,
        units={"n": "n"},
        schema=_object({**fields, **count, **sizes}, *fields),
        left_out=_others(row, *used),
    )


def _video(row: Row) -> Listing:
    base = "output_cost_per_second" if "output_cost_per_second" in row else "output_cost_per_video_per_second"
    if base not in row:
        raise CannotExpress("it is not priced by the second")
    pricing, sizes, used = _tiered(row, base, "per_second")
    return Listing(
        modality="video",
        run_type="async",
        capabilities=["text_to_video"],
        pricing=pricing,
        units={"seconds": "duration"},
        schema=_object({"prompt": _text(2000), "duration": _SECONDS, **sizes}, "prompt", "duration"),
        left_out=_others(row, *used),
    )


def _speech(row: Row) -> Listing:
    if "input_cost_per_character" in row:
        price = _price(row, "input_cost_per_character")
        _not_free(price)
        return Listing(
            modality="audio",
            run_type="async",
            capabilities=["text_to_speech"],
            pricing={
                "mode": "per_character",
                "unit": "1M characters",
                "unit_size": 1_000_000,
                "unit_price": _per_million("input_cost_per_character", price),
            },
            units={"text": "text"},
            schema=_object({"text": _text(TEXT_CHARS_MAX)}, "text"),
            left_out=_others(row, "input_cost_per_character"),
        )
    if "output_cost_per_second" not in row:
        raise CannotExpress("it is not priced by the character or the second")
    pricing, _, used = _tiered(row, "output_cost_per_second", "per_second")
    return Listing(
        modality="audio",
        run_type="async",
        capabilities=["text_to_speech"],
        pricing=pricing,
        units={"seconds": "duration"},
        schema=_object({"text": _text(TEXT_CHARS_MAX), "duration": _SECONDS}, "text", "duration"),
        left_out=_others(row, *used),
    )


_READERS: Mapping[str, Callable[[Row], Listing]] = {
    "chat": _llm,
    "completion": _llm,
    "responses": _llm,
    "image_generation": _image,
    "image_edit": _image_edit,
    "video_generation": _video,
    "audio_speech": _speech,
}

_MESSAGES: Mapping[str, Any] = {
    "type": "array",
    "minItems": 1,
    "maxItems": 200,
    "items": {
        "type": "object",
        "additionalProperties": False,
        "required": ["content"],
        "properties": {
            "role": {"enum": ["system", "user", "assistant"], "default": "user"},
            "content": {"type": "string", "minLength": 1, "maxLength": 200_000},
        },
    },
}
_SECONDS: Mapping[str, Any] = {"type": "number", "minimum": 1, "maximum": SECONDS_MAX}


def _tiered(row: Row, base: str, mode: str) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Prices by the column ``base`` and its like for single resolutions; the schema field; the columns used.

    The base price is that of an input which names no resolution.
    """
    pricing: dict[str, Any] = {"mode": mode, "unit_price": _written(base, _price(row, base))}
    tiers: list[tuple[str, Decimal, str]] = []
    used = [base]
    for name in _costs(row):
        size = name.removeprefix(f"{base}_")
        if size == name or size.startswith("token"):
            continue
        if not _SIZE.fullmatch(size):
            raise CannotExpress(f"its price depends on something that is not a resolution ({name})")
        tiers.append((size, _price(row, name), name))
        used.append(name)
    _not_free(*(_price(row, name) for name in used))
    if not tiers:
        return pricing, {}, used
    tiers.sort(key=lambda tier: tier[1])
    pricing["tiers"] = [
        {"when": {"resolution": size}, "unit_price": _written(name, price)} for size, price, name in tiers
    ]
    return pricing, {"resolution": {"enum": [size for size, _, _ in tiers]}}, used


def _costs(row: Row) -> list[str]:
    """The columns that hold a price, in file order."""
    return [name for name, value in row.items() if "cost" in name and value is not None]


def _others(row: Row, *used: str) -> list[str]:
    """The columns with a price that were not used."""
    return [name for name in _costs(row) if name not in used and row[name] != 0]


def _price(row: Row, name: str, *, default: Decimal | None = None) -> Decimal:
    found = row.get(name)
    if found is None and default is not None:
        return default
    if isinstance(found, int) and not isinstance(found, bool):
        found = Decimal(found)
    # Beyond this many places a number is damage, and writing it out in full would fill the memory.
    if not isinstance(found, Decimal) or not found.is_finite() or abs(found.adjusted()) > _DIGITS_MAX:
        raise CannotExpress(f"a price is not a plain number ({name})")
    if found < 0 or len(found.as_tuple().digits) > _DIGITS_MAX:
        raise CannotExpress(f"a price is below zero or has too many digits ({name})")
    return found


def _per_million(name: str, price: Decimal) -> str:
    return _written(name, _WIDE.multiply(price, _MILLION))


def _written(name: str, price: Decimal) -> str:
    """A price as the catalog wants it: plain, exact, no exponent."""
    text = f"{price.normalize(_WIDE):f}"
    if Table({"price": text}, "", []).price("price") is None:
        raise CannotExpress(f"a price has more digits than a catalog takes ({name})")
    return text


def _not_free(*prices: Decimal) -> None:
    if not any(prices):
        raise CannotExpress("its prices are all zero")


def _tokens_out(row: Row) -> dict[str, Any]:
    for name in ("max_output_tokens", "max_tokens"):
        found = row.get(name)
        if isinstance(found, int | Decimal) and 1 <= found <= TOKENS_OUT_MAX:
            most = int(found)
            return {"type": "integer", "minimum": 1, "maximum": most, "default": min(most, TOKENS_OUT_USUAL)}
    return {"type": "integer", "minimum": 1, "maximum": TOKENS_OUT_USUAL, "default": TOKENS_OUT_USUAL}


def _text(chars_max: int) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": chars_max}


def _object(fields: Mapping[str, Any], *required: str) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(required),
        "properties": dict(fields),
    }


def _short(value: object) -> str:
    shown = str(value)[:40]
    return shown if shown.isprintable() else "?"
