"""Import of a public price list (LiteLLM's ``model_prices_and_context_window.json``) as a catalog file to review.

The list is one JSON object: a name, and a row with ``mode``, ``litellm_provider``, prices in USD and remarks. The
catalog that comes of it is text for a person to read and change: schemas are plain ones, and a model that runs as
a task needs a provider, for which the file has room. Prices never pass through a float.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, NoReturn

import tomlkit

from holdfast.ledger.catalog import parse_catalog
from holdfast.ledger.catalog_entries import IN_TREE_STUDIO, MODEL_ID, PROVIDER_NAME
from holdfast.ledger.money import CURRENCY
from holdfast.ledger.price_columns import CannotExpress, Listing, Row, listing_of
from holdfast.ledger.toml_tables import Table

EXAMPLE_ROW = "sample_spec"
"""The list's first entry explains the columns and is no model."""
FILE_BYTES_MAX = 64 * 1024 * 1024
REMARK_CHARS_MAX = 300
NAME_CHARS_MAX = 300
NAMES_SHOWN_MAX = 3

_ID_PIECES_MAX = 4
_ID_PIECE_CHARS_MAX = 60


class NotAPriceList(Exception):
    """The file, or how it was asked to be read, is of no use. The text says why, as a sentence."""


class Skipped(NamedTuple):
    """An entry that was asked for and could not be taken over, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceImport:
    """A catalog file made from a price list. ``text`` is empty where nothing could be taken over.

    ``needs`` are the providers that the file names and does not describe: it passes the check once each has its
    table. A file of language models alone needs none.
    """

    text: str
    models: int
    needs: tuple[str, ...]
    skipped: tuple[Skipped, ...]

    def summary(self) -> list[str]:
        """Lines for a person: what was taken over, what it needs, and why the rest was not, most frequent first."""
        lines = [f"{self.models} models taken over, {len(self.skipped)} entries not"]
        if self.needs:
            lines.append(f"to be described under [providers]: {', '.join(self.needs)}")
        reasons = Counter(each.reason for each in self.skipped)
        for reason, many in reasons.most_common():
            names = [each.name for each in self.skipped if each.reason == reason]
            shown = ", ".join(names[:NAMES_SHOWN_MAX]) + (", …" if many > NAMES_SHOWN_MAX else "")
            lines.append(f"{many:>6}  {reason}: {shown}")
        return lines


def import_prices(
    raw: bytes, *, select: Sequence[str] = (), markup: str = "1", provider: str | None = None, today: date
) -> PriceImport:
    """Make a catalog file of the entries whose names fit one of the globs ``select`` (none: of all).

    ``provider`` runs all of them; without it each names the provider that the list gives. A model whose
    ``deprecation_date`` is not after ``today`` is marked deprecated. Raises :class:`NotAPriceList`.
    """
    if len(raw) > FILE_BYTES_MAX:
        raise NotAPriceList(f"The file has more than {FILE_BYTES_MAX} bytes.")
    rows = _rows(raw)
    faults: list[str] = []
    Table({"markup": markup}, "", faults).markup("markup", "1")
    if faults or (provider is not None and re.fullmatch(PROVIDER_NAME, provider) is None):
        raise NotAPriceList(
            'A markup is a number such as "1.20" above zero; a provider is lower-case letters, digits, - and _.'
        )
    wanted = [name for name in rows if name != EXAMPLE_ROW and _fits(name, select)]
    if not wanted:
        raise NotAPriceList("No entry of the file has a name that fits.")
    taken: set[str] = set()
    entries, skipped, needs = [], [], []
    for name in wanted:
        row = rows[name]
        try:
            if not isinstance(row, dict):
                raise CannotExpress("it is not a table of prices")
            listing = listing_of(row)
            model_id = _model_id(name, taken)
        except CannotExpress as reason:
            skipped.append(Skipped(_plain(name), str(reason)))
            continue
        owner = _owner(row)
        runs = provider or _provider_name(owner)
        if listing.run_type == "async" and runs != IN_TREE_STUDIO and runs not in needs:
            needs.append(runs)
        entries.append(_entry(row, listing, model_id=model_id, name=name, owner=owner, runs=runs, today=today))
    text = "".join(_written(entries, skipped, needs, markup, today)) if entries else ""
    found = PriceImport(text=text, models=len(entries), needs=tuple(needs), skipped=tuple(skipped))
    if entries:
        _read_back(found)
    return found


def _rows(raw: bytes) -> dict[str, Any]:
    try:
        found = json.loads(raw.decode("utf-8"), parse_float=Decimal, parse_constant=_no_constant)
    except (ValueError, RecursionError) as fault:
        raise NotAPriceList(f"The file is not JSON: {fault}.") from fault
    if not isinstance(found, dict):
        raise NotAPriceList("The file is not an object of models by name.")
    return found


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def _fits(name: str, select: Sequence[str]) -> bool:
    return not select or any(fnmatchcase(name, glob) for glob in select)


def _model_id(name: str, taken: set[str]) -> str:
    """A name as an id of ours: foreign signs become dashes, what is too long is cut, what is taken is numbered."""
    if len(name) > NAME_CHARS_MAX or not name.isprintable():
        raise CannotExpress("its name is not plain text")
    pieces = [re.sub(r"[^A-Za-z0-9._:-]+", "-", piece).strip("-.:_") for piece in name.split("/")]
    pieces = [piece for piece in pieces if piece]
    if len(pieces) > _ID_PIECES_MAX:
        pieces[_ID_PIECES_MAX - 1 :] = ["-".join(pieces[_ID_PIECES_MAX - 1 :])]
    plain = "/".join(piece[:_ID_PIECE_CHARS_MAX] for piece in pieces)
    if re.fullmatch(MODEL_ID, plain) is None:
        raise CannotExpress("its name has no letter or digit")
    model_id, number = plain, 1
    while model_id in taken:
        number += 1
        model_id = f"{plain}-{number}"
    if re.fullmatch(MODEL_ID, model_id) is None:
        raise CannotExpress("too many entries have nearly its name")
    taken.add(model_id)
    return model_id


def _owner(row: Row) -> str:
    found = row.get("litellm_provider")
    return _plain(found)[:80] if isinstance(found, str) and _plain(found) else "unknown"


def _provider_name(owner: str) -> str:
    """The list's provider as a provider name of ours."""
    name = re.sub(r"[^a-z0-9_-]+", "-", owner.lower())[:40].lstrip("-_")
    return name if re.fullmatch(PROVIDER_NAME, name) else "unknown"


