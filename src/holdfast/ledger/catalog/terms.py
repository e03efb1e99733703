"""Terms: the fixed price and conditions of one run, stored with its quote and its task.

A task is settled by its own terms, never by the current catalog, so a price change does not affect it.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

PricingMode = Literal[
    "per_request", "per_image", "per_megapixel", "per_second", "per_character", "per_token"
]  # fmt: skip


class Hosting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a task's outputs are stored: ``rehost`` copies them, ``passthrough`` returns the provider's URLs."""

    mode: Literal["rehost", "passthrough"] = "rehost"
    retention_s: int = 7 * 24 * 3600
    bytes_max: int = 256 * 1024 * 1024
    content_types: tuple[str, ...] = ()


Seconds = Annotated[int, msgspec.Meta(ge=1, le=30 * 24 * 3600)]


class Deadlines(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How long each phase of a task may take.

    ``silence_s`` is how long a running job may send no update before it is polled, and the pause between polls.
    """

    dispatch_s: Seconds = 60
    run_s: Seconds = 900
    silence_s: Seconds = 30
    hosting_s: Seconds = 300
    review_s: Seconds = 24 * 3600
    overall_s: Seconds = 24 * 3600


OnMismatch = Literal["smaller", "review"]


class Rate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the customer pays: amounts in micro-credits per unit as exact decimal strings, markup included.

    A rate may be finer than a micro-credit (tokens cost less), so it is a string read as a Decimal. Single-rate
    modes use ``unit_price``; ``per_token`` uses ``input_price`` and ``output_price`` (credits per ``unit``).
    """

    mode: PricingMode
    unit: str
    unit_size: int = 1
    unit_price: str | None = None
    input_price: str | None = None
    output_price: str | None = None
    minimum_micro: int = 0


class Units(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A measured amount of work. Single-rate modes count ``units``; ``per_token`` counts both kinds of token."""

    units: int = 0
    tokens_in: int = 0
    tokens_out: int = 0


class Terms(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything needed to hold, run, host and settle a task, fixed when it was quoted.

    ``tolerance_percent`` is how far the provider's report of the work may differ from the measurement. Beyond it
    the smaller is charged and the difference logged, or, if ``on_mismatch`` is ``review``, an operator decides.

    ``estimate_micro`` is the expected charge, ``maximum_micro`` the price of the largest work, ``hold_micro`` the
    hold, which a charge never exceeds; ``exact``: the work is known beforehand. ``input_hash`` binds the terms to
    one normalised input.
    """

    model: str
    modality: str
    catalog_version: str
    input_hash: str
    rate: Rate
    estimated: Units
    largest: Units
    smallest: Units
    estimate_micro: int
    minimum_micro: int
    maximum_micro: int
    hold_micro: int
    exact: bool
    basis: str
    provider: str
    upstream_model: str
    provider_quote_hash: str
    hosting: Hosting = Hosting()
    deadlines: Deadlines = Deadlines()
    tolerance_percent: int = 5
    on_mismatch: OnMismatch = "smaller"
