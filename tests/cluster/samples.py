"""Sample values of any type that messages are made of, so that a new type needs no sample of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from itertools import count
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

import msgspec

_numbers = count(1)
_open: list[Any] = []
"""The types that samples are being made of."""


def samples(hint: Any) -> list[Any]:
    """Values of a type, with every alternative of a union and every value of a literal among them, at any depth."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        bounds = [each.ge for each in arguments[1:] if isinstance(each, msgspec.Meta) and each.ge is not None]
        return [max([1, *bounds])] if arguments[0] is int else samples(arguments[0])
    if origin in {Union, UnionType}:
        return [value for each in arguments for value in samples(each)]
    if origin is Literal:
        return list(arguments)
    if origin is tuple:
        if arguments[1:] == (Ellipsis,):
            # A type that contains itself ends at the second level.
            return [(), *([] if _open.count(arguments[0]) > 1 else [tuple(samples(arguments[0]))])]
        return [tuple(samples(each)[0] for each in arguments)]
    if origin is frozenset:
        return [frozenset(samples(arguments[0]))]
    if origin is list:
        return [samples(arguments[0])]
    if origin in {dict, Mapping}:
        return [dict(zip(samples(arguments[0]), samples(arguments[1]), strict=False))]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return list(hint)
    if isinstance(hint, TypeVar) or hint in {object, Any}:
        return [{"a": [1, 2.5, "three", None, True]}]
    if (
        dataclasses.is_dataclass(hint)
        or hasattr(hint, "__struct_fields__")
        or hasattr(hint, "_fields")
        or is_typeddict(hint)
    ):
        return list(_of_class(hint))
    return _plain(hint)


def _plain(hint: Any) -> list[Any]:
    number = next(_numbers)
    values: dict[Any, list[Any]] = {
        str: [f"text {number} é"],
        int: [number * 10**9],
        float: [number + 0.25],
        bool: [True, False],
        bytes: [b"bytes \x00\xff %d" % number],
        NoneType: [None],
        msgspec.UnsetType: [msgspec.UNSET],
        None: [None],
        date: [date(2026, 11, 22)],
        datetime: [datetime(2026, 11, 22, 5, 30, tzinfo=UTC) + timedelta(microseconds=number)],
        Decimal: [Decimal(f"{number}.25")],
    }
    return values[hint]


def _of_class(hint: Any) -> Iterator[Any]:
    _open.append(hint)
    fields = {
        name: samples(each)
        for name, each in get_type_hints(hint, include_extras=True).items()
        if name in _field_names(hint)
    }
    _open.pop()
    for turn in range(max((len(values) for values in fields.values()), default=1)):
        yield hint(**{name: values[turn % len(values)] for name, values in fields.items()})


def _field_names(hint: Any) -> tuple[str, ...]:
    if dataclasses.is_dataclass(hint):
        return tuple(field.name for field in dataclasses.fields(hint))
    if is_typeddict(hint):
        return tuple(hint.__annotations__)
    names: tuple[str, ...] = hint.__struct_fields__ if issubclass(hint, msgspec.Struct) else hint._fields
    return names
