"""The catalog: which models there are, what they cost, and which provider runs them.

It is one TOML file with its JSON Schemas beside it. Prices are strings, never floats. A file with faults is
refused whole, with one line for each fault. The catalog's version is a hash of what was read, with defaults
filled in: comments, blanks and the order of keys do not change it, and neither does a provider's secret.

    [catalog]
    schema = 1
    currency = "USD"

    credit_quantum = "0.000001"

    [defaults]                      # any key of a model; tables are filled up key by key
    markup_multiplier = "1.20"
    hosting = { mode = "rehost", retention_hours = 168, max_bytes = 268435456 }
    deadlines = { dispatch_s = 60, run_s = 900 }
    charge = { tolerance_percent = 5, on_mismatch = "smaller" }     # or review
    hold = "maximum"                # or estimate

    [providers.gpu]
    kind = "cog"                    # or studio; also previous_secrets, concurrency, polls
    url = "http://gpu.internal:5000"
    secret = "…"

    [providers.hosted]
    kind = "replicate"              # url is the public service, unless given
    token = "…"                     # what we show when we call; also for cog
    secret = "whsec_…"              # what its webhooks are signed with

    [[models]]
    id = "studio/image-1"
    modality = "image"
    type = "async"
    created = "2026-11-01"
    pricing = { mode = "per_image", unit_price = "0.010" }
    units = { n = "n" }
    upstream = { provider = "studio", model = "image-1" }
    input_schema = "schemas/image-1.json"

The provider ``studio`` needs no table: a model that names it is run by the studio inside the service.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

from holdfast.ledger.catalog.entries import IN_TREE_STUDIO, ReadSchema, in_tree_studio, read_model, read_provider
from holdfast.ledger.catalog.models import Model, ProviderConfig
from holdfast.ledger.catalog.price_gaps import price_gaps
from holdfast.ledger.catalog.toml_tables import Table
from holdfast.ledger.money import CURRENCY, format_amount
from holdfast.ledger.plain_json import canonical_json

__all__ = [
    "Catalog",
    "CatalogFault",
    "Model",
    "ProviderConfig",
    "load_catalog",
    "parse_catalog",
]


CREDIT_QUANTUM = format_amount(1)
"""The smallest step of credit there is, as a catalog may state it."""


class CatalogFault(Exception):
    """A catalog cannot be used; ``lines`` says why, one fault a line."""

    def __init__(self, lines: tuple[str, ...]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Catalog:
    """A catalog without faults. ``models`` and ``providers`` stand in file order; ``created`` is epoch seconds.

    ``warnings`` are lines on what is allowed and probably not meant.
    """

    version: str
    models: Mapping[str, Model]
    providers: Mapping[str, ProviderConfig]
    created: int
    warnings: tuple[str, ...] = ()


def load_catalog(path: Path | None) -> Catalog:
    """Read the catalog at ``path``, or the one shipped with the package. Raises :class:`CatalogFault`."""
    folder: Traversable
    if path is None:
        folder = files("holdfast.ledger.catalog").joinpath("default_catalog")
        name = "catalog.toml"
    else:
        folder, name = path.parent, path.name

    def read(wanted: str) -> str:
        parts = PurePosixPath(wanted).parts
        if wanted.startswith("/") or ".." in parts:
            raise ValueError("must lie beside the catalog file")
        return folder.joinpath(*parts).read_text(encoding="utf-8")

    try:
        text = read(name)
    except (OSError, ValueError) as error:
        raise CatalogFault((f"{path}: cannot be read: {error}",)) from error
    return parse_catalog(text, read_schema=read)


def parse_catalog(text: str, *, read_schema: ReadSchema) -> Catalog:
    """Read a catalog from its text. Raises :class:`CatalogFault` with every fault found."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CatalogFault((f"catalog: is not TOML: {error}",)) from error
    faults: list[str] = []
    top = Table(data, "catalog", faults)
    about = Table(_table(data, "catalog"), "[catalog]", faults)
    top.table("catalog")
    about.integer("schema", 1, least=1, most=1)
    about.choice("currency", (CURRENCY,), CURRENCY)
    about.choice("credit_quantum", (CREDIT_QUANTUM,), CREDIT_QUANTUM)
    created = about.day("created", 0)
    about.close()

    top.table("providers")
    providers: dict[str, ProviderConfig] = {}
    for name, entry in _table(data, "providers").items():
        provider = (
            read_provider(name, Table(entry, f"provider {name}", faults)) if isinstance(entry, dict) else None
        )
        if provider is None:
            faults.append(f"provider {name}: must be a table")
        else:
            providers[name] = provider

    top.table("defaults")
    defaults = _table(data, "defaults")
    models: dict[str, Model] = {}
    entries = data.get("models")
    if IN_TREE_STUDIO not in _table(data, "providers") and _names_studio(entries, defaults):
        providers[IN_TREE_STUDIO] = in_tree_studio()
    top.tables("models")
    for number, entry in enumerate(_list(entries), 1):
        if not isinstance(entry, dict):
            continue
        named = entry.get("id")
        where = f"model {named}" if isinstance(named, str) and named else f"model number {number}"
        before = len(faults)
        model = read_model(Table(_filled(entry, defaults), where, faults), providers, read_schema)
        if model is None or len(faults) > before:
            continue
        if model.id in models:
            faults.append(f"{where}: id is taken by another model")
        models[model.id] = model
    if not entries:
        faults.append("catalog: models must list at least one model")
    top.close()
    if faults:
        raise CatalogFault(tuple(dict.fromkeys(faults)))
    return Catalog(
        version=_version(models, providers),
        models=MappingProxyType(models),
        providers=MappingProxyType(providers),
        created=created or max(model.created for model in models.values()),
        warnings=tuple(line for model in models.values() for line in _warnings(model)),
    )


