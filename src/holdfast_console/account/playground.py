"""The playground: a form for each model, its price as one types, and a task that spends real credit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.http.endpoints.catalog import list_models, quote, read_model
from holdfast.http.endpoints.files import FileBody, upload_own_file
from holdfast.http.endpoints.tasks.owners_tasks import create_own_task
from holdfast.http.kit.calls import Auth
from holdfast.http.kit.values import shown
from holdfast.http.schemas.models import ModelDetails, ModelList, QuoteBody
from holdfast.http.schemas.tasks import TaskBody
from holdfast.ledger.refusals import Refusal
from holdfast_console.account.inputs import PREFIX, fields_of, input_of, link_field
from holdfast_console.account.samples import create_samples
from holdfast_console.forms import Message
from holdfast_console.rendering import Html, Redirect
from holdfast_console.views import ViewResult, ViewTable, Visit

PLAYGROUND: Final = "/account/playground"
FORM_BYTES_MAX: Final = 256 * 1024

view = ViewTable(Auth.SESSION)


@view(PLAYGROUND)
async def playground(visit: Visit) -> ViewResult:
    """The models, or with ``?model=`` the form of one; ``from`` is a link that its file begins with."""
    chosen = visit.parameter("model")
    if not chosen:
        found = await visit.read(list_models, ModelList)
        if isinstance(found, Refusal):
            return found
        models = [each for each in found.data if not each.priced_only and each.status != "disabled"]
        return Html("playground.html", {"models": models})
    model = await _model(visit, chosen)
    if isinstance(model, Refusal):
        return model
    link, name = visit.parameter("from"), link_field(model.input_schema)
    fields = [
        each._replace(default=link) if link and each.name == f"{PREFIX}{name}" else each
        for each in fields_of(model.input_schema, model.example_input)
    ]
    sent = visit.call.sent_form
    filled_in = {each.name: each.default for each in fields if each.default} if sent is None else sent.fields
    priced = await _priced(visit, model, input_of(model.input_schema, filled_in))
    return Html("model.html", {"model": model, "fields": fields, "is_new": sent is None, **priced})


@view(f"{PLAYGROUND}/price", method="POST", form_bytes_max=FORM_BYTES_MAX)
async def price(visit: Visit) -> ViewResult:
    """The price of a form, and its call in code: a part of the page, for the script."""
    model = await _model(visit, visit.form.get("model", ""))
    if isinstance(model, Refusal):
        return model
    return Html(
        "priced.html", {"is_new": False} | await _priced(visit, model, input_of(model.input_schema, visit.form))
    )


@view(f"{PLAYGROUND}/run", method="POST", form_bytes_max=FORM_BYTES_MAX)
async def run(visit: Visit) -> ViewResult:
    """Create the task of a form. It costs no more than the page has shown."""
    model = await _model(visit, visit.form.get("model", ""))
    if isinstance(model, Refusal):
        return model
    fields = {
        "model": model.id,
        "input": input_of(model.input_schema, visit.form),
        "max_credits": visit.form.get("max_credits"),
    }
    created = await visit.submit(create_own_task, TaskBody, fields, path={})
    if isinstance(created, Refusal):
        return created
    held = f"Up to {fields['max_credits']} credits are held for it." if fields["max_credits"] else ""
    return Redirect(f"/account/tasks/{created.request_id}", Message(f"The task runs. {held}".strip()))


@view(f"{PLAYGROUND}/files", method="POST", is_upload=True)
async def upload(visit: Visit) -> ViewResult:
    """Store a file that was dropped on a field or chosen; the script writes its id into the field."""
    stored = await visit.submit(upload_own_file, FileBody, path={})
    return stored if isinstance(stored, Refusal) else Html("uploaded.html", {"file": stored})


async def _priced(visit: Visit, model: ModelDetails, given: Mapping[str, object]) -> dict[str, Any]:
    body = {"model": model.id, "input": given}
    quoted = await visit.submit(quote, QuoteBody, body, path={})
    return {"quoted": quoted, "samples": create_samples(visit.call.deps.urls.base, body)}


async def _model(visit: Visit, model_id: str) -> ModelDetails | Refusal:
    """Return a model that runs. Refuses with ``model_not_found``."""
    found = await visit.read(read_model, ModelDetails, path={"model_id": model_id})
    if isinstance(found, Refusal) or (not found.priced_only and found.status != "disabled"):
        return found
    message = f"The model {shown(model_id)} does not run here."
    return Refusal(code="model_not_found", message=message, param="model")
