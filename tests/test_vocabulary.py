"""One word for one thing: the glossary is used, no type's name has two meanings, private words stay out."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
CODE = sorted(
    path for folder in ("src", "tests", "torture", "benchmarks") for path in (ROOT / folder).rglob("*.py")
)
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])

PRIVATE = frozenset(
    re.findall(
        r"\w+",
        """
        anew courier desk desks doomed errand errands hear heard hears house news nobody nobodys postroom shelf
        shelves somebody somebodys teller told untold whoever whomever wished workshop
        """,
    )
)
"""Words that stand where a term of the field exists."""

STORED = re.compile(r"\"heard\"|ClickHouse")
"""A state that the card emulator's page shows, and the name of a product."""

NOT_OURS = {"holdfast_emulators"}
"""Packages whose types imitate another system's and bear its names."""

NAME_MAX_CHARS = 70


def words_of(text: str) -> set[str]:
    """The lower-case words of a text, identifiers split at underscores and capitals."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", text)}


def terms() -> list[str]:
    rows = re.findall(r"^\| ([^|]+?) \| ", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    return rows[1:]


def test_no_private_words() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): words
        for path in (*CODE, *PAGES)
        if path != Path(__file__) and (words := words_of(STORED.sub("", path.read_text("utf-8"))) & PRIVATE)
    }
    assert found == {}


def test_the_glossary_is_sorted_and_used() -> None:
    assert terms() == sorted(terms(), key=str.lower)
    used = words_of(
        "\n".join(path.read_text("utf-8") for path in [*SOURCE.rglob("*.py"), *(ROOT / "docs").glob("*.md")])
    )
    unused = [term for term in terms() if not words_of(term) <= used]
    assert unused == []


def test_no_type_name_has_two_meanings() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in SOURCE.rglob("*.py"):
        where = path.relative_to(SOURCE)
        if where.parts[0] in NOT_OURS:
            continue
        for name in re.findall(r"^class ([A-Za-z]\w*)", path.read_text("utf-8"), re.MULTILINE):
            places[name].append(where.as_posix())
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_test_names_are_short() -> None:
    is_test = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)
    tests = [path for path in CODE if path.name.startswith("test_")]
    names = {name for path in tests for name in is_test.findall(path.read_text("utf-8"))}
    assert len(names) > len(tests)
    assert {name for name in names if len(name) > NAME_MAX_CHARS} == set()