def _warnings(model: Model) -> Iterator[str]:
    gaps = price_gaps(model.tariff, model.schema)
    if gaps:
        yield (
            f"model {model.id}: pricing: no tier has a price for {', '.join(gaps)}: such inputs are refused. "
            'Add tiers, or otherwise = "base" to price them at the base.'
        )


def _table(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = data.get(key)
    return found if isinstance(found, dict) else {}


def _list(found: object) -> list[Any]:
    return found if isinstance(found, list) else []


def _names_studio(entries: object, defaults: Mapping[str, Any]) -> bool:
    """Whether any model that runs names the in-tree studio as its provider."""
    models = [_filled(entry, defaults) for entry in _list(entries) if isinstance(entry, dict)]
    return any(
        model.get("type") == "async" and _table(model, "upstream").get("provider") == IN_TREE_STUDIO
        for model in models
    )


def _filled(entry: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """A model's table over the defaults; tables in both are filled up key by key."""
    filled = dict(defaults)
    for key, value in entry.items():
        default = defaults.get(key)
        filled[key] = {**default, **value} if isinstance(default, dict) and isinstance(value, dict) else value
    return filled


def _version(models: Mapping[str, Model], providers: Mapping[str, ProviderConfig]) -> str:
    """Hash what was read, defaults filled in. A provider's secrets are left out: the version is public."""
    read = {
        "currency": CURRENCY,
        "providers": {
            name: [each.kind, each.url, each.concurrency, each.submit_timeout_s] for name, each in providers.items()
        },
        "models": {
            each.id: {
                "modality": each.modality,
                "type": each.type,
                "created": each.created,
                "owned_by": each.owned_by,
                "capabilities": each.capabilities,
                "status": each.status,
                "pricing": each.pricing,
                "markup_multiplier": each.markup_multiplier,
                "units": each.units,
                "upstream": [each.provider, each.upstream_model],
                "input_schema": each.input_schema,
                "hosting": each.hosting,
                "deadlines": each.deadlines,
                "hold": each.hold,
                "charge": [each.tolerance_percent, each.on_mismatch],
            }
            for each in models.values()
        },
    }
    return "cat_" + hashlib.sha256(canonical_json(read)).hexdigest()[:16]
