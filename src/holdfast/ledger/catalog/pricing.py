"""Pricing: rates from base prices, amounts from measured units, and what an input costs, or why it has no price.

All arithmetic is exact: prices are decimal strings read as ratios of integers, and each amount is rounded up
once, to a whole micro-credit, at the end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from decimal import Context, Decimal
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice, product
from typing import cast

import msgspec

from holdfast.ledger.catalog.input_schema import InputFile, addresses_of, name_files, with_links
from holdfast.ledger.catalog.metering import Measured
from holdfast.ledger.catalog.models import Catalog, Model, Pricing, Tariff, Tier, Upstream
from holdfast.ledger.catalog.terms import Rate, Terms, Units
from holdfast.ledger.plain_json import NotPlain, canonical_json, plain_copy
from holdfast.ledger.refusals import VIOLATIONS_MAX, Refusal, Violation, invalid_input
from holdfast.ledger.values import MICRO, format_amount

_EXACT = Context(prec=60)
"""Wide enough for any price times any markup of a catalog, so nothing is rounded before the end."""


def make_tariffs(pricing: Pricing, markup_multiplier: str, upstream: Upstream) -> list[Tariff]:
    """Return what the customer pays without a tier, and for each tier: base prices and minimum times the markup."""

    def tariff(tier: Tier | None) -> Tariff:
        base = pricing if tier is None else tier
        rate = Rate(
            mode=pricing.mode,
            unit=pricing.unit,
            unit_size=pricing.unit_size,
            unit_price=_marked_up(base.unit_price, markup_multiplier),
            input_price=_marked_up(base.input_price, markup_multiplier),
            output_price=_marked_up(base.output_price, markup_multiplier),
            minimum_micro=_minimum_micro(pricing.minimum, markup_multiplier),
        )
        quoted = {
            "provider": upstream.provider,
            "model": upstream.model,
            "pricing": msgspec.to_builtins(msgspec.structs.replace(pricing, tiers=())),
            "tier": None if tier is None else msgspec.to_builtins(tier),
        }
        return Tariff(
            when={} if tier is None else tier.when,
            rate=rate,
            provider_quote_hash=hashlib.sha256(canonical_json(quoted)).hexdigest(),
        )

    return [tariff(None), *map(tariff, pricing.tiers)]


def choose_tariff(model: Model, given: Mapping[str, object]) -> Tariff | None:
    """Return the price of an input: of the first tier that matches, or the base if no tier field is given.

    A price is never guessed: None if tier fields are given and no tier matches, unless the catalog says
    ``otherwise = "base"``.
    """
    for tier in model.tiers:
        if all(name in given and _same(given[name], value) for name, value in tier.when.items()):
            return tier
    if model.pricing.otherwise == "base" or not any(name in given for name in model.tier_fields):
        return model.base
    return None


def price_micro(rate: Rate, units: Units) -> int:
    """Return the price of ``units`` in micro-credits, rounded up, at least the minimum; no units cost 0."""
    metered_micro = _metered_micro(rate, units)
    return 0 if metered_micro is None else max(metered_micro, rate.minimum_micro)


def basis_of(rate: Rate, units: Units) -> str:
    """Describe how the price of ``units`` is computed, such as ``per_image: 3 x 0.012``."""
    if rate.mode == "per_token":
        basis = (
            f"per_token: {units.tokens_in} in x {rate.input_price} + {units.tokens_out} out x {rate.output_price}"
        )
    else:
        basis = f"{rate.mode}: {units.units} x {rate.unit_price}"
    if rate.unit_size != 1:
        basis += f" / {rate.unit_size}"
    metered_micro = _metered_micro(rate, units)
    if metered_micro is not None and metered_micro < rate.minimum_micro:
        basis += f", at least {format_amount(rate.minimum_micro)}"
    return basis


def charge_for(terms: Terms, units: Units) -> int:
    """Return the charge in micro-credits for ``units`` of work: at the terms' rate, never above the hold."""
    return min(price_micro(terms.rate, units), terms.hold_micro)


def _same(given: object, value: object) -> bool:
    """Equal as JSON: unlike in Python, ``true`` is not 1."""
    return given == value and isinstance(given, bool) == isinstance(value, bool)