def _entry(
    row: Row, listing: Listing, *, model_id: str, name: str, owner: str, runs: str, today: date
) -> list[tuple[str, Any] | str]:
    """One model as lines to write: a remark is a string, a setting a key with its value."""
    ends = _day(row.get("deprecation_date"))
    upstream = name.removeprefix(f"{owner}/") or name
    lines: list[tuple[str, Any] | str] = []
    if isinstance(row.get("source"), str):
        lines.append(f"source: {_plain(row['source'])}")
    if ends is not None:
        lines.append(f"deprecation_date: {ends.isoformat()}")
    if listing.left_out:
        lines.append(f"not counted in the price: {_plain(', '.join(listing.left_out))}")
    lines += [
        ("id", model_id),
        ("modality", listing.modality),
        ("type", listing.run_type),
        ("owned_by", owner),
        ("capabilities", listing.capabilities),
    ]
    if ends is not None and ends <= today:
        lines.append(("status", "deprecated"))
    return [
        *lines,
        ("pricing", listing.pricing),
        ("units", listing.units),
        ("upstream", {"provider": runs, "model": upstream}),
        ("input_schema", listing.schema),
    ]


def _day(found: object) -> date | None:
    try:
        return date.fromisoformat(found) if isinstance(found, str) else None
    except ValueError:
        return None


def _written(
    entries: list[list[tuple[str, Any] | str]],
    skipped: list[Skipped],
    needs: list[str],
    markup: str,
    today: date,
) -> Iterator[str]:
    yield f"# Made from a public price list on {today.isoformat()}; prices are in USD, before the markup.\n"
    yield "# Review it: the limits in each input_schema are plain ones, not the provider's own.\n\n"
    yield f'[catalog]\nschema = 1\ncurrency = "{CURRENCY}"\n\n'
    yield f"[defaults]\ncreated = {_value(today.isoformat())}\nmarkup_multiplier = {_value(markup)}\n"
    if needs:
        yield "\n# These providers run what is below. Say where they are and take away the marks:\n"
    for name in needs:
        yield f'#\n# [providers.{name}]\n# kind = "cog"\n# url = "https://"\n# secret = ""\n'
    for entry in entries:
        yield "\n[[models]]\n"
        for line in entry:
            yield f"# {line}\n" if isinstance(line, str) else f"{line[0]} = {_value(line[1])}\n"
    if skipped:
        yield "\n# Not taken over:\n"
    for each in skipped:
        yield f"#   {each.name}: {each.reason}\n"


def _value(value: object) -> str:
    """A value on one line; the library knows how strings and keys are escaped."""
    if isinstance(value, Mapping):
        inside = ", ".join(f"{tomlkit.key(key).as_string()} = {_value(item)}" for key, item in value.items())
        return f"{{ {inside} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return str(tomlkit.item(value).as_string())


def _plain(text: object) -> str:
    """A text of the list made fit for one line of remarks."""
    shown = "".join(sign if sign.isprintable() else "?" for sign in str(text)[:REMARK_CHARS_MAX])
    return shown.strip()


def _read_back(made: PriceImport) -> None:
    """What is handed out has been read by the rules that will judge it; anything else is a bug of ours."""
    tables = "".join(f'[providers.{name}]\nkind = "cog"\nurl = "http://127.0.0.1"\n' for name in made.needs)
    catalog = parse_catalog(made.text + tables, read_schema=str)
    assert len(catalog.models) == made.models
