"""Input schemas: defaults, descriptions of violations, and agreement with an independent validator."""

from __future__ import annotations

from fractions import Fraction
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from holdfast.ledger.catalog.catalog import load_catalog
from holdfast.ledger.catalog.input_schema import InputSchema
from holdfast.providers.media.kinds import kind_rules


def filled(schema: dict[str, object], value: dict[str, object]) -> dict[str, object]:
    InputSchema({"type": "object", **schema}).fill(value)
    return value


def violations(schema: dict[str, object], value: object) -> list[str]:
    return [
        f"{'.'.join(each.path)} {each.rule}".strip()
        for each in InputSchema({"type": "object", **schema}).violations(value)
    ]


def test_defaults_are_filled_at_every_level() -> None:
    schema: dict[str, object] = {
        "properties": {
            "n": {"type": "integer", "default": 1},
            "frame": {
                "type": "object",
                "default": {},
                "properties": {"width": {"$ref": "#/$defs/side"}, "colour": {"default": "red"}},
            },
            "absent": {"type": "object", "properties": {"inner": {"default": 1}}},
            "layers": {"type": "array", "items": {"type": "object", "properties": {"opacity": {"default": 1.0}}}},
        },
        "$defs": {"side": {"type": "integer", "default": 100}},
    }
    assert filled(schema, {"layers": [{}, {"opacity": 0.5}]}) == {
        "n": 1,
        "frame": {"width": 100, "colour": "red"},
        "layers": [{"opacity": 1}, {"opacity": 0.5}],
    }
    assert filled(schema, {"n": 2, "frame": {"width": 7}}) == {"n": 2, "frame": {"width": 7, "colour": "red"}}


def test_a_default_is_never_shared_between_inputs() -> None:
    schema = InputSchema({"type": "object", "properties": {"tags": {"type": "array", "default": []}}})
    first: dict[str, object] = {}
    second: dict[str, object] = {}
    schema.fill(first)
    schema.fill(second)
    assert isinstance(first["tags"], list)
    first["tags"].append("x")
    assert second == {"tags": []}


@pytest.mark.parametrize(
    ("rule", "value", "expected"),
    [
        ({"type": "integer"}, "x", "must be of type integer"),
        ({"type": ["integer", "null"]}, "x", "must be of type integer or null"),
        ({"enum": ["a", "b"]}, "c", "must be one of a, b"),
        ({"const": "a"}, "b", "must be a"),
        ({"minimum": 2}, 1, "must be at least 2"),
        ({"exclusiveMaximum": 2}, 2, "must be less than 2"),
        ({"multipleOf": 8}, 9, "must be a multiple of 8"),
        ({"maxLength": 2}, "abc", "must have at most 2 characters"),
        ({"minItems": 2}, [1], "must have at least 2 items"),
        ({"minItems": 1}, [], "must not be empty"),
        ({"minLength": 1}, "", "must not be empty"),
        ({"minLength": 1, "pattern": "\\S"}, "", "must not be blank"),
        ({"minLength": 1, "pattern": "\\S"}, " ", "must not be blank"),
        ({"uniqueItems": True}, [1, 1], "must not repeat an item"),
        ({"pattern": "^a"}, "b", "must match the pattern ^a"),
        ({"anyOf": [{"type": "null"}], "description": "nothing"}, 1, "has none of the allowed forms: nothing"),
        ({"not": {}}, 1, "violates the rule not of the model's schema"),
    ],
)
def test_each_violated_rule_is_described(rule: dict[str, object], value: object, expected: str) -> None:
    assert violations({"properties": {"field": rule}}, {"field": value}) == [f"field {expected}"]


def test_missing_and_unknown_fields_are_named() -> None:
    schema: dict[str, object] = {
        "additionalProperties": False,
        "required": ["a", "b"],
        "properties": {"a": {}, "b": {}},
    }
    assert sorted(violations(schema, {"c": 1, "d": 2})) == [
        "a is required",
        "b is required",
        "c is not a known field",
        "d is not a known field; the known ones are a, b",
    ]


def test_unknown_fields_are_answered_with_those_of_their_part() -> None:
    part: dict[str, object] = {"additionalProperties": False, "properties": {"x": {}, "y": {}}}
    schema: dict[str, object] = {
        "properties": {"at": {"$ref": "#/$defs/part"}, "none": {"additionalProperties": False}},
        "$defs": {"part": part},
    }
    assert sorted(violations(schema, {"at": {"z": 1}, "none": {"z": 1}})) == [
        "at.z is not a known field; the known ones are x, y",
        "none must have no fields",
    ]
    many = {"additionalProperties": False, "properties": {f"f{number}": {} for number in range(40)}}
    [line] = violations(many, {"z": 1})
    assert line.endswith("f28, f29, …")


def test_a_violation_repeats_nothing_of_a_large_value() -> None:
    schema: dict[str, object] = {"additionalProperties": False, "properties": {"a": {"enum": ["x" * 500]}}}
    lines = violations(schema, {"a": "secret" * 1000, "k" * 1000: 1})
    assert len(lines) == 2
    assert all(len(line) < 120 and "secret" not in line for line in lines)


def test_bounds_are_read_through_references_and_branches() -> None:
    schema = InputSchema(
        {
            "type": "object",
            "properties": {
                "a": {"$ref": "#/$defs/bounded"},
                "b": {"anyOf": [{"$ref": "#/$defs/bounded"}, {"const": 20}, {"type": "string"}]},
                "c": {"enum": [3, "x", 9]},
                "d": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "integer", "maximum": 4}]},
                "e": {"type": "string"},
            },
            "$defs": {"bounded": {"type": "integer", "minimum": 2, "maximum": 5}},
        }
    )
    assert schema.number_range("a") == (Fraction(2), Fraction(5))
    assert schema.number_range("b") == (Fraction(2), Fraction(20))
    assert schema.number_range("c") == (Fraction(3), Fraction(9))
    assert schema.number_range("d") == (None, None)
    assert schema.number_range("e") == (None, None)
    assert schema.number_range("f") == (None, None)


SHIPPED = [model.schema for model in load_catalog(None, kind_rules()).models.values()]

values: st.SearchStrategy[object] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 2000)
    | st.floats(-2, 100, allow_nan=False)
    | st.sampled_from(["", " ", "x", "auto", "360p", "gradient", "calm", "png", "user"])
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["content", "role", "x"]), inner),
    max_leaves=5,
)
names = {name for schema in SHIPPED for name in cast(dict[str, object], schema.document["properties"])}
fields = st.sampled_from(sorted(names | {"x"}))


@given(schema=st.sampled_from(SHIPPED), value=st.dictionaries(fields, values, max_size=6))
def test_an_independent_validator_agrees(schema: InputSchema, value: dict[str, object]) -> None:
    assert (schema.violations(value) == []) == Draft202012Validator(schema.document).is_valid(value)


def test_a_rule_in_a_referenced_schema_is_described_by_its_value() -> None:
    schema: dict[str, object] = {"properties": {"a": {"$ref": "#/$defs/side"}}, "$defs": {"side": {"maximum": 9}}}
    assert violations(schema, {"a": 10}) == ["a must be at most 9"]


@pytest.mark.parametrize(
    "document",
    [
        {"type": "object", "$defs": {"unused": {"$ref": "http://127.0.0.1:1/schema"}}},
        {"type": "object", "properties": {"a": {"pattern": "("}}},
        {"type": "object", "properties": {"a": {"type": "objec"}}},
    ],
)
def test_an_invalid_schema_is_refused_and_nothing_is_fetched(document: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="is not a valid JSON Schema"):
        InputSchema(document)
