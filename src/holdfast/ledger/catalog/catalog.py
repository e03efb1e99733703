"""The catalog: the models, their prices, the providers that run them, and the bonuses of orders.

It is one TOML file with JSON Schemas beside it. Prices are strings, never floats. A file with faults is refused,
with one line for each fault. The catalog's version is a hash of what is sold, defaults filled in: comments,
blanks, the order of keys, models' descriptions and examples, and providers' secrets do not change it.

``[defaults]`` has any key of a model; tables are merged key by key. docs/catalog.md shows every key. The provider
``studio`` needs no table: the service runs it itself.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, Literal

from holdfast.ledger.catalog.bonuses import Bonus, read_bonuses
from holdfast.ledger.catalog.entries import (
    IN_TREE_STUDIO,
    SECRETS,
    KindRules,
    ReadSchema,
    in_tree_studio,
    read_model,
    read_provider,
)
from holdfast.ledger.catalog.models import Catalog, CatalogTable, Model, ProviderConfig, epoch_s
from holdfast.ledger.catalog.pricing import price_gaps, price_input
from holdfast.ledger.catalog.tables import read_fields
from holdfast.ledger.catalog.terms import Terms
from holdfast.ledger.plain_json import canonical_json
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import CURRENCY

NO_VARIABLES: Mapping[str, str] = MappingProxyType({})
_TABLES = ("catalog", "defaults", "providers", "models", "bonus")


class CatalogFault(Exception):
    """A catalog cannot be used; ``lines`` are its faults, one line each."""

    def __init__(self, lines: tuple[str, ...]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


def load_catalog(
    path: Path | None, kinds: Mapping[str, KindRules], variables: Mapping[str, str] = NO_VARIABLES
) -> Catalog:
    """Read the catalog at ``path``, or the one shipped with the package; secrets may be named in ``variables``.

    Raises :class:`CatalogFault`.
    """
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
    if path is None:
        return parse_catalog(text, read_schema=read, kinds=kinds)
    catalog = parse_catalog(text, read_schema=read, kinds=kinds, folder=path.parent, variables=variables)
    return replace(catalog, secret_files=tuple(_files_with_secrets(path, catalog.providers.values())))


def _read_secret(folder: Path, variables: Mapping[str, str], source: Literal["env", "file"], name: str) -> str:
    """Read the secret of an environment variable, or of a file, as ``ReadSecret`` says."""
    if source == "env":
        value = variables.get(name, "").strip()
        if not value:
            raise ValueError("names a variable that is not set")
        return value
    try:
        return (folder / name).read_text("utf-8").strip()
    except OSError as error:
        raise ValueError(f"names a file that cannot be read: {error.strerror}") from None
    except ValueError:
        raise ValueError("names a file that is not text") from None


def _files_with_secrets(path: Path, providers: Iterable[ProviderConfig]) -> Iterator[Path]:
    """Yield the catalog itself if it has a secret, and the files that it names for them."""
    has_own = False
    for each in providers:
        files = [name for name in (each.secret_file, *each.previous_secrets_file, each.token_file) if name]
        yield from (path.parent / name for name in files)
        has_own |= any(
            getattr(each, key) and not getattr(each, f"{key}_env") and not getattr(each, f"{key}_file")
            for key in SECRETS
        )
    if has_own:
        yield path


def parse_catalog(
    text: str,
    *,
    read_schema: ReadSchema,
    kinds: Mapping[str, KindRules],
    folder: Path = Path(),
    variables: Mapping[str, str] = NO_VARIABLES,
) -> Catalog:
    """Read a catalog from its text; files with secrets are named from ``folder``, other secrets in ``variables``.

    Raises :class:`CatalogFault` with every fault found.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CatalogFault((f"catalog: is not TOML: {error}",)) from error
    faults = [f"catalog: {key} is not a known key" for key in data if key not in _TABLES]
    about = read_fields(CatalogTable, _table(data, "catalog", faults), "[catalog]", faults)
    defaults = _table(data, "defaults", faults)
    entries = data.get("models", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        faults.append("catalog: models must be a list of tables")
        entries = []
    elif not entries:
        faults.append("catalog: models must list at least one model")
    entries = [_filled(entry, defaults) for entry in entries]

    tables = _table(data, "providers", faults)
    read = {
        name: read_provider(name, table, faults, kinds, partial(_read_secret, folder, variables))
        for name, table in tables.items()
    }
    providers = {name: provider for name, provider in read.items() if provider is not None}
    if IN_TREE_STUDIO not in tables and any(map(_runs_on_studio, entries)):
        providers[IN_TREE_STUDIO] = in_tree_studio(kinds)

    models: dict[str, Model] = {}
    for number, entry in enumerate(entries, 1):
        model_id = entry.get("id")
        where = f"model {model_id}" if isinstance(model_id, str) and model_id else f"model number {number}"
        model = read_model(entry, where, {*tables, *providers}, read_schema, faults)
        if model is not None and model.id in models:
            faults.append(f"{where}: id is used by another model")
        elif model is not None:
            models[model.id] = model
    bonuses = read_bonuses(data, faults)
    version = _version(models, providers, bonuses)
    examples = _price_examples(models.values(), version, faults)
    if faults:
        raise CatalogFault(tuple(dict.fromkeys(faults)))
    return Catalog(
        version=version,
        models=MappingProxyType(models),
        providers=MappingProxyType(providers),
        created=epoch_s(about["created"] or max(model.created_on for model in models.values())),
        examples=MappingProxyType(examples),
        bonuses=bonuses,
        warnings=tuple(line for model in models.values() for line in _warnings(model)),
    )


def _price_examples(models: Iterable[Model], version: str, faults: list[str]) -> dict[str, Terms]:
    """Price each model's example, which its own rules may refuse."""
    examples = {}
    for model in models:
        if model.example_input is None:
            continue
        priced = price_input(model, version, model.example_input)
        if isinstance(priced, Refusal):
            faults.append(f"model {model.id}: example_input is refused: {priced.message}")
        else:
            examples[model.id] = priced.terms
    return examples


def _warnings(model: Model) -> Iterator[str]:
    gaps = price_gaps(model)
    if gaps:
        yield (
            f"model {model.id}: pricing: no tier has a price for {', '.join(gaps)}: such inputs are refused. "
            'Add tiers, or otherwise = "base" to price them at the base.'
        )


def _table(data: Mapping[str, Any], key: str, faults: list[str]) -> dict[str, Any]:
    found = data.get(key, {})
    if not isinstance(found, dict):
        faults.append(f"catalog: {key} must be a table")
        return {}
    return found


def _runs_on_studio(entry: Mapping[str, Any]) -> bool:
    upstream = entry.get("upstream")
    return (
        entry.get("type") == "async" and isinstance(upstream, dict) and upstream.get("provider") == IN_TREE_STUDIO
    )


def _filled(entry: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Merge a model's table over the defaults; tables in both are merged key by key."""
    filled = dict(defaults)
    for key, value in entry.items():
        default = defaults.get(key)
        filled[key] = {**default, **value} if isinstance(default, dict) and isinstance(value, dict) else value
    return filled


def _version(
    models: Mapping[str, Model], providers: Mapping[str, ProviderConfig], bonuses: tuple[Bonus, ...]
) -> str:
    """Hash what is sold, defaults filled in. Providers' secrets are excluded, since the version is public."""
    read: dict[str, Any] = {
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
                "upstream": [each.upstream.provider, each.upstream.model],
                "input_schema": each.input_schema,
                "hosting": each.hosting,
                "deadlines": each.deadlines,
                "hold": each.hold,
                "charge": [each.charge.tolerance_percent, each.charge.on_mismatch],
            }
            for each in models.values()
        },
    }
    if bonuses:
        read["bonus"] = bonuses
    return "cat_" + hashlib.sha256(canonical_json(read)).hexdigest()[:16]
