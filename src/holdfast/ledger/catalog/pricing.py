"""Pricing: base prices become rates, measured units become micro-credits.

All arithmetic is exact: prices are decimal strings read as ratios of integers, and each amount is rounded up
once, to a whole micro-credit, at the end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from decimal import Context, Decimal
from functools import lru_cache
from typing import NamedTuple

import msgspec

from holdfast.ledger.catalog.metering import Measured
from holdfast.ledger.catalog.models import Pricing, Tariff, TariffLine, Tier
from holdfast.ledger.catalog.terms import Rate, Terms, Units
from holdfast.ledger.money import MICRO, format_amount
from holdfast.ledger.plain_json import canonical_json

_EXACT = Context(prec=60)
"""Wide enough for any price times any markup that the catalog admits, so nothing is rounded before the end."""


class Priced(NamedTuple):
    """What measured units cost, in micro-credits: ``minimum`` ≤ ``estimate`` ≤ ``maximum``."""

    minimum_micro: int
    estimate_micro: int
    maximum_micro: int
    basis: str


def make_tariff(pricing: Pricing, *, markup_multiplier: str, provider: str, upstream_model: str) -> Tariff:
    """Work out what the customer pays: every base price, and the minimum, times the markup."""

    def line(tier: Tier | None) -> TariffLine:
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
        stands_on = {
            "provider": provider,
            "model": upstream_model,
            "pricing": msgspec.to_builtins(msgspec.structs.replace(pricing, tiers=())),
            "tier": None if tier is None else msgspec.to_builtins(tier),
        }
        return TariffLine(
            when=() if tier is None else tuple(sorted(tier.when.items())),
            rate=rate,
            provider_quote_hash=hashlib.sha256(canonical_json(stands_on)).hexdigest(),
        )

    return Tariff(
        base=line(None),
        tiers=tuple(line(tier) for tier in pricing.tiers),
        fields=tuple(sorted({name for tier in pricing.tiers for name in tier.when})),
        base_otherwise=pricing.otherwise == "base",
    )


def choose_line(tariff: Tariff, given: Mapping[str, object]) -> TariffLine | None:
    """The price that holds for an input: the first tier that fits, or the base where no tier field is given.

    None where the input has tier fields but no tier fits them: a price is never guessed. Only a catalog that says
    so in as many words (``otherwise = "base"``) prices such an input at the base.
    """
    if not tariff.fields:
        return tariff.base
    for tier in tariff.tiers:
        if all(name in given and _same(given[name], value) for name, value in tier.when):
            return tier
    if tariff.base_otherwise or not any(name in given for name in tariff.fields):
        return tariff.base
    return None


def price_micro(rate: Rate, units: Units) -> int:
    """What ``units`` cost at ``rate``: at least its minimum, rounded up to a micro-credit. No units, no cost."""
    metered_micro = _metered_micro(rate, units)
    return 0 if metered_micro is None else max(metered_micro, rate.minimum_micro)


def price_measured(line: TariffLine, measured: Measured) -> Priced:
    """Price an input's units and say in words how the estimate came about."""
    smallest, estimated, largest = measured
    rate = line.rate
    if rate.mode == "per_token":
        tokens_in, tokens_out = estimated.tokens_in, estimated.tokens_out
        basis = f"per_token: {tokens_in} in x {rate.input_price} + {tokens_out} out x {rate.output_price}"
    else:
        basis = f"{rate.mode}: {estimated.units} x {rate.unit_price}"
    if rate.unit_size != 1:
        basis += f" / {rate.unit_size}"
    metered_micro = _metered_micro(rate, estimated)
    estimate_micro = 0 if metered_micro is None else max(metered_micro, rate.minimum_micro)
    if metered_micro is not None and metered_micro < rate.minimum_micro:
        basis += f", at least {format_amount(rate.minimum_micro)}"
    if smallest is largest:
        return Priced(estimate_micro, estimate_micro, estimate_micro, basis)
    return Priced(price_micro(rate, smallest), estimate_micro, price_micro(rate, largest), basis)


def charge_for(terms: Terms, units: Units) -> int:
    """The charge, in micro-credits, for work done under ``terms``: by its rate, never above what was held."""
    return min(price_micro(terms.rate, units), terms.hold_micro)


def _same(given: object, value: object) -> bool:
    """Equal as JSON: unlike in Python, ``true`` is not 1."""
    return given == value and isinstance(given, bool) == isinstance(value, bool)


def _metered_micro(rate: Rate, units: Units) -> int | None:
    """The price before the minimum, rounded up; None for no work at all."""
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
    """Micro-credits per measured unit, as numerator and denominator."""
    above, below = Decimal(price).as_integer_ratio()
    return above * MICRO, below * unit_size
