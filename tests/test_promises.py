"""What is promised is what the code has: tests/promises.py."""

from __future__ import annotations

import pytest

from .promises import FOLDER, promised, recorded, schema_lines

NOW = promised()


@pytest.mark.parametrize("subject", NOW)
def test_nothing_promised_is_taken_back(subject: str) -> None:
    assert sorted(recorded(subject) - NOW[subject]) == []


@pytest.mark.parametrize("subject", NOW)
def test_what_is_new_is_recorded(subject: str) -> None:
    assert sorted(NOW[subject] - recorded(subject)) == [], "record it: python -m tests.promises"


def test_each_record_has_a_subject() -> None:
    assert {file.stem for file in FOLDER.iterdir()} == NOW.keys()


def test_a_renamed_or_newly_required_field_is_a_change() -> None:
    of = {"properties": {"a": {"type": "string"}, "b": {"enum": ["x", "y"], "type": "string"}}, "required": ["a"]}
    assert set(schema_lines("T", of, True)) == {
        "T requires a",
        "T.a: string",
        "T.b: string",
        "T.b: 'x'",
        "T.b: 'y'",
    }
    assert set(schema_lines("T", of, False)) == {"T.a: string, always", "T.b: string", "T.b: 'x'", "T.b: 'y'"}
