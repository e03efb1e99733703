"""The bodies of models and quotes."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Literal

import msgspec

from holdfast.http.schemas.common import S, render
from holdfast.ledger.catalog.models import Catalog, Modality, Model, ModelStatus, RunType
from holdfast.ledger.catalog.terms import PricingMode, Rate, Terms, Units
from holdfast.ledger.public_types import Amount, Currency, FreeForm, Time
from holdfast.ledger.values import CURRENCY, format_amount, format_price
from holdfast.persistence.operators.overrides import Overrides
from holdfast.persistence.records.operator_tables import NewTasks


class TierBody(msgspec.Struct, frozen=True):
    """Base prices that apply to some inputs only."""

    when: dict[str, str | int | bool]
    """The values that the input must have for these prices to apply, by field."""
    unit_price: str | None
    """Credits per unit, a decimal string; null if it is priced by tokens."""
    input_price: str | None
    """Credits per unit of input tokens, a decimal string; null if it is not priced by tokens."""
    output_price: str | None
    """Credits per unit of output tokens, a decimal string; null if it is not priced by tokens."""


class PricingBody(msgspec.Struct, frozen=True):
    """Base prices in credits per unit, before the markup."""

    mode: PricingMode
    """What is counted."""
    unit: str
    """The unit of the prices, such as `image`, `second` or `1M tokens`."""
    unit_price: str | None
    """Credits per unit, a decimal string; null if the model is priced by tokens."""
    input_price: str | None
    """Credits per unit of input tokens, a decimal string; null if the model is not priced by tokens."""
    output_price: str | None
    """Credits per unit of output tokens, a decimal string; null if the model is not priced by tokens."""
    minimum: str | None
    """The least credits that any task costs, a decimal string; null for no minimum."""
    tiers: list[TierBody]
    """Prices that apply to some inputs instead; the first that fits counts."""


class Pause(msgspec.Struct, frozen=True):
    """A pause of a model, or of the provider that runs it."""

    until: Time
    """When it ends, if it is not ended before."""
    new_tasks: NewTasks
    """`wait`: tasks are created and start when it ends; `refuse`: none is created (`model_paused`)."""
    note: str | None
    """Why it is paused, for customers; null if that is not said."""


class ModelBody(msgspec.Struct, frozen=True):
    """A model. The price a customer pays is the base price times `markup_multiplier`."""

    id: str
    """The model's id, such as `studio/image-1`."""
    object: Literal["model"]
    created: int
    """When the model was added, in unix seconds."""
    owned_by: str
    """Who made the model."""
    modality: Modality
    """What the model makes."""
    type: RunType
    """`async` models run as tasks; `sync` ones are priced only."""
    provider: str
    """The provider that runs it."""
    capabilities: list[str]
    """What the model can do, in words of the catalog."""
    pricing: PricingBody
    """Its base prices."""
    markup_multiplier: str
    """A decimal string that base prices are multiplied by."""
    status: ModelStatus
    """`disabled` models cannot be used, `deprecated` ones can."""
    paused: Pause | None
    """Its pause; null if it is not paused."""


class Estimate(msgspec.Struct, frozen=True):
    """The expected cost."""

    credits: Amount
    """The expected cost."""
    max_credits: Amount
    """What will be held; the charge never exceeds it."""
    min: Amount
    """The least it may cost."""
    max: Amount
    """The most it may cost."""
    currency: Currency
    basis: str
    """How it was computed, such as `per_image: 1 x 0.012`."""
    unit: str
    """What is counted, such as `image` or `second`."""
    unit_price: str
    """Credits for one unit with the markup, a decimal string; if input and output have different prices, the higher
    one.
    """
    max_units: Annotated[int, msgspec.Meta(ge=0)]
    """The most units that the task may use."""


class ModelDetails(ModelBody, frozen=True):
    """A model, what it takes and what it makes."""

    description: str | None
    """What the model makes; null if it is not described."""

    input_schema: FreeForm
    """JSON Schema (2020-12) of a task's `input`: the fields with their forms, bounds, defaults and descriptions.
    A field that it does not name is refused where `additionalProperties` is false.
    """

    example_input: FreeForm | None
    """A valid `input`, ready to be sent; null if the model has none."""

    estimate: Estimate | None
    """The quote of `example_input`, markup included; null without an example."""

    output: list[str]
    """The content types that outputs may have; empty if they are not known, or the model has no outputs."""

    priced_only: bool
    """Whether the model can be quoted, but no task can be created for it (`model_not_async`)."""


class CompatibleModelList(msgspec.Struct, frozen=True):
    """The listing in the format of OpenAI-compatible clients."""

    object: Literal["list"]
    data: list[ModelBody]
    """Every model of the catalog."""


class ModelList(msgspec.Struct, frozen=True):
    """Every model of the catalog, with what it takes."""

    data: list[ModelDetails]
    """Every model of the catalog, disabled ones too."""


class QuoteBody(msgspec.Struct, frozen=True):
    """A price at which a task may be created until ``expires_at``."""

    model: str
    """The model's id."""
    quote_id: str
    """The quote, `quo_…`; sent with the task, it is charged by this price."""
    catalog_version: str
    """Names the catalog that the price is from."""
    account_id: str | None
    """The account of the credential, the only one that may use the quote; null for a request without one."""
    brand_id: str
    """The brand that sells the credit, a setting."""
    input_hash: str
    """The SHA-256 of the input in canonical JSON."""
    currency: Currency
    expires_at: Time
    """Until when the quote may be used."""
    provider_quote_hash: str
    """A hash of the prices and terms that the quote is made of."""
    exact: bool
    """Whether the charge will be the estimate; false if it depends on the result."""
    estimate: Estimate
    """The expected cost."""
    paused: Pause | None
    """The pause of the model; null if it is not paused."""


def _unit_price(rate: Rate) -> str:
    given = [price for price in (rate.unit_price, rate.input_price, rate.output_price) if price is not None]
    return max(given, key=Decimal, default="0")


def pause_body(overrides: Overrides, model: str, provider: str) -> Pause | None:
    found = overrides.pause_of(model, provider)
    return None if found is None else render(Pause, found, until=found.ends_at)


def model_body(shape: type[S], overrides: Overrides, model: Model, **fields: object) -> S:
    provider = model.upstream.provider
    paused = pause_body(overrides, model.id, provider)
    return render(shape, model, object="model", provider=provider, paused=paused, **fields)


def model_details(catalog: Catalog, overrides: Overrides, model: Model) -> ModelDetails:
    example = catalog.examples.get(model.id)
    return model_body(
        ModelDetails,
        overrides,
        model,
        estimate=None if example is None else estimate_body(example),
        output=model.hosting.content_types,
    )


def estimate_body(terms: Terms) -> Estimate:
    return Estimate(
        credits=format_amount(terms.estimate_micro),
        max_credits=format_amount(terms.hold_micro),
        min=format_amount(terms.minimum_micro),
        max=format_amount(terms.maximum_micro),
        currency=CURRENCY,
        basis=terms.basis,
        unit=terms.rate.unit,
        unit_price=format_price(_unit_price(terms.rate)),
        max_units=_count(terms.largest),
    )


def _count(units: Units) -> int:
    """Return the largest amount of work; only one kind of unit is ever above zero, or both kinds of token."""
    return units.units + units.tokens_in + units.tokens_out
