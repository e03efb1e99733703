"""The entries of a catalog file: one provider, or one model with its prices, fields of measure and schema."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import cast, get_args
from urllib.parse import urlsplit

import msgspec

from holdfast.ledger.catalog.input_schema import InputSchema
from holdfast.ledger.catalog.metering import Meter, UnitFields
from holdfast.ledger.catalog.models import (
    HoldSize,
    Modality,
    Model,
    Otherwise,
    Pricing,
    ProviderConfig,
    ProviderKind,
    RunType,
    Status,
    Tier,
)
from holdfast.ledger.catalog.pricing import make_tariff, price_micro
from holdfast.ledger.catalog.terms import Deadlines, Hosting, OnMismatch, PricingMode
from holdfast.ledger.catalog.toml_tables import Table
from holdfast.ledger.money import AMOUNT_MICRO_MAX
from holdfast.ledger.standard_secrets import standard_key

ReadSchema = Callable[[str], str]
"""Reads a schema file by the name the catalog gives it; raises OSError, LookupError or ValueError if it cannot."""


PROVIDER_NAME = r"[a-z0-9][a-z0-9_-]{0,39}"
MODEL_ID = r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}(/[A-Za-z0-9._:-]{1,64}){0,3}"
SECRET_CHARS_MIN = 8
PRINTABLE = r"[!-~]{8,500}"
IN_TREE_STUDIO = "studio"
"""The provider that exists without a table of its own: the studio that the service runs itself."""
DEADLINE_S_MAX = 30 * 24 * 3600
RETENTION_HOURS_MAX = 10 * 365 * 24

_UNIT_NAMES: Mapping[PricingMode, str] = {
    "per_request": "request",
    "per_image": "image",
    "per_megapixel": "megapixel",
    "per_second": "second",
    "per_character": "character",
    "per_token": "token",
}
REPLICATE_URL = "https://api.replicate.com"
CALLBACK_BYTES_LEAST = 64 * 1024
CALLBACK_BYTES_MOST = 32 * 1024 * 1024
_CALLBACK_BYTES: Mapping[ProviderKind, int] = {
    "studio": 256 * 1024,
    # Without an upload address a container sends its files inside its webhooks.
    "cog": 8 * 1024 * 1024,
    # The whole input and log come along, outputs as addresses.
    "replicate": 1024 * 1024,
}
_CONCURRENCY: Mapping[ProviderKind, int] = {"studio": 4, "cog": 16, "replicate": 16}


def in_tree_studio() -> ProviderConfig:
    """The studio as it stands where the catalog says nothing about it."""
    return read_provider(IN_TREE_STUDIO, Table({"kind": "studio"}, "", []))


def read_provider(name: str, table: Table) -> ProviderConfig:
    """Read one ``[providers.NAME]``; what is wrong is noted in the table."""
    if Table({"name": name}, "", []).optional_text("name", pattern=PROVIDER_NAME) is None:
        table.fault("name", "must be lower-case letters, digits, - and _")
    kind = cast(ProviderKind, table.choice("kind", get_args(ProviderKind)))
    url = table.optional_text("url")
    if url is None and kind == "replicate":
        url = REPLICATE_URL
    if url is None and kind != "studio":
        table.fault("url", "is missing")
    if url is not None and (reason := _url_fault(url)) is not None:
        table.fault("url", reason)
    secret = table.optional_text("secret")
    previous_secrets = table.texts("previous_secrets")
    for each in (secret, *previous_secrets):
        if each is not None and len(each) < SECRET_CHARS_MIN:
            table.fault("secret", f"and previous_secrets must have at least {SECRET_CHARS_MIN} characters")
        if each is not None and kind == "replicate" and standard_key(each) is None:
            table.fault("secret", "and previous_secrets of the hosted service are whsec_ and then base64")
    token = table.optional_text("token") if kind != "studio" else None
    if token is None and kind == "replicate":
        table.fault("token", "is missing: without one the hosted service answers nothing")
    if token is not None and re.fullmatch(PRINTABLE, token) is None:
        # Not by the reader's own pattern, which would quote the token.
        table.fault("token", f"must be {SECRET_CHARS_MIN} to 500 printable characters without blanks")
    bytes_max = _CALLBACK_BYTES[kind]
    if kind != "studio":
        bounds = {"least": CALLBACK_BYTES_LEAST, "most": CALLBACK_BYTES_MOST}
        bytes_max = table.integer("callback_bytes_max", bytes_max, **bounds)
    provider = ProviderConfig(
        name=name,
        kind=kind,
        url=None if url is None else url.rstrip("/"),
        secret=secret,
        previous_secrets=previous_secrets,
        token=token,
        concurrency=table.integer("concurrency", _CONCURRENCY[kind], least=1, most=10_000),
        submit_timeout_s=table.integer("submit_timeout_s", 15, least=1, most=600),
        polls=table.optional_switch("polls") if kind == "cog" else True,
        callback_bytes_max=bytes_max,
    )
    table.close()
    return provider


def _url_fault(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        port_is_fine = parts.port is None or parts.port > 0
    except ValueError:
        return "is not a URL"
    if parts.scheme not in {"http", "https"} or not parts.hostname or not port_is_fine:
        return "must be an http or https address"
    if parts.username is not None or parts.password is not None:
        return "must not carry a user or password"
    if parts.query or parts.fragment:
        return "must not have a query or fragment"
    return None


def read_model(table: Table, providers: Mapping[str, ProviderConfig], read_schema: ReadSchema) -> Model | None:
    """Read one ``[[models]]`` with the defaults below it; what is wrong is noted in the table."""
    model_id = table.text("id", pattern=MODEL_ID)
    run_type = cast(RunType, table.choice("type", get_args(RunType)))
    upstream = table.table("upstream")
    provider = upstream.text("provider", pattern=PROVIDER_NAME)
    upstream_model = upstream.text("model", model_id)
    upstream.close()
    # What answers at once is not run as a task, so its provider is only a name in the listing.
    if run_type == "async" and provider and provider not in providers:
        upstream.fault("provider", f"'{provider}' is not one of [providers]")
    pricing = _pricing(table.table("pricing"))
    markup_multiplier = table.markup("markup_multiplier", "1")
    units = _units(table.table("units"))
    schema = _schema(table, read_schema)
    modality = cast(Modality, table.choice("modality", get_args(Modality)))
    created = table.day("created")
    owned_by = table.text("owned_by", provider or "holdfast")
    capabilities = table.texts("capabilities")
    status = cast(Status, table.choice("status", get_args(Status), "active"))
    hosting = _hosting(table.table("hosting"))
    deadlines = _deadlines(table.table("deadlines"))
    hold = cast(HoldSize, table.choice("hold", get_args(HoldSize), "maximum"))
    tolerance_percent, on_mismatch = _charge(table.table("charge"))
    table.close()
    if schema is None or pricing is None:
        return None
    _check_tiers(table, pricing, schema)
    try:
        meter = Meter(pricing.mode, units, schema)
    except ValueError as fault:
        table.fault("units:", str(fault))
        return None
    tariff = make_tariff(
        pricing, markup_multiplier=markup_multiplier, provider=provider, upstream_model=upstream_model
    )
    if any(price_micro(line.rate, meter.most) > AMOUNT_MICRO_MAX for line in (tariff.base, *tariff.tiers)):
        table.fault("pricing:", "the largest input would cost more than the ledger can hold")
    return Model(
        id=model_id,
        modality=modality,
        type=run_type,
        created=created,
        owned_by=owned_by,
        capabilities=capabilities,
        status=status,
        pricing=pricing,
        markup_multiplier=markup_multiplier,
        provider=provider,
        upstream_model=upstream_model,
        schema=schema,
        meter=meter,
        tariff=tariff,
        hosting=hosting,
        deadlines=deadlines,
        hold=hold,
        tolerance_percent=tolerance_percent,
        on_mismatch=on_mismatch,
    )


def _pricing(table: Table) -> Pricing | None:
    mode = cast(PricingMode, table.choice("mode", get_args(PricingMode)))
    if table.value("mode") != mode:
        # Without a mode there is no telling which other keys are wrong.
        return None
    sized = mode in {"per_token", "per_character"}
    tiers = []
    for entry in table.tables("tiers"):
        when = entry.value("when")
        if not isinstance(when, dict) or not when or not all(type(v) in (str, int, bool) for v in when.values()):
            entry.fault("when", "must be a table of input fields and their values")
            when = {}
        tiers.append(Tier(when=when, **_prices(entry, mode)))
        entry.close()
    pricing = Pricing(
        mode=mode,
        unit=table.text("unit", _UNIT_NAMES[mode]),
        unit_size=table.integer("unit_size", 1, least=1, most=10**9 if sized else 1),
        minimum=table.price("minimum"),
        tiers=tuple(tiers),
        otherwise=cast(Otherwise, table.choice("otherwise", get_args(Otherwise), "refuse")),
        **_prices(table, mode),
    )
    table.close()
    return pricing


def _prices(table: Table, mode: PricingMode) -> dict[str, str | None]:
    used = ("input_price", "output_price") if mode == "per_token" else ("unit_price",)
    prices = {}
    for key in ("unit_price", "input_price", "output_price"):
        prices[key] = table.price(key)
        if key in used and not table.has(key):
            table.fault(key, "is missing")
        if key not in used and table.has(key):
            table.fault(key, f"is not used by {mode}")
    return prices


def _check_tiers(table: Table, pricing: Pricing, schema: InputSchema) -> None:
    seen = []
    for number, tier in enumerate(pricing.tiers, 1):
        if tier.when in seen:
            table.fault(f"pricing: tiers {number}:", "repeats the condition of another tier")
        seen.append(tier.when)
        for name, value in tier.when.items():
            listed = schema.listed_values(name)
            if schema.field(name) is None:
                table.fault(f"pricing: tiers {number}: when.{name}", "is not a field of the input schema")
            elif listed is not None and value not in listed:
                table.fault(f"pricing: tiers {number}: when.{name}", "has a value the input schema never admits")


def _units(table: Table) -> UnitFields:
    fields = {name: table.optional_text(name) for name in UnitFields.__struct_fields__ if name != "typical"}
    typical = table.integer("typical", 0, least=1, most=10**9) if table.has("typical") else None
    table.close()
    return UnitFields(**fields, typical=typical)


def _schema(table: Table, read_schema: ReadSchema) -> InputSchema | None:
    given = table.value("input_schema")
    if given is None:
        table.fault("input_schema", "is missing")
        return None
    try:
        if isinstance(given, str):
            document = msgspec.json.decode(read_schema(given))
        else:
            # Through JSON and back, so that dates and infinities of TOML do not reach the schema.
            document = msgspec.json.decode(msgspec.json.encode(given))
    except (OSError, LookupError) as error:
        table.fault("input_schema", f"'{given}' cannot be read: {error}")
        return None
    except (ValueError, TypeError) as error:
        table.fault("input_schema", f"is not JSON or cannot be read: {error}")
        return None
    if not isinstance(document, dict):
        table.fault("input_schema", "must be a JSON object, or the name of a file with one")
        return None
    try:
        return InputSchema(document)
    except ValueError as fault:
        table.fault("input_schema", str(fault))
        return None


def _hosting(table: Table) -> Hosting:
    hosting = Hosting(
        mode="passthrough"
        if table.choice("mode", ("rehost", "passthrough"), "rehost") == "passthrough"
        else "rehost",
        retention_s=3600 * table.integer("retention_hours", 7 * 24, least=1, most=RETENTION_HOURS_MAX),
        bytes_max=table.integer(_bytes_key(table), Hosting().bytes_max, least=1, most=2**40),
        content_types=table.texts("content_types"),
    )
    table.close()
    return hosting


def _bytes_key(table: Table) -> str:
    """The limit of one output's size goes by two names; both at once would leave it open which one holds."""
    if table.has("max_bytes") and table.has("bytes_max"):
        table.fault("max_bytes", "and bytes_max mean the same; give one of them")
        table.value("max_bytes")
    return "bytes_max" if table.has("bytes_max") else "max_bytes"


def _charge(table: Table) -> tuple[int, OnMismatch]:
    """How far the provider's report may be from what is measured, in percent, and what becomes of more.

    A run is charged when it succeeds, at most what was held. The catalog may say so, not say otherwise.
    """
    on = table.texts("on", ("succeeded",))
    if set(on) != {"succeeded"}:
        table.fault("on", 'must be ["succeeded"]: nothing else is ever charged')
    table.choice("overrun", ("cap",), "cap")
    tolerance_percent = table.integer("tolerance_percent", 5, least=0, most=1000)
    on_mismatch = cast(OnMismatch, table.choice("on_mismatch", get_args(OnMismatch), "smaller"))
    table.close()
    return tolerance_percent, on_mismatch


def _deadlines(table: Table) -> Deadlines:
    usual = Deadlines()
    deadlines = Deadlines(
        **{
            name: table.integer(name, getattr(usual, name), least=1, most=DEADLINE_S_MAX)
            for name in usual.__struct_fields__
        }
    )
    table.close()
    return deadlines
