"""Quotes: the price of an input to a model of a catalog, or why there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches

from holdfast.ledger.catalog.catalog import Catalog
from holdfast.ledger.catalog.models import Model
from holdfast.ledger.catalog.pricing import PricedInput, price_input
from holdfast.ledger.refusals import Refusal

MODEL_ID_CHARS_SHOWN_MAX = 80
MODELS_NAMED_MAX = 5
COMPARED_MAX = 200
"""How many ids are compared with one that does not exist, which takes a few microseconds each."""


def quote_input(
    catalog: Catalog,
    model_id: str,
    input: object,  # noqa: A002 - the API's name
    *,
    base_url: str | None = None,
    is_public: Callable[[str], bool] | None = None,
) -> PricedInput | Refusal:
    """Price ``input`` for a model, without changing it.

    A file may be named by its id, or by a link to it below ``base_url``. Whether it exists is not checked. With
    ``is_public`` every other address must be public by it, below ``base_url``, or of the provider's
    ``input_origins``.

    Refuses: 1. ``model_not_found``; 2. ``model_not_available`` (disabled); then as :func:`price_input`.
    """
    model = catalog.models.get(model_id)
    if model is None:
        return model_not_found(model_id, catalog.models)
    if model.status == "disabled":
        return Refusal(
            code="model_not_available", message=f"The model '{model.id}' is not available.", param="model"
        )
    provider = catalog.providers.get(model.upstream.provider)
    allowed = () if provider is None else provider.input_origins
    return price_input(model, catalog.version, input, base_url=base_url, is_public=is_public, input_origins=allowed)


def model_not_found(model_id: str, models: Mapping[str, Model]) -> Refusal:
    """Return the refusal ``model_not_found``, which names some of ``models``, those with similar ids first.

    It names the id that was asked for if that is of printable characters and limited length.
    """
    named = f" '{model_id}'" if len(model_id) <= MODEL_ID_CHARS_SHOWN_MAX and model_id.isprintable() else ""
    message = f"The model{named} does not exist. {some_models(model_id, models)}"
    return Refusal(code="model_not_found", message=message, param="model")


def some_models(model_id: str, models: Mapping[str, Model]) -> str:
    """Return a sentence that names some of ``models``, those whose ids are similar to ``model_id`` first."""
    usable = [each.id for each in models.values() if each.status != "disabled"]
    compared = usable[:COMPARED_MAX] if len(model_id) <= MODEL_ID_CHARS_SHOWN_MAX else []
    similar = get_close_matches(model_id, compared, MODELS_NAMED_MAX)
    some = list(dict.fromkeys([*similar, *usable]))[:MODELS_NAMED_MAX]
    return f"Models that exist: {', '.join(some)}{', …' if len(usable) > len(some) else ''}."
