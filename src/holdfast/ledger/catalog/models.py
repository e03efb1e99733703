"""The entries of a catalog file as values: providers, and models with their prices and unit fields.

The structs mirror the file: a field's type and description say which values are allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from holdfast.ledger.catalog.bonuses import Bonus
from holdfast.ledger.catalog.input_schema import InputSchema, LinkFields
from holdfast.ledger.catalog.metering import Meter, UnitFields
from holdfast.ledger.catalog.tables import Text
from holdfast.ledger.catalog.terms import Deadlines, Hosting, OnMismatch, PricingMode, Rate, Terms
from holdfast.ledger.values import CURRENCY

Modality = Literal["llm", "image", "video", "audio"]
RunType = Literal["sync", "async"]
ModelStatus = Literal["active", "deprecated", "disabled"]

CALLBACK_BYTES_MOST = 32 * 1024 * 1024

ProviderName = Annotated[
    str, Meta(pattern=r"\A[a-z0-9][a-z0-9_-]{0,39}\Z", description="lower-case letters, digits, - and _")
]
ModelId = Annotated[
    str,
    Meta(
        pattern=r"\A[A-Za-z0-9][A-Za-z0-9._:-]{0,63}(/[A-Za-z0-9._:-]{1,64}){0,3}\Z",
        description="up to four names of letters, digits and . _ : -, joined by /",
    ),
]
Secret = Annotated[str, Meta(min_length=8, description="at least 8 characters long")]
Token = Annotated[
    str, Meta(pattern=r"\A[!-~]{8,500}\Z", description="8 to 500 printable characters without blanks")
]
Price = Annotated[
    str,
    Meta(
        pattern=r"\A(0|[1-9][0-9]{0,5})(\.[0-9]{1,12})?\Z",
        description='a string such as "0.05" (at most 12 decimals)',
    ),
]
Markup = Annotated[
    str,
    Meta(
        pattern=r"\A(?=.*[1-9])(0|[1-9][0-9]{0,2})(\.[0-9]{1,4})?\Z",
        description='a string above zero such as "1.20" (at most 4 decimals)',
    ),
]
Hours = Annotated[int, Meta(ge=1, le=10 * 365 * 24)]
OutputBytes = Annotated[int, Meta(ge=1, le=2**40)]


class CatalogTable(msgspec.Struct, frozen=True, kw_only=True):
    """The table ``[catalog]``. ``credit_quantum`` is the smallest amount of credit, stated for readers."""

    schema: Annotated[int, Meta(ge=1, le=1)] = 1
    currency: Literal["USD"] = CURRENCY
    credit_quantum: Literal["0.000001"] = "0.000001"
    created: date | None = None


class ProviderConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where a provider is and how to call it.

    ``url`` is its base address without a closing slash; None is the in-tree studio's own address. ``secret`` signs
    what is exchanged; ``previous_secrets`` remain valid during a rotation. ``token`` authenticates our calls. Each
    may be in environment variables or files instead, which ``…_env`` and ``…_file`` name. ``concurrency`` is the
    maximum number of jobs in flight. ``polls``: whether jobs can be polled; None if polls are tried, but a job that
    is not found may still exist. ``input_origins``: where files in inputs may be although that is not public or not
    https.
    """

    name: ProviderName
    kind: Text
    url: Text | None = None
    secret: Secret | None = None
    previous_secrets: tuple[Secret, ...] = ()
    token: Token | None = None
    secret_env: Text | None = None
    secret_file: Text | None = None
    previous_secrets_env: tuple[Text, ...] = ()
    previous_secrets_file: tuple[Text, ...] = ()
    token_env: Text | None = None
    token_file: Text | None = None
    concurrency: Annotated[int, Meta(ge=1, le=10_000)]
    submit_timeout_s: Annotated[int, Meta(ge=1, le=600)] = 15
    polls: bool | None = None
    callback_bytes_max: Annotated[int, Meta(ge=64 * 1024, le=CALLBACK_BYTES_MOST)]
    input_origins: tuple[Text, ...] = ()

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("name", self.name), ("kind", self.kind)]

    def __repr__(self) -> str:
        # Without the secrets, which a representation with all fields would show.
        return f"ProviderConfig(name={self.name!r}, kind={self.kind!r})"

    @property
    def is_built_in(self) -> bool:
        """Whether this is the studio that comes with the emulators, at an address that the service chooses."""
        return self.kind == "studio" and self.url is None

    @property
    def own_secrets(self) -> tuple[str, ...]:
        """The secrets that the catalog gives to this provider alone, the current one first."""
        return tuple(secret for secret in (self.secret, *self.previous_secrets) if secret)

    @property
    def secret_values(self) -> frozenset[str]:
        """All secrets of the entry: its own, and its token."""
        return frozenset((*self.own_secrets, *((self.token,) if self.token else ())))


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """Base prices as plain decimal strings of credits; the mode decides which are set."""

    unit_price: Price | None = None
    input_price: Price | None = None
    output_price: Price | None = None


class Tier(Prices, frozen=True, kw_only=True):
    """Base prices that apply if the input has every value in ``when``."""

    when: Annotated[
        dict[str, str | int | bool],
        Meta(min_length=1, description="a table of input fields and their values"),
    ]