def _metered_micro(rate: Rate, units: Units) -> int | None:
    """Return the price before the minimum, rounded up; None for no work at all."""
    if rate.mode == "per_token":
        tokens_in, tokens_out = max(units.tokens_in, 0), max(units.tokens_out, 0)
        if tokens_in == tokens_out == 0:
            return None
        in_above, in_below = _ratio_micro(rate.input_price or "0", rate.unit_size)
        out_above, out_below = _ratio_micro(rate.output_price or "0", rate.unit_size)
        above = tokens_in * in_above * out_below + tokens_out * out_above * in_below
        return -(-above // (in_below * out_below))
    if units.units <= 0:
        return None
    above, below = _ratio_micro(rate.unit_price or "0", rate.unit_size)
    return -(-units.units * above // below)


def _marked_up(price: str | None, markup_multiplier: str) -> str | None:
    if price is None:
        return None
    product = _EXACT.multiply(Decimal(price), Decimal(markup_multiplier))
    return f"{product.normalize(_EXACT):f}"


def _minimum_micro(minimum: str | None, markup_multiplier: str) -> int:
    above, below = _ratio_micro(_marked_up(minimum, markup_multiplier) or "0", 1)
    return -(-above // below)


@lru_cache(maxsize=4096)
def _ratio_micro(price: str, unit_size: int) -> tuple[int, int]:
    """Return the micro-credits per measured unit as numerator and denominator."""
    above, below = Decimal(price).as_integer_ratio()
    return above * MICRO, below * unit_size


# Find inputs that a model's schema allows and none of its tiers has a price for. Such inputs are refused. Since
# that may be intended, a gap is a warning to the operator, not a fault.

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


MODEL_ID_CHARS_SHOWN_MAX = 80
MODELS_NAMED_MAX = 5
COMPARED_MAX = 200
"""How many ids are compared with one that does not exist, which takes a few microseconds each."""
_PUBLIC = "must be the id of an uploaded file, or an address that is public and https"


class PricedInput(msgspec.Struct, frozen=True):
    """An input with its defaults filled in, the terms it is priced at, and the files that it names."""

    input: dict[str, object]
    terms: Terms
    files: tuple[InputFile, ...] = ()


def price_input(
    model: Model,
    catalog_version: str,
    input: object,  # noqa: A002 - the API's name
    *,
    base_url: str | None = None,
    is_public: Callable[[str], bool] | None = None,
    input_origins: Sequence[str] = (),
) -> PricedInput | Refusal:
    """Price ``input`` for a model of this catalog, disabled or not, without changing it.

    Refuses: 1. ``invalid_input`` (not an object, beyond a limit, or invalid under the model's schema once defaults
    are filled in, or with an address that is not allowed; the message lists the violations and repeats no value);
    2. ``quote_unavailable`` (no tier has a price for this input).
    """
    if not isinstance(input, dict):
        return _invalid([Violation((), "must be an object")])
    try:
        given = cast(dict[str, object], plain_copy(input))
    except NotPlain as fault:
        return _invalid([Violation(fault.path, fault.reason)])
    model.schema.fill(given)
    links = model.link_fields.links_of(given)
    files = name_files(given, links, base_url) if links else ()
    violations = model.schema.violations(with_links(given, files) if files else given)
    if links and not violations and is_public is not None:
        addresses = addresses_of(links, (*input_origins, *((base_url,) if base_url else ())))
        refused = (path for path, address in addresses.items() if not is_public(address))
        violations = [Violation(tuple(map(str, path)), _PUBLIC) for path in islice(refused, VIOLATIONS_MAX)]
    if violations:
        return _invalid(violations)
    tariff = choose_tariff(model, given)
    if tariff is None:
        fields = model.tier_fields
        return Refusal(
            code="quote_unavailable",
            message=f"The model '{model.id}' has no price for this {' and '.join(fields)}.",
            param=f"input.{next(name for name in fields if name in given)}",
            final=True,
        )
    terms = _terms_of(model, catalog_version, tariff, model.meter.measure(given))
    input_hash = hashlib.sha256(canonical_json(given)).hexdigest()
    return PricedInput(given, msgspec.structs.replace(terms, input_hash=input_hash), files)


@lru_cache(maxsize=500)
def _terms_of(model: Model, catalog_version: str, tariff: Tariff, measured: Measured) -> Terms:
    """Return the terms of an input without its hash: most inputs of a model have equal units."""
    minimum_micro = price_micro(tariff.rate, measured.smallest)
    estimate_micro = price_micro(tariff.rate, measured.estimated)
    maximum_micro = price_micro(tariff.rate, measured.largest)
    return Terms(
        model=model.id,
        modality=model.modality,
        catalog_version=catalog_version,
        input_hash="",
        rate=tariff.rate,
        estimated=measured.estimated,
        largest=measured.largest,
        smallest=measured.smallest,
        estimate_micro=estimate_micro,
        minimum_micro=minimum_micro,
        maximum_micro=maximum_micro,
        hold_micro=estimate_micro if model.hold == "estimate" else maximum_micro,
        exact=minimum_micro == maximum_micro,
        basis=basis_of(tariff.rate, measured.estimated),
        provider=model.upstream.provider,
        upstream_model=model.upstream.model,
        provider_quote_hash=tariff.provider_quote_hash,
        hosting=model.hosting,
        deadlines=model.deadlines,
        tolerance_percent=model.charge.tolerance_percent,
        on_mismatch=model.charge.on_mismatch,
    )


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


def _invalid(violations: Sequence[Violation]) -> Refusal:
    return invalid_input([each._replace(path=("input", *each.path)) for each in violations])
