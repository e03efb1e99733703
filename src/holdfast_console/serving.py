"""Serving a view: sign-in, the frame around a page, and errors as pages."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

import structlog
from quart import Response
from werkzeug.exceptions import HTTPException

from holdfast.http.kit.actions import record_refused_action
from holdfast.http.kit.calls import Auth
from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.kit.errors import INTERNAL_ERROR, refusal_of_fault, refusal_of_http, row_of
from holdfast.http.kit.operators import MAY_ONLY_READ, csrf_token, read_cookie, refuse_cross_origin
from holdfast.http.kit.requests import HoldfastRequest, current_request_id
from holdfast.ledger.clock import format_time, utc_now
from holdfast.ledger.refusals import Refusal
from holdfast_console.forms import (
    FORM_BYTES_MAX,
    MESSAGE_COOKIE,
    SIGN_IN,
    message_cookie,
    parse_form,
    read_message,
)
from holdfast_console.frame import Frame, section_of
from holdfast_console.rendering import HEADERS, Html, Redirect, html_response
from holdfast_console.views import PageCall, View, ViewResult, Visit

log = structlog.get_logger("holdfast.http")

LIVE_S: Final = 2
"""How often the script asks for a page again."""

HEADINGS: Final = {
    401: "Sign in first",
    403: "Not allowed",
    404: "Not found",
    409: "Not possible now",
    429: "Too many requests",
    502: "A provider does not respond",
    503: "Not available now",
}


async def serve_view(view: View, deps: Dependencies, request: HoldfastRequest, path: dict[str, str]) -> Response:
    """Serve one request. Faults are shown as pages too, to an operator with the navigation."""
    try:
        call = PageCall(deps, view, request, path)
        visit = await _admit(call)
        if visit is MAY_ONLY_READ:
            await record_refused_action(call)
        if isinstance(visit, Refusal):
            return _refused(view, request, visit)
        try:
            result = await view.handler(visit)
        except Exception as fault:
            result = _refusal_of(fault, request)
        return await _respond(visit, result)
    except Exception as fault:
        return _alone(_refusal_of(fault, request))


async def _respond(visit: Visit, result: ViewResult) -> Response:
    match result:
        case Response():
            return result
        case Redirect(path, message, headers):
            response = _redirect(path)
            for name, value in headers:
                response.headers.add(name, value)
            if message is not None:
                response.headers.add("Set-Cookie", message_cookie(message))
            return response
        case Refusal():
            return await _page(visit, _error(result))
        case Html():
            return await _page(visit, result)


async def _page(visit: Visit, page: Html) -> Response:
    request, deps = visit.call.request, visit.call.deps
    now = deps.now()
    if visit.call.operator is None:
        return html_response(page, now=now)
    cookie = read_cookie(request.cookies, deps.settings)
    message = read_message(request.cookies.get(MESSAGE_COOKIE))
    response = html_response(
        page,
        now=now,
        now_text=format_time(now),
        here=request.full_path.rstrip("?"),
        section=section_of(request.path),
        navigation=await deps.state(Frame).navigation(deps),
        operator=visit.call.operator,
        csrf_token="" if cookie is None else csrf_token(cookie, deps.settings),
        is_production=deps.settings.is_production,
        live_s=LIVE_S if page.is_live else 0,
        message=message,
        first_page=visit.first_page(),
        next_page=visit.next_page,
    )
    if message is not None and "X-Refresh" not in request.headers:
        response.headers.add("Set-Cookie", message_cookie(None))
    return response


async def _admit(call: PageCall) -> Visit | Refusal:
    """Read the form of a POST, and identify the operator unless the view is for everybody."""
    request, settings = call.request, call.deps.settings
    if request.method == "POST":
        parsed = parse_form(await request.read_body(FORM_BYTES_MAX), request.headers.get("Content-Type"))
        if isinstance(parsed, Refusal):
            return parsed
        call.form = parsed
    if call.route.auth is Auth.NONE:
        # Also who signs in must mean to: a page elsewhere could sign a browser in as another operator.
        refusal = refuse_cross_origin(request.method, request.headers, settings, has_cookie=True)
        return refusal or Visit(call)
    return await call.identify_operator() or Visit(call)


def _refused(view: View, request: HoldfastRequest, refusal: Refusal) -> Response:
    """Send who has no session to sign in, and back to the page afterwards."""
    if row_of(refusal.code).status != 401 or view.method != "GET" or "X-Refresh" in request.headers:
        return _alone(refusal)
    wanted = request.full_path.rstrip("?")
    return _redirect(f"{SIGN_IN}?{urlencode({'return_to': wanted})}")


def _refusal_of(fault: Exception, request: HoldfastRequest) -> Refusal:
    if isinstance(fault, HTTPException):
        return refusal_of_http(fault, request.method, request.path)[0]
    expected = refusal_of_fault(fault)
    if expected is None:
        log.error("unexpected fault", exc_info=fault)
    return expected or INTERNAL_ERROR


def _alone(refusal: Refusal) -> Response:
    return html_response(_error(refusal), now=utc_now())


def _error(refusal: Refusal) -> Html:
    row = row_of(refusal.code)
    values = {
        "heading": HEADINGS.get(row.status, "This did not work"),
        "text": refusal.message,
        "request_id": current_request_id(),
    }
    return Html("error.html", values, status=row.status)


def _redirect(path: str) -> Response:
    return Response(b"", status=303, headers={**HEADERS, "Location": path})