class Pricing(Prices, frozen=True, kw_only=True):
    """A model's base prices per ``unit`` (by default the mode's), before the markup.

    ``unit_size`` is how many measured units one priced ``unit`` is (1000000 if a price is per "1M tokens").
    ``minimum`` is the least that anything above zero units costs. ``otherwise``: whether an input that has a field
    of the tiers and matches none of them is refused or priced at the base.
    """

    mode: PricingMode
    unit: Text = ""
    unit_size: Annotated[int, Meta(ge=1, le=10**9)] = 1
    minimum: Price | None = None
    tiers: tuple[Tier, ...] = ()
    otherwise: Literal["refuse", "base"] = "refuse"


class Upstream(msgspec.Struct, frozen=True, kw_only=True):
    """Which provider runs a model, and the model's name there."""

    provider: ProviderName
    model: Text = ""


class HostingTable(msgspec.Struct, frozen=True, kw_only=True):
    """How outputs are stored, as the file states it; ``max_bytes`` and ``bytes_max`` are two names of one limit."""

    mode: Literal["rehost", "passthrough"] = "rehost"
    retention_hours: Hours = 7 * 24
    max_bytes: OutputBytes | None = None
    bytes_max: OutputBytes | None = None
    content_types: tuple[Text, ...] = ()


class ChargeTable(msgspec.Struct, frozen=True, kw_only=True):
    """What is charged: a run that succeeded, at most its hold. The file may state that, and not change it.

    ``tolerance_percent`` and ``on_mismatch`` as :class:`~holdfast.ledger.catalog.terms.Terms` has them.
    """

    on: Annotated[tuple[Literal["succeeded"], ...], Meta(min_length=1, description='["succeeded"]')] = (
        "succeeded",
    )
    overrun: Literal["cap"] = "cap"
    tolerance_percent: Annotated[int, Meta(ge=0, le=1000)] = 5
    on_mismatch: OnMismatch = "smaller"


class ModelTable(msgspec.Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """One ``[[models]]`` with the defaults filled in.

    ``description`` and ``example_input``, which must be valid and have a price, are shown to customers.
    ``hold``: whether the maximum or the expected cost of a run is held. The charge never exceeds the hold, so with
    ``estimate`` the operator pays what exceeds it.
    """

    id: ModelId
    type: RunType
    modality: Modality
    created_on: date = msgspec.field(name="created")
    upstream: Upstream
    pricing: Pricing
    input_schema: object
    description: Text | None = None
    example_input: Annotated[dict[str, Any], Meta(description="a table")] | None = None
    markup_multiplier: Markup = "1"
    units: UnitFields = UnitFields()
    owned_by: Text = ""
    capabilities: tuple[Text, ...] = ()
    status: ModelStatus = "active"
    hosting_table: HostingTable = msgspec.field(default=HostingTable(), name="hosting")
    deadlines: Deadlines = Deadlines()
    hold: Literal["maximum", "estimate"] = "maximum"
    charge: ChargeTable = ChargeTable()

    @property
    def created(self) -> int:
        """When the model was created, in seconds since the epoch at 00:00 UTC."""
        return epoch_s(self.created_on)

    @property
    def priced_only(self) -> bool:
        """Whether the model can be quoted, but no task can be created for it."""
        return self.type == "sync"

    @cached_property
    def hosting(self) -> Hosting:
        """How a task of this model stores its outputs."""
        table = self.hosting_table
        return Hosting(
            mode=table.mode,
            retention_s=3600 * table.retention_hours,
            bytes_max=table.max_bytes or table.bytes_max or Hosting().bytes_max,
            content_types=table.content_types,
        )


class Tariff(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One price as the customer pays it: the input values that select it, and a hash of its base price."""

    when: dict[str, str | int | bool]
    rate: Rate
    provider_quote_hash: str


class Model(ModelTable, frozen=True, kw_only=True, eq=False):
    """One model: its entry in the file, and what was prepared from it.

    ``base`` is the price without a tier, ``tiers`` the prices of its tiers in file order.
    """

    input_schema: dict[str, object]
    schema: InputSchema
    meter: Meter
    base: Tariff
    tiers: tuple[Tariff, ...]

    @property
    def undescribed(self) -> list[str]:
        """What customers cannot read of it: the missing keys, and the fields of the input without a description."""
        missing = [key for key in ("description", "example_input") if getattr(self, key) is None]
        return [*missing, *(f"input.{name}" for name in self.schema.undescribed())]

    @cached_property
    def link_fields(self) -> LinkFields:
        """Where an input may have links, and so files."""
        return LinkFields(self.schema.document)

    @cached_property
    def tier_fields(self) -> list[str]:
        """The input fields that select a tier."""
        return sorted({name for tier in self.tiers for name in tier.when})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Catalog:
    """A catalog without faults. ``models`` and ``providers`` are in file order; ``created`` is epoch seconds.

    ``examples`` are the terms of the models' example inputs, of those that have one. ``bonuses`` rise by the amount
    that orders must reach. ``secret_files`` are the files
    with secrets: the catalog itself, if it has one, and those that it names. ``warnings`` are lines about settings
    that are allowed but probably not intended.
    """

    version: str
    models: Mapping[str, Model]
    providers: Mapping[str, ProviderConfig]
    created: int
    examples: Mapping[str, Terms]
    bonuses: tuple[Bonus, ...] = ()
    secret_files: tuple[Path, ...] = ()
    warnings: tuple[str, ...] = ()


def epoch_s(day: date) -> int:
    """Return the start of a day in UTC, in seconds since the epoch."""
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())
