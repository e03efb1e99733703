"""Links in a model's input: where its schema has one (``format: "uri"``), the id of an uploaded file may be."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias, cast

import msgspec

from holdfast.ledger.catalog.input_schema import resolve

Path: TypeAlias = tuple[str | int, ...]
"""Keys and positions that lead to a value inside an input."""

_Visit: TypeAlias = Callable[[object, Path, dict[Path, str]], None]

_FILE_ID: Final = re.compile(r"file_[0-9a-f]{32}", re.ASCII)
_FILE_PATH: Final = re.compile(r"/v[0-9]/files/(file_[0-9a-f]{32})(?:/content)?(?:\?.*)?\Z", re.ASCII)
_ADDRESS: Final = re.compile(r"[\s\0-\x1f]*[a-z][a-z0-9+.-]*:\S", re.ASCII | re.IGNORECASE)
"""What is an address, or is taken for one, where another text may be: bytes in base64, a name."""
_ANY_LINK: Final = "https://example.com/file"
"""What a schema sees instead of a file."""


class InputFile(msgspec.Struct, frozen=True):
    """A file, and where in an input its id is."""

    path: Path
    file_id: str


class LinkFields:
    """The fields of a schema that have a link, found once."""

    __slots__ = ("_visit",)

    def __init__(self, document: Mapping[str, object]) -> None:
        self._visit = _visit_of(document, document)

    def links_of(self, value: dict[str, object]) -> dict[Path, str]:
        """Return the links of an input."""
        found: dict[Path, str] = {}
        if self._visit is not None:
            self._visit(value, (), found)
        return found


def name_files(value: dict[str, object], links: Mapping[Path, str], base_url: str | None) -> tuple[InputFile, ...]:
    """Return the files of an input with these links; where one is to a file below ``base_url`` it gets the id."""
    named = {path: file_id for path, text in links.items() if (file_id := file_id_of(text, base_url))}
    for path, file_id in named.items():
        _put(value, path, file_id)
    return tuple(InputFile(path, file_id) for path, file_id in named.items())


def addresses_of(links: Mapping[Path, str], allowed: Iterable[str]) -> dict[Path, str]:
    """Return the links without ids of files, ``data:``, and what is below ``allowed``."""
    below = tuple(f"{each.rstrip('/')}/" for each in allowed)
    return {
        path: text
        for path, text in links.items()
        if not (text.startswith(below) or text[:5].lower() == "data:" or _FILE_ID.fullmatch(text))
    }


def file_id_of(text: str, base_url: str | None) -> str | None:
    """Return the file's id that a text is, or that it is a link to below ``base_url``; None for any other."""
    if _FILE_ID.fullmatch(text):
        return text
    if base_url is None or not text.startswith(f"{base_url.rstrip('/')}/"):
        return None
    match = _FILE_PATH.search(text)
    return None if match is None else match[1]


def with_links(
    value: Mapping[str, object], named: Iterable[InputFile], link: Callable[[str], str] = lambda _: _ANY_LINK
) -> dict[str, object]:
    """Return an input with links to its files instead of their ids."""
    linked = copy.deepcopy(dict(value))
    for each in named:
        _put(linked, each.path, link(each.file_id))
    return linked


def _put(value: object, path: Path, text: str) -> None:
    *way, last = path
    for piece in way:
        value = cast(Any, value)[piece]
    cast(Any, value)[last] = text


def _visit_of(
    schema: Mapping[str, object], root: Mapping[str, object], *, takes_others: bool = False
) -> _Visit | None:
    """Return the function that finds the links below a part of ``root``; None if it has none.

    ``takes_others``: whether the value may be a text that is no link.
    """
    schema = resolve(schema, root)
    is_link = schema.get("format") == "uri"
    properties, items = schema.get("properties"), schema.get("items")
    fields = {
        key: below
        for key, part in (properties.items() if isinstance(properties, dict) else ())
        if isinstance(part, dict) and (below := _visit_of(part, root))
    }
    of_items = _visit_of(items, root) if isinstance(items, dict) else None
    branches = []
    for keyword in ("anyOf", "oneOf", "allOf"):
        parts = [
            resolve(part, root)
            for part in cast("list[object]", schema.get(keyword) or ())
            if isinstance(part, dict)
        ]
        has_others = takes_others or (keyword != "allOf" and any(map(_takes_plain_text, parts)))
        branches += [branch for part in parts if (branch := _visit_of(part, root, takes_others=has_others))]
    if not (is_link or fields or of_items or branches):
        return None

    def visit(value: object, path: Path, found: dict[Path, str]) -> None:
        if isinstance(value, str) and is_link:
            if not takes_others or _ADDRESS.match(value) or _FILE_ID.fullmatch(value):
                found[path] = value
        elif isinstance(value, dict):
            for key, visit_field in fields.items():
                if key in value:
                    visit_field(value[key], (*path, key), found)
        elif isinstance(value, list) and of_items is not None:
            for position, item in enumerate(value):
                of_items(item, (*path, position), found)
        for visit_branch in branches:
            visit_branch(value, path, found)

    return visit


def _takes_plain_text(schema: Mapping[str, object]) -> bool:
    """Whether one of several forms of a value is a text that is no link."""
    return schema.get("format") != "uri" and "string" in cast("str | list[str]", schema.get("type", "string"))
