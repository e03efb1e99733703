"""Serving a view: sign-in, the frame around a page, and errors as pages."""

from __future__ import annotations

from dataclasses import replace
from typing import Final
from urllib.parse import urlencode

import structlog
from quart import Response
from werkzeug.exceptions import HTTPException, NotFound

from holdfast.actors.runtime.faults import AccountAway
from holdfast.http.kit.actions import record_refused_action
from holdfast.http.kit.calls import Auth
from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.kit.errors import INTERNAL_ERROR, error_response, refusal_of_fault, refusal_of_http, row_of
from holdfast.http.kit.operators import MAY_ONLY_READ, refuse_cross_origin
from holdfast.http.kit.other_cells import Elsewhere
from holdfast.http.kit.requests import HoldfastRequest, current_request_id
from holdfast.http.kit.routes import EVENT_STREAM
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import format_time, utc_now
from holdfast_console.forms import MESSAGE_COOKIE, SentForm, message_cookie, read_message
from holdfast_console.rendering import HEADERS, Again, Html, Redirect, html_response
from holdfast_console.sites import Site, again_of
from holdfast_console.views import PageCall, View, ViewHandler, ViewResult, Visit

log = structlog.get_logger(__name__)

HEADINGS: Final = {
    401: "Sign in first",
    403: "Not allowed",
    404: "Not found",
    409: "Not possible now",
    429: "Too many requests",
    502: "A provider does not respond",
    503: "Not available now",
}


async def serve_view(
    site: Site, view: View, deps: Dependencies, request: HoldfastRequest, path: dict[str, str]
) -> Response:
    """Serve one request. Faults are shown as pages too, to who is signed in with the navigation."""
    if view.is_for_browsers and "text/html" not in request.headers.get("Accept", ""):
        raise NotFound
    call = PageCall(deps, view, request, path)
    visit = Visit(call)
    try:
        refusal = await _admit(site, call)
        if refusal is MAY_ONLY_READ:
            await record_refused_action(call)
        if refusal is not None:
            return await _refuse(site, visit, refusal)
        return await _respond(site, visit, await _result_of(view.handler, visit))
    except Exception as fault:
        return refused_page(site, _refusal_of(fault, request))
    finally:
        call.release_body()


async def redirect_to(path: str, _deps: Dependencies, _request: HoldfastRequest, _path: dict[str, str]) -> Response:
    """Serve a redirect."""
    return _redirect(path)


async def _result_of(handler: ViewHandler, visit: Visit) -> ViewResult:
    try:
        return await handler(visit)
    except Exception as fault:
        return _refusal_of(fault, visit.call.request)


async def _respond(site: Site, visit: Visit, result: ViewResult) -> Response:
    match result:
        case Response():
            return result
        case Redirect(path, message, headers):
            response = _redirect(path)
            if message is not None:
                headers = (*headers, ("Set-Cookie", message_cookie(message, site.root)))
        case Again(address, sent_form, status, headers):
            response = await _page(site, visit, await _page_again(site, visit, address, sent_form, status))
        case Refusal():
            return await _respond(site, visit, again_of(site, visit, result) or _error(result))
        case Html():
            return await _page(site, visit, result)
    for name, value in headers:
        response.headers.add(name, value)
    return response


async def _page_again(site: Site, visit: Visit, address: str, sent_form: SentForm, status: int) -> Html:
    """Return a page of the site with a form on it that was sent and not done."""
    page = site.page_at(address)
    assert page is not None, "only pages that exist are shown again"
    visit.call.turn_to(address, page.path, sent_form)
    shown = await _result_of(page.handler, visit)
    if isinstance(shown, Html):
        return replace(shown, status=status)
    return _error(shown if isinstance(shown, Refusal) else Refusal(code="route_not_found", message=sent_form.text))


async def _page(site: Site, visit: Visit, page: Html) -> Response:
    call = visit.call
    now = call.deps.now()
    message = read_message(call.request.cookies.get(MESSAGE_COOKIE))
    frame = await site.frame(visit) if call.is_identified else {}
    values = {"here": call.address, "message": message, "sent_form": call.sent_form, **frame}
    live = {"live-s": page.live_s} if page.live_s else values.get("live", {}) if page.is_live else {}
    response = html_response(
        site.templates,
        page,
        now=now,
        now_text=format_time(now),
        first_page=visit.first_page(),
        next_page=visit.next_page,
        **{**values, "live": live},
    )
    if message is not None and "X-Refresh" not in call.request.headers:
        response.headers.add("Set-Cookie", message_cookie(None, site.root))
    return response


async def _admit(site: Site, call: PageCall) -> Refusal | None:
    """Read the form of a POST, and identify who makes the request unless the view is for everybody."""
    request, settings = call.request, call.deps.settings
    assert isinstance(call.route, View)
    if request.method == "POST" and not call.route.is_upload:
        refusal = await call.read_form()
        if refusal is not None:
            return refusal
    if call.route.auth is Auth.NONE:
        # Also who signs in must mean to: a page elsewhere could sign a browser in as another.
        return refuse_cross_origin(request.method, request.headers, settings, has_cookie=True)
    return await site.identify(call)


async def _refuse(site: Site, visit: Visit, refusal: Refusal) -> Response:
    """Send who has no session to sign in, and back to the page afterwards; keep a form, if the site does."""
    request = visit.call.request
    needs_session = row_of(refusal.code).status == 401
    if request.method == "POST":
        if needs_session and (kept := site.sign_in_again(visit)) is not None:
            return await _respond(site, visit, kept)
        again = again_of(site, visit, refusal) if visit.call.is_identified else None
        return refused_page(site, refusal) if again is None else await _respond(site, visit, again)
    if not needs_session or "X-Refresh" in request.headers or request.headers.get("Accept") == EVENT_STREAM:
        return refused_page(site, refusal)
    return _redirect(f"{site.sign_in_path}?{urlencode({'return_to': visit.call.address})}")


def _refusal_of(fault: Exception, request: HoldfastRequest) -> Refusal:
    """Return the refusal of a fault. Raises it if the account may be in another cell."""
    if isinstance(fault, Elsewhere | AccountAway):
        raise fault
    if isinstance(fault, HTTPException):
        return refusal_of_http(fault, request.method, request.path)[0]
    expected = refusal_of_fault(fault)
    if expected is None:
        log.error("unexpected fault", exc_info=fault)
    return expected or INTERNAL_ERROR


def refused_page(site: Site, refusal: Refusal) -> Response:
    """Return the page of a refusal, as who is not signed in sees it."""
    return html_response(site.templates, _error(refusal), now=utc_now())


def _error(refusal: Refusal) -> Html:
    status, _, headers = error_response(refusal, "")
    values = {
        "heading": HEADINGS.get(status, "This did not work"),
        "text": refusal.message,
        "request_id": current_request_id(),
    }
    retried = tuple((name, headers[name]) for name in ("Retry-After",) if name in headers)
    return Html("error.html", values, status=status, headers=retried)


def _redirect(path: str) -> Response:
    return Response(b"", status=303, headers={**HEADERS, "Location": path})
