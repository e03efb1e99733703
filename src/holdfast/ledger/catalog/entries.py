"""Read the entries of a catalog file: a provider, or a model with its prices, unit fields and input schema.

Faults are appended to a list, one line each: the entry, the key, and what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from holdfast.ledger.catalog.input_schema import InputSchema
from holdfast.ledger.catalog.metering import Meter, UnitFields
from holdfast.ledger.catalog.models import Model, ModelTable, Pricing, ProviderConfig
from holdfast.ledger.catalog.pricing import make_tariffs, price_micro
from holdfast.ledger.catalog.tables import read_fields
from holdfast.ledger.standard_secrets import standard_key
from holdfast.ledger.values import AMOUNT_MICRO_MAX

ReadSchema = Callable[[str], str]
"""Reads a schema file by the name the catalog gives it; raises OSError, LookupError or ValueError if it cannot."""

ReadSecret = Callable[[Literal["env", "file"], str], str]
"""Reads the secret of an environment variable, or of a file; raises ValueError with the end of a sentence that does
not show the name, which could be the secret itself by mistake."""

IN_TREE_STUDIO = "studio"
"""The provider that needs no table: the studio that the service itself runs."""

_UNIT_NAMES: Mapping[object, str] = {
    "per_request": "request",
    "per_image": "image",
    "per_megapixel": "megapixel",
    "per_second": "second",
    "per_character": "character",
    "per_token": "token",
}
SECRETS = ("secret", "previous_secrets", "token")
_SOURCES: tuple[Literal["env", "file"], ...] = ("env", "file")
_PROVIDER_SECRETS = frozenset({*SECRETS, *(f"{key}_{source}" for key in SECRETS for source in _SOURCES), "url"})
_PRICES = ("unit_price", "input_price", "output_price")


WebhookProof = Literal["signature", "token", "standard"]
"""``signature``: our signature; ``token``: a bearer token or our signature; ``standard``: Standard Webhooks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRules:
    """The rules for providers of one kind. ``defaults`` has ``concurrency`` and ``callback_bytes_max`` at least.

    ``required`` and ``forbidden`` are keys that a provider's table must have, and must not have.
    """

    defaults: Mapping[str, Any]
    required: tuple[str, ...] = ("url",)
    forbidden: tuple[str, ...] = ()
    webhooks: WebhookProof = "signature"
    missing: Mapping[str, str] = field(default_factory=dict)
    """What to add to the fault of a missing key."""


def in_tree_studio(kinds: Mapping[str, KindRules]) -> ProviderConfig:
    """Return the studio's configuration if the catalog has no table for it."""
    return ProviderConfig(name=IN_TREE_STUDIO, kind="studio", **kinds["studio"].defaults)


def read_provider(
    name: str, table: object, faults: list[str], kinds: Mapping[str, KindRules], read_secret: ReadSecret
) -> ProviderConfig | None:
    """Read one ``[providers.NAME]``; None after a fault."""
    where, before = f"provider {name}", len(faults)
    given = table if isinstance(table, dict) else {}
    secrets = _read_secrets(given, where, faults, read_secret)
    kind = given.get("kind")
    rules = kinds.get(kind) if isinstance(kind, str) else None
    if isinstance(kind, str) and rules is None:
        faults.append(f"{where}: kind must be one of {', '.join(kinds)}, not {kind[:80]!r}")
    # For an unknown kind any valid defaults will do: the kind itself is the fault.
    rules = rules or next(iter(kinds.values()))
    forbidden = [
        key
        for key in given
        if kind in kinds and key.removesuffix("_env").removesuffix("_file") in ("name", *rules.forbidden)
    ]
    faults += [f"{where}: {key} is not a known key of kind {kind}" for key in forbidden]
    filled = {**rules.defaults, **table, **secrets, "name": name} if isinstance(table, dict) else table
    found = read_fields(ProviderConfig, filled, where, faults, secret=_PROVIDER_SECRETS)
    if kind in kinds:
        missing = [key for key in rules.required if not {key, f"{key}_env", f"{key}_file"} & given.keys()]
        faults += [f"{where}: {key} is missing{rules.missing.get(key, '')}" for key in missing]
    url = found.get("url")
    if url and (reason := _url_fault(url)) is not None:
        faults.append(f"{where}: url {reason}")
    for origin in found.get("input_origins") or ():
        reason = _url_fault(origin) or ("must not have a path" if urlsplit(origin).path.strip("/") else None)
        faults += [] if reason is None else [f"{where}: input_origins {reason}"]
    signing = (found.get("secret"), *(found.get("previous_secrets") or ()))
    if rules.webhooks == "standard" and any(each is not None and standard_key(each) is None for each in signing):
        faults.append(f"{where}: secret and previous_secrets must be whsec_ followed by base64")
    if len(faults) > before:
        return None
    return ProviderConfig(**{**found, "url": None if url is None else url.rstrip("/")})


def _read_secrets(
    given: Mapping[str, Any], where: str, faults: list[str], read_secret: ReadSecret
) -> dict[str, str | list[str]]:
    """Return the secrets that the table has elsewhere, by the keys that it could have had in their place."""
    found: dict[str, str | list[str]] = {}
    for key in SECRETS:
        keys = [each for each in (key, *(f"{key}_{source}" for source in _SOURCES)) if each in given]
        if len(keys) > 1:
            faults.append(f"{where}: {' and '.join(keys)} are the same setting; give one of them")
            continue
        for source in _SOURCES:
            named = given.get(f"{key}_{source}")
            try:
                if isinstance(named, str):
                    found[key] = read_secret(source, named)
                elif isinstance(named, list):
                    found[key] = [read_secret(source, each) for each in named if isinstance(each, str)]
            except ValueError as fault:
                faults.append(f"{where}: {key}_{source} {fault}")
    return found


