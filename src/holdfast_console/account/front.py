"""What everybody sees: what this service is, and its models with their prices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Final, NamedTuple

from holdfast.http.endpoints.catalog import list_models
from holdfast.http.kit.calls import Auth
from holdfast.http.schemas.models import ModelDetails, ModelList, TierBody
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import format_price
from holdfast_console.formats import json_text
from holdfast_console.rendering import Html
from holdfast_console.views import ViewResult, ViewTable, Visit

view = ViewTable(Auth.NONE)


KINDS: Final[Mapping[str, str]] = {
    "image": "Images",
    "video": "Videos",
    "audio": "Audio",
    "text": "Text",
    "llm": "Language models",
}
"""What models make, in words, in this order; others follow by their names."""


class Price(NamedTuple):
    """A price that customers pay, in credits for a ``unit``, for inputs of which ``when`` is true."""

    credits: str
    unit: str
    when: str = ""


class PricedModel(NamedTuple):
    """A model, its prices, those that apply to some inputs only first, and the least that a task costs."""

    model: ModelDetails
    prices: Sequence[Price]
    minimum: str | None


@view("/", is_for_browsers=True)
async def front(visit: Visit) -> ViewResult:
    """What this is, with the ways in."""
    found = await visit.read(list_models, ModelList)
    runnable = [] if isinstance(found, Refusal) else [each for each in _offered(found) if not each.priced_only]
    values = {
        "kinds": [words_of_kind(kind).lower() for kind in dict.fromkeys(each.modality for each in runnable)],
        "example": min((each for each in runnable if each.example_input), key=_example_chars, default=None),
        "base": visit.call.deps.urls.base,
    }
    return Html("front.html", values)


@view("/models", is_for_browsers=True)
async def models(visit: Visit) -> ViewResult:
    """The models that can be used, by what they make."""
    found = await visit.read(list_models, ModelList)
    if isinstance(found, Refusal):
        return found
    priced: dict[str, list[PricedModel]] = {}
    for model in _offered(found):
        minimum = model.pricing.minimum and _with_markup(model, model.pricing.minimum)
        priced.setdefault(words_of_kind(model.modality), []).append(PricedModel(model, prices_of(model), minimum))
    return Html("models.html", {"priced": priced})


def _example_chars(model: ModelDetails) -> int:
    return len(json_text(model.example_input))


def words_of_kind(modality: str) -> str:
    """Return what a model makes, in words."""
    return KINDS.get(modality, modality.capitalize())


def _offered(found: ModelList) -> list[ModelDetails]:
    """Return the models that are not disabled, in the order of what they make."""
    kinds = [*KINDS]
    offered = [model for model in found.data if model.status != "disabled"]

    def place(model: ModelDetails) -> tuple[int, str, str]:
        return kinds.index(model.modality) if model.modality in kinds else len(kinds), model.modality, model.id

    return sorted(offered, key=place)


def _with_markup(model: ModelDetails, price: str) -> str:
    return format_price(f"{Decimal(price) * Decimal(model.markup_multiplier):f}")


def prices_of(model: ModelDetails) -> list[Price]:
    """Return what a customer pays: the catalog's prices times the markup."""
    pricing, prices = model.pricing, []
    rates: list[tuple[TierBody | None, str | None, str | None, str | None]] = [
        *((tier, tier.unit_price, tier.input_price, tier.output_price) for tier in pricing.tiers),
        (None, pricing.unit_price, pricing.input_price, pricing.output_price),
    ]
    for tier, for_unit, for_input, for_output in rates:
        when = "otherwise" if pricing.tiers else ""
        if tier is not None:
            when = ", ".join(f"{name} {value}" for name, value in tier.when.items())
        for price, kind in ((for_unit, ""), (for_input, " of input"), (for_output, " of output")):
            if price is not None:
                prices.append(Price(_with_markup(model, price), f"{pricing.unit}{kind}", when))
    return prices
