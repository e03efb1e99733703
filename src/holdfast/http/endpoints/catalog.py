"""The catalog endpoints: model listings and quotes. Neither writes anything."""

from __future__ import annotations

from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.routes import Outcome, RouteTable
from holdfast.http.schemas.common import QuoteRequest
from holdfast.http.schemas.models import (
    CompatibleModelList,
    ModelBody,
    ModelDetails,
    ModelList,
    QuoteBody,
    model_body,
    model_details,
)
from holdfast.http.services.quotes import made_quote
from holdfast.ledger.catalog.pricing import model_not_found

route = RouteTable("Models")


@route(
    "GET",
    "/v1/models",
    summary="List the models in the format of OpenAI-compatible clients",
    reply=CompatibleModelList,
)
async def list_compatible_models(call: Call) -> Outcome:
    """A credential is not needed; one that is sent is ignored."""
    models, overrides = call.deps.registry.catalog.models.values(), call.deps.operating.overrides
    return CompatibleModelList(object="list", data=[model_body(ModelBody, overrides, model) for model in models])


@route(
    "GET",
    "/v1/models/{model_id}",
    summary="Retrieve a model; with its input schema, an example and its price; slashes in its id may be encoded",
    reply=ModelDetails,
    errors=("model_not_found",),
)
async def read_model(call: Call) -> Outcome:
    """A disabled model is shown too, with its status."""
    model_id, catalog = call.path["model_id"], call.deps.registry.catalog
    model = catalog.models.get(model_id)
    if model is None:
        return model_not_found(model_id, catalog.models)
    return model_details(catalog, call.deps.operating.overrides, model)


@route(
    "GET",
    "/v2/models",
    summary="List the models; with their input schemas, an example of each and its price",
    reply=ModelList,
)
async def list_models(call: Call) -> Outcome:
    """Disabled models are listed with their status."""
    catalog, overrides = call.deps.registry.catalog, call.deps.operating.overrides
    return ModelList(data=[model_details(catalog, overrides, model) for model in catalog.models.values()])


@route(
    "POST",
    "/v2/quote",
    is_kept=False,
    summary="Create a quote: price an input before running it",
    auth=Auth.OPTIONAL,
    body=QuoteRequest,
    takes_input=True,
    reply=QuoteBody,
    errors=("model_not_found", "model_not_available", "invalid_input", "quote_unavailable"),
)
async def quote(call: Call) -> Outcome:
    """A task that names the quote is charged by its price until it expires.

    Nothing is held. With a credential only its account may use the quote.
    """
    return await made_quote(call, call.body(QuoteRequest))
