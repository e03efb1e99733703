"""Gaps between a model's tiers and its schema: inputs that are valid and have no price.

A price is never guessed, so such inputs are refused. That may be meant, and mostly it is forgotten: therefore a
gap is a warning for whoever keeps the catalog, not a fault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice, product

from holdfast.ledger.catalog.input_schema import InputSchema
from holdfast.ledger.catalog.models import Tariff
from holdfast.ledger.catalog.pricing import choose_line

COMBINATIONS_MAX = 1000
"""How many combinations of values are tried for one model."""
SHOWN_MAX = 8

_ABSENT = object()
_OTHER = object()


def price_gaps(tariff: Tariff, schema: InputSchema) -> list[str]:
    """Valid values of the fields that select a tier for which there is no price, each as ``field = value``."""
    choices = {name: _values(name, tariff, schema) for name in tariff.fields}
    gaps = []
    for values in islice(product(*choices.values()), COMBINATIONS_MAX):
        named = dict(zip(choices, values, strict=True))
        given = {name: value for name, value in named.items() if value is not _ABSENT}
        if choose_line(tariff, given) is None:
            gaps.append(" and ".join(_said(name, value) for name, value in named.items()))
    shown = list(dict.fromkeys(gaps))
    return shown if len(shown) <= SHOWN_MAX else [*shown[:SHOWN_MAX], "…"]


def _values(name: str, tariff: Tariff, schema: InputSchema) -> Sequence[object]:
    """What the field may hold: each listed value; of an open field those with a tier, and any other."""
    field = schema.field(name) or {}
    listed = schema.listed_values(name)
    if listed is None and field.get("type") == "boolean":
        listed = (True, False)
    if listed is None:
        priced = [value for tier in tariff.tiers for key, value in tier.when if key == name]
        listed = (*dict.fromkeys(priced), _OTHER)
    return listed if _always_there(name, field, schema.document) else (*listed, _ABSENT)


def _always_there(name: str, field: Mapping[str, object], document: Mapping[str, object]) -> bool:
    required = document.get("required")
    return "default" in field or (isinstance(required, list) and name in required)


def _said(name: str, value: object) -> str:
    if value is _ABSENT:
        return f"no {name}"
    if value is _OTHER:
        return f"any other {name}"
    return f"{name} = {str(value).lower() if isinstance(value, bool) else value}"
