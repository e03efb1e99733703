"""How an operator comes in: sign-in and sign-out, the reference, and the files of the pages."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from holdfast.actors.runtime.faults import Overloaded
from holdfast.http.endpoints.api_docs import reference_page
from holdfast.http.endpoints.operators.session import (
    request_operator_code,
    sign_in_with_code,
    sign_in_with_token,
    sign_operator_out,
)
from holdfast.http.kit.calls import Auth
from holdfast.http.kit.operator_access import session_of
from holdfast.http.kit.operators import OPERATOR_COOKIE
from holdfast.http.kit.reference import OPERATORS
from holdfast.http.kit.routes import Handler
from holdfast.http.schemas.common import CodeSent
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast_console.forms import local_path
from holdfast_console.rendering import Html, Redirect, static_response
from holdfast_console.views import ViewResult, ViewTable, Visit

SIGN_IN: Final = "/ops/sign-in"

view = ViewTable(Auth.OPERATOR_READ)


@view("/ops/docs")
async def reference(visit: Visit) -> ViewResult:
    """The reference of the operators' API."""
    return reference_page(visit.call.deps, OPERATORS)


_WAYS: Final[tuple[tuple[str, Handler], ...]] = (
    ("token", sign_in_with_token),
    ("otp_id", sign_in_with_code),
    ("email", request_operator_code),
)
"""What a form does, by a field that it has; the first counts."""


@view(SIGN_IN, auth=Auth.NONE)
async def sign_in_page(visit: Visit) -> ViewResult:
    """The forms; an operator who is known to be signed in already goes on."""
    return_to = local_path(visit.parameter("return_to"), "/ops")
    call = visit.call
    cookie = OPERATOR_COOKIE.read(call.request.cookies, call.deps.settings)
    # A session that cannot be looked up for now does not keep who has the token from another one.
    with suppress(DatabaseAway, Overloaded):
        if cookie is not None and not isinstance(await session_of(call.deps, cookie, call.origin()), Refusal):
            return Redirect(return_to)
    return _page(return_to)


@view(SIGN_IN, method="POST", auth=Auth.NONE)
async def sign_in(visit: Visit) -> ViewResult:
    """Begin a session, or send the code for one."""
    fields = {**visit.form}
    return_to = local_path(fields.pop("return_to", ""), "/ops")
    handler = next((way for field, way in _WAYS if field in fields), None)
    if handler is None:
        return _page(return_to, failure="Fill in one of the forms.")
    reply, headers = await visit.submit_with_headers(handler, fields)
    match reply:
        case Refusal():
            return _page(return_to, failure=reply.message, code_for=fields.get("otp_id"), email=fields.get("email"))
        case CodeSent():
            return _page(return_to, code_for=reply.otp_id, email=fields["email"], debug_otp=reply.debug_otp)
    return Redirect(return_to, headers=headers)


@view("/ops/sign-out", method="POST")
async def sign_out(visit: Visit) -> ViewResult:
    """End the session."""
    reply, headers = await visit.submit_with_headers(sign_operator_out)
    return reply if isinstance(reply, Refusal) else Redirect(SIGN_IN, headers=headers)


def _page(
    return_to: str,
    *,
    failure: str | None = None,
    code_for: str | None = None,
    email: str | None = None,
    debug_otp: str | None = None,
) -> Html:
    """Return the forms. ``code_for`` is the code that was sent, shown as ``debug_otp`` in development."""
    values = {
        "return_to": return_to,
        "failure": failure,
        "code_for": code_for,
        "email": email,
        "debug_otp": debug_otp,
    }
    return Html("sign_in.html", values, status=400 if failure else 200)


@view("/ops/static/{name}", auth=Auth.NONE)
async def static_file(visit: Visit) -> ViewResult:
    """A file under its name with a hash: what it names never changes."""
    return static_response(visit.path["name"])