def _url_fault(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        port_is_valid = parts.port is None or parts.port > 0
    except ValueError:
        return "is not a URL"
    if parts.scheme not in {"http", "https"} or not parts.hostname or not port_is_valid:
        return "must be an http or https address"
    if parts.username is not None or parts.password is not None:
        return "must not contain a user or password"
    if parts.query or parts.fragment:
        return "must not have a query or fragment"
    return None


def read_model(
    table: dict[str, Any],
    where: str,
    providers: Collection[str],
    read_schema: ReadSchema,
    faults: list[str],
) -> Model | None:
    """Read one ``[[models]]`` with the defaults filled in; None after a fault. ``providers`` are all names."""
    before = len(faults)
    prices = table.get("pricing")
    if isinstance(prices, dict):
        mode = prices.get("mode")
        # Without a valid mode it cannot be said which prices are missing.
        if isinstance(mode, str) and mode in _UNIT_NAMES:
            table = {**table, "pricing": {"unit": _UNIT_NAMES[mode], **prices}}
            _check_prices(mode, prices, f"{where}: pricing", faults)
    found = read_fields(ModelTable, table, where, faults)
    upstream, pricing, units = found.get("upstream"), found.get("pricing"), found.get("units")
    # A sync model is not run as a task, so its provider is only a name in the listing.
    if upstream is not None and found.get("type") == "async" and upstream.provider not in providers:
        faults.append(f"{where}: upstream: provider '{upstream.provider}' is not one of [providers]")
    hosting = found.get("hosting_table")
    if hosting is not None and hosting.max_bytes is not None and hosting.bytes_max is not None:
        faults.append(f"{where}: hosting: max_bytes and bytes_max are the same setting; give one of them")
    schema = None
    if "input_schema" in table:
        try:
            schema = _schema(table["input_schema"], read_schema)
        except ValueError as fault:
            faults.append(f"{where}: input_schema {fault}")
    if schema is None or pricing is None or upstream is None:
        return None
    _check_tiers(pricing, schema, f"{where}: pricing", faults)
    meter = None if units is None else _meter(pricing, units, schema, where, faults)
    if meter is None or len(faults) > before:
        return None
    upstream = msgspec.structs.replace(upstream, model=upstream.model or found["id"])
    base, *tiers = make_tariffs(pricing, found["markup_multiplier"], upstream)
    if any(price_micro(tariff.rate, meter.most) > AMOUNT_MICRO_MAX for tariff in (base, *tiers)):
        faults.append(f"{where}: pricing: the largest input would cost more than the ledger can hold")
        return None
    found |= {
        "upstream": upstream,
        "owned_by": found["owned_by"] or upstream.provider,
        "input_schema": schema.document,
    }
    return Model(**found, schema=schema, meter=meter, base=base, tiers=tuple(tiers))


def _check_prices(mode: str, pricing: dict[str, Any], where: str, faults: list[str]) -> None:
    """Check which prices the base and each tier set."""
    used = ("input_price", "output_price") if mode == "per_token" else ("unit_price",)
    tiers = pricing.get("tiers")
    priced = [(where, pricing)]
    priced += [
        (f"{where}: tiers {number}", tier)
        for number, tier in enumerate(tiers if isinstance(tiers, list) else [], 1)
    ]
    for path, table in priced:
        if isinstance(table, dict):
            faults += [f"{path}: {key} is missing" for key in used if key not in table]
            faults += [
                f"{path}: {key} is not used by {mode}" for key in _PRICES if key in table and key not in used
            ]
    if mode not in {"per_token", "per_character"} and pricing.get("unit_size", 1) != 1:
        faults.append(f"{where}: unit_size must be 1 for {mode}")


def _check_tiers(pricing: Pricing, schema: InputSchema, where: str, faults: list[str]) -> None:
    seen = []
    for number, tier in enumerate(pricing.tiers, 1):
        tier_path = f"{where}: tiers {number}"
        if tier.when in seen:
            faults.append(f"{tier_path}: repeats the condition of another tier")
        seen.append(tier.when)
        for name, value in tier.when.items():
            listed = schema.listed_values(name)
            if schema.field(name) is None:
                faults.append(f"{tier_path}: when.{name} is not a field of the input schema")
            elif listed is not None and value not in listed:
                faults.append(
                    f"{tier_path}: when.{name} has a value that the input schema does not allow: '{value}'"
                )


def _meter(pricing: Pricing, units: UnitFields, schema: InputSchema, where: str, faults: list[str]) -> Meter | None:
    try:
        return Meter(pricing.mode, units, schema)
    except ValueError as fault:
        faults.append(f"{where}: units: {fault}")
        return None


def _schema(given: object, read_schema: ReadSchema) -> InputSchema:
    """Read a schema given by file name or in the file itself. Raises ``ValueError`` with the fault's text."""
    try:
        # A table is encoded as JSON and decoded, so that TOML's dates and infinities do not reach the schema.
        text = read_schema(given) if isinstance(given, str) else msgspec.json.encode(given)
        document = msgspec.json.decode(text)
    except (OSError, LookupError) as error:
        raise ValueError(f"'{given}' cannot be read: {error}") from error
    except (ValueError, TypeError) as error:
        raise ValueError(f"is not JSON or cannot be read: {error}") from error
    if not isinstance(document, dict):
        raise ValueError("must be a JSON object, or the name of a file with one")
    return InputSchema(document)
