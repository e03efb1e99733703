"""Find inputs that a model's schema allows and none of its tiers has a price for.

Such inputs are refused. Since that may be intended, a gap is a warning to the operator, not a fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, product

from holdfast.ledger.catalog.models import Model
from holdfast.ledger.catalog.pricing import choose_tariff

COMBINATIONS_MAX = 1000
"""The most combinations of values that are tried for one model."""
SHOWN_MAX = 8

_ABSENT = object()
_OTHER = object()


def price_gaps(model: Model) -> list[str]:
    """Return the valid values of tier fields that have no price, each as ``field = value``."""
    choices = {name: _values(name, model) for name in model.tier_fields}
    gaps = []
    for values in islice(product(*choices.values()), COMBINATIONS_MAX):
        named = dict(zip(choices, values, strict=True))
        given = {name: value for name, value in named.items() if value is not _ABSENT}
        if choose_tariff(model, given) is None:
            gaps.append(" and ".join(_described(name, value) for name, value in named.items()))
    shown = list(dict.fromkeys(gaps))
    return shown if len(shown) <= SHOWN_MAX else [*shown[:SHOWN_MAX], "…"]


def _values(name: str, model: Model) -> Sequence[object]:
    """Return what the field may contain: its listed values; for an open field those with a tier, and any other."""
    field = model.schema.field(name) or {}
    listed = model.schema.listed_values(name)
    if listed is None and field.get("type") == "boolean":
        listed = (True, False)
    if listed is None:
        listed = (*dict.fromkeys(tier.when[name] for tier in model.tiers if name in tier.when), _OTHER)
    required = model.schema.document.get("required")
    always_present = "default" in field or (isinstance(required, list) and name in required)
    return listed if always_present else (*listed, _ABSENT)


def _described(name: str, value: object) -> str:
    if value is _ABSENT:
        return f"no {name}"
    if value is _OTHER:
        return f"any other {name}"
    return f"{name} = {str(value).lower() if isinstance(value, bool) else value}"
