"""Columns as arrays and as cells of COPY, byte for byte."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import BigInteger, Boolean, Column, LargeBinary, Text
from sqlalchemy.dialects.postgresql import ARRAY, JSON, TIMESTAMP

from holdfast.persistence.journal.statements import array_parameters, codec_of, copy_cells

AT = datetime(2026, 11, 29, 20, 30, 0, 123_000, UTC)


@pytest.mark.parametrize(
    ("kind", "values", "array", "cells"),
    [
        (Text(), ["a", 'b"\\'], '{"a","b\\"\\\\"}', ["a", 'b"\\\\']),
        (Text(), ["a\tb", None], '{"a\tb",NULL}', ["a\\tb", "\\N"]),
        (Text(), ["a\x1fb", '"'], '{"a\x1fb","\\""}', ["a\x1fb", '"']),
        (Text(), ["NULL", "", None], '{"NULL","",null}', ["NULL", "", "\\N"]),
        (ARRAY(Text), [["a", 'b"'], [], None], '{"{\\"a\\",\\"b\\\\\\"\\"}","{}",NULL}', None),
        # The null of JSON is a value.
        (
            JSON(),
            [{"a": "x\ny"}, None],
            # One dimension, no null, the type's number, two values from index 1; the length of each and its text.
            bytes.fromhex("00000001 00000000 00000072 00000002 00000001")
            + b'\0\0\0\x0c{"a":"x\\ny"}\0\0\0\x04null',
            ['{"a":"x\\\\ny"}', "null"],
        ),
        (BigInteger(), [1, None, -2], "{1,null,-2}", ["1", "\\N", "-2"]),
        (Boolean(), [True, None, False], "{true,null,false}", ["t", "\\N", "f"]),
        (TIMESTAMP(), [AT, None], '{"2026-11-29T20:30:00.123000Z",null}', ["2026-11-29T20:30:00.123000Z", "\\N"]),
        (
            LargeBinary(),
            [b"\x00\xff", None],
            bytes.fromhex("00000001 00000000 00000011 00000002 00000001 00000002 00ff ffffffff"),
            ["\\\\x00ff", "\\N"],
        ),
    ],
)
def test_a_column_is_encoded(kind: Any, values: Sequence[Any], array: str | bytes, cells: list[str] | None) -> None:
    codec = codec_of(Column("column", kind))
    assert array_parameters([codec], [values]) == [array]
    if cells is not None:
        assert copy_cells(codec, values) == cells


def test_no_text_is_made_of_a_null_where_none_may_be() -> None:
    codec = codec_of(Column("column", Text(), nullable=False))
    assert array_parameters([codec], [["a", "None"]]) == ['{"a","None"}']
    with pytest.raises(TypeError):
        array_parameters([codec], [["a", None]])
    with pytest.raises(TypeError):
        copy_cells(codec, ["a", None])
