"""What a catalog is made of: providers, and models with their base prices and the fields that measure an input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from holdfast.ledger.catalog.input_schema import InputSchema
from holdfast.ledger.catalog.metering import Meter, UnitFields
from holdfast.ledger.catalog.terms import Deadlines, Hosting, OnMismatch, PricingMode, Rate

ProviderKind = Literal["studio", "cog", "replicate"]
Modality = Literal["llm", "image", "video", "audio"]
RunType = Literal["sync", "async"]
Status = Literal["active", "deprecated", "disabled"]
Otherwise = Literal["refuse", "base"]
HoldSize = Literal["maximum", "estimate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderConfig:
    """Where a provider is and how to talk to it.

    ``url`` is its base address without a closing slash; None means the in-tree studio's own address.
    ``secret`` signs or opens what passes between us; ``previous_secrets`` are still believed during rotation.
    """

    name: str
    kind: ProviderKind
    url: str | None = None
    secret: str | None = field(default=None, repr=False)
    previous_secrets: tuple[str, ...] = field(default=(), repr=False)
    token: str | None = field(default=None, repr=False)
    """What we show the provider when we call it."""
    concurrency: int = 4
    """The most jobs in flight at once."""
    submit_timeout_s: int = 15
    polls: bool | None = None
    """Whether a job can be asked after there; None: it is tried, and not finding it proves nothing."""
    callback_bytes_max: int = 256 * 1024
    """The largest callback taken from it."""

    @property
    def own_secrets(self) -> tuple[str, ...]:
        """The secrets that the catalog gives to this provider alone, the current one first."""
        return tuple(secret for secret in (self.secret, *self.previous_secrets) if secret)


class Tier(msgspec.Struct, frozen=True, kw_only=True):
    """A base price that holds where the input has every value in ``when``."""

    when: dict[str, str | int | bool]
    unit_price: str | None = None
    input_price: str | None = None
    output_price: str | None = None


class Pricing(msgspec.Struct, frozen=True, kw_only=True):
    """A model's base prices, as plain decimal strings of credits per ``unit``; the markup comes on top.

    ``unit_size`` is how many measured units one priced ``unit`` is (1000000 where a price is per "1M tokens").
    ``minimum`` is the least that anything above zero units costs. ``otherwise`` says what becomes of an input that
    names a field of the tiers and fits none of them: it is refused, or priced at the base.
    """

    mode: PricingMode
    unit: str
    unit_size: int = 1
    unit_price: str | None = None
    input_price: str | None = None
    output_price: str | None = None
    minimum: str | None = None
    tiers: tuple[Tier, ...] = ()
    otherwise: Otherwise = "refuse"


class TariffLine(msgspec.Struct, frozen=True, kw_only=True):
    """One price as the customer pays it: which input selects it, the rate, and the proof of the base behind it."""

    when: tuple[tuple[str, str | int | bool], ...]
    rate: Rate
    provider_quote_hash: str


class Tariff(msgspec.Struct, frozen=True, kw_only=True):
    """All prices of one model. ``fields`` are the input fields that select a tier; without them ``base`` holds.

    With ``base_otherwise`` it also holds for inputs that have such fields and fit no tier.
    """

    base: TariffLine
    tiers: tuple[TariffLine, ...] = ()
    fields: tuple[str, ...] = ()
    base_otherwise: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Model:
    """One entry of the catalog. ``created`` is in seconds since the epoch.

    ``hold`` says what is set aside for a run: the most it can cost, or what it is expected to cost. The charge
    never exceeds the hold, so with ``estimate`` whoever runs the service bears what goes beyond.
    ``tolerance_percent`` and ``on_mismatch`` as :class:`~holdfast.ledger.catalog.terms.Terms` has them.
    """

    id: str
    modality: Modality
    type: RunType
    created: int
    owned_by: str
    capabilities: tuple[str, ...]
    status: Status
    pricing: Pricing
    markup_multiplier: str
    provider: str
    upstream_model: str
    schema: InputSchema = field(repr=False)
    meter: Meter = field(repr=False)
    tariff: Tariff = field(repr=False)
    hosting: Hosting
    deadlines: Deadlines
    hold: HoldSize = "maximum"
    tolerance_percent: int = 5
    on_mismatch: OnMismatch = "smaller"

    @property
    def units(self) -> UnitFields:
        """Which input fields measure the work."""
        return self.meter.fields

    @property
    def input_schema(self) -> Mapping[str, object]:
        """The JSON Schema an input must meet."""
        return self.schema.document
