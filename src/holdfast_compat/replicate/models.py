"""The catalog's models as Replicate's clients read them. Only models that run are listed, under owner/name."""

from __future__ import annotations

import functools
import hashlib
from datetime import UTC, datetime

import msgspec

from holdfast.http.kit.calls import Call
from holdfast.http.kit.routes import Outcome, RouteTable
from holdfast.ledger.catalog.models import Catalog, Model
from holdfast.ledger.catalog.pricing import model_not_found
from holdfast.ledger.links import PublicUrls
from holdfast.ledger.public_types import FreeForm
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import format_time
from holdfast_compat.replicate.schemas import (
    BASE,
    ModelVersion,
    ModelVersionList,
    ReplicateModel,
    ReplicateModelList,
)

COG_VERSION = "0.16.0"
"""The clients read how to take a schema by it; this one marks outputs that arrive one by one."""

route = RouteTable("Replicate")


@route("GET", f"{BASE}/models", summary="List the models that run", reply=ReplicateModelList)
async def list_replicate_models(call: Call) -> Outcome:
    """Models that are disabled or priced only, and those whose id is not owner/name, are not listed."""
    models = call.deps.registry.catalog.models.values()
    return ReplicateModelList([_model_body(call.deps.urls, each) for each in models if _is_listed(each)])


@route(
    "GET",
    f"{BASE}/models/{{owner}}/{{name}}",
    summary="Retrieve a model with its schema",
    reply=ReplicateModel,
    errors=("model_not_found",),
)
async def read_replicate_model(call: Call) -> Outcome:
    """Needs no credential; one that is sent is ignored."""
    model = _model_of_path(call)
    return _not_found(call, path_model_id(call)) if model is None else _model_body(call.deps.urls, model)


@route(
    "GET",
    f"{BASE}/models/{{owner}}/{{name}}/versions",
    summary="List a model's versions",
    reply=ModelVersionList,
    errors=("model_not_found",),
)
async def list_versions(call: Call) -> Outcome:
    """A model has one version at a time."""
    model = _model_of_path(call)
    return _not_found(call, path_model_id(call)) if model is None else ModelVersionList([_version(model)])


@route(
    "GET",
    f"{BASE}/models/{{owner}}/{{name}}/versions/{{version}}",
    summary="Retrieve a version of a model",
    reply=ModelVersion,
    errors=("model_not_found",),
)
async def read_version(call: Call) -> Outcome:
    """A version that the model no longer has is not found."""
    model, version = _model_of_path(call), call.path["version"]
    if model is None or version_id(model) != version:
        return _not_found(call, f"{path_model_id(call)}:{version}")
    return _version(model)


def _not_found(call: Call, model_id: str) -> Refusal:
    return model_not_found(model_id, call.deps.registry.catalog.models)


def path_model_id(call: Call) -> str:
    """Return the id of the model that the path names."""
    return f"{call.path['owner']}/{call.path['name']}"


def model_of_version(catalog: Catalog, version: str) -> str | None:
    """Return the id of the model of a version: its id alone, owner/name, or both as owner/name:id."""
    name, _, version = version.rpartition(":") if ":" in version else ("", "", version)
    if not name and "/" in version:
        return version
    models = [catalog.models[name]] if name in catalog.models else [] if name else catalog.models.values()
    return next((each.id for each in models if version_id(each) == version), None)


@functools.lru_cache(maxsize=1024)
def version_id(model: Model) -> str:
    """Return the id of a model's version: 64 hex digits of what the model is and takes."""
    content = msgspec.json.encode((model.id, model.input_schema), order="sorted")
    return hashlib.sha256(content).hexdigest()


def _is_listed(model: Model) -> bool:
    return model.id.count("/") == 1 and not model.priced_only and model.status != "disabled"


def _model_of_path(call: Call) -> Model | None:
    model = call.deps.registry.catalog.models.get(path_model_id(call))
    return model if model is not None and _is_listed(model) else None


def _model_body(urls: PublicUrls, model: Model) -> ReplicateModel:
    owner, _, name = model.id.partition("/")
    return ReplicateModel(
        url=f"{urls.base}{BASE}/models/{model.id}",
        owner=owner,
        name=name,
        description=model.description,
        latest_version=_version(model),
    )


@functools.lru_cache(maxsize=1024)
def _version(model: Model) -> ModelVersion:
    created_at = format_time(datetime.fromtimestamp(model.created, UTC))
    return ModelVersion(version_id(model), created_at, COG_VERSION, _openapi_schema(model))


def _openapi_schema(model: Model) -> FreeForm:
    """Return the document that a Cog server has: the schemas of the input and of the output."""
    taken = msgspec.json.encode({**model.input_schema, "title": "Input"})
    # References are to places in the schema, which is now a part of another document.
    taken = taken.replace(b'"$ref":"#/', b'"$ref":"#/components/schemas/Input/')
    link = {"type": "string", "format": "uri"}
    output = {"type": "array", "items": link} if model.modality == "image" else link
    return {
        "openapi": "3.1.0",
        "info": {"title": model.id, "version": "1.0.0"},
        "paths": {},
        "components": {"schemas": {"Input": msgspec.json.decode(taken), "Output": {**output, "title": "Output"}}},
    }
