"""Actions: every endpoint by which an operator changes something is also the target of a form.

``POST /ops/api/reviews/rev_1/approve`` is sent by a form to ``/ops/reviews/rev_1/approve``. The form's fields are
the endpoint's body; afterwards the browser is sent back to the page it came from, with the result in words.
"""

from __future__ import annotations

import msgspec

from holdfast.http.endpoints import all_routes
from holdfast.http.endpoints.operators.bulk import BulkActionBody
from holdfast.http.endpoints.operators.providers import ProviderCheckBody
from holdfast.http.kit.calls import Auth
from holdfast.http.kit.routes import Route
from holdfast.ledger.refusals import Refusal
from holdfast_console.formats import duration_text, words_of
from holdfast_console.forms import Message, local_path
from holdfast_console.operators.action_forms import API, form_path
from holdfast_console.rendering import Redirect
from holdfast_console.views import View, ViewHandler, ViewResult, ViewTable, Visit

view = ViewTable(Auth.OPERATOR_READ)


def _action_of(route: Route) -> ViewHandler:
    """Return the view that does what an endpoint does."""

    async def act(visit: Visit) -> ViewResult:
        fields = visit.form
        return_to = local_path(fields.pop("return_to", ""), "/ops")
        result = await visit.submit(route, msgspec.Struct, fields)
        if isinstance(result, Refusal):
            return Redirect(return_to, Message(f"Not done: {result.message}", is_failure=True))
        assert route.action is not None
        if isinstance(result, BulkActionBody):
            return_to = f"/ops/bulk-actions/{result.action_id}"
        return Redirect(return_to, _message_of(route.action, result))

    return act


def _message_of(action: str, result: msgspec.Struct) -> Message:
    """Return what became of an action: of a provider's check, its steps; of others, that it was done."""
    if not isinstance(result, ProviderCheckBody):
        return Message(f"Done: {words_of(action)}.")
    steps = [
        f"{step.name}: {step.result} after {duration_text(step.duration_s)}, {step.detail}" for step in result.steps
    ]
    verdict = "works" if result.ok else "does not work"
    return Message("\n".join([f"{result.provider} {verdict}, by a job of {result.model}:", *steps]), not result.ok)


for _route in all_routes():
    if _route.action is not None and _route.path.startswith(API):
        view.views.append(
            View(
                method="POST",
                path=form_path(_route),
                handler=_action_of(_route),
                auth=_route.auth,
                action=_route.action,
                is_urgent=_route.is_urgent,
            )
        )
