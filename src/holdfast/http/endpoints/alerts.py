"""What is announced to an account's owner, by events and by mail, and the link that ends the mail."""

from __future__ import annotations

from typing import Final

from quart import Response

from holdfast.actors.account.messages import SetAlerts, StopMail
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.other_cells import require_place
from holdfast.http.kit.routes import Media, Outcome, Parameter, RouteTable
from holdfast.http.kit.stored_content import INVALID_LINK
from holdfast.http.kit.values import read_amount
from holdfast.http.schemas.events import AlertsBody, AlertsRequest, alerts_body
from holdfast.ledger.links import UNSUBSCRIBE_PATH
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import is_id, place_of
from holdfast.persistence.queries.webhooks import alerts_of_account

route = RouteTable("Alerts")

_LINK: Final = (
    Parameter("account_id", "query", "The account, as the link says.", required=True),
    Parameter("sig", "query", "The link's signature.", required=True),
)
_BODY_BYTES_MAX: Final = 4096
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
}


@route(
    "GET",
    "/v2/control/alerts",
    summary="Retrieve what is announced, by events and by mail",
    auth=Auth.SESSION,
    reply=AlertsBody,
)
async def read_alerts(call: Call) -> Outcome:
    """An account that has set nothing gets mail, and no alert about its balance."""
    account_id = call.session.account_id
    return alerts_body(await call.read(lambda rows: alerts_of_account(rows, account_id)))


@route(
    "PUT",
    "/v2/control/alerts",
    summary="Set what is announced, by events and by mail",
    auth=Auth.SESSION,
    body=AlertsRequest,
    reply=AlertsBody,
    errors=("invalid_amount",),
)
async def set_alerts(call: Call) -> Outcome:
    """Each crossing is announced once, and again only after it has been crossed back.

    If less than `balance_below` is available already, that is announced at once, unless it was for another amount.
    """
    wanted = call.body(AlertsRequest)
    given = wanted.balance_below
    below_micro = None if given is None else read_amount(given, param="balance_below")
    if isinstance(below_micro, Refusal):
        return below_micro
    command = SetAlerts(balance_below_micro=below_micro, limit_share=wanted.limit_share, email=wanted.email)
    reply = await call.ask(call.deps.accounts.ref(call.session.account_id), command)
    return reply if isinstance(reply, Refusal) else alerts_body(reply)


@route(
    "GET",
    UNSUBSCRIBE_PATH,
    summary="Show the page that ends an account's mail",
    parameters=_LINK,
    media=(Media(status=200, content_types=("text/html",), description="A page with a button."),),
    errors=("invalid_link",),
)
async def show_unsubscribe(call: Call) -> Outcome:
    """The link of each mail. Opening it changes nothing, since programs open links too."""
    found = _account_of_link(call)
    if isinstance(found, Refusal):
        return found
    return _page('<form method="post"><button>Send me no more of these mails</button></form>')


@route(
    "POST",
    UNSUBSCRIBE_PATH,
    summary="End an account's mail about its credit",
    parameters=_LINK,
    raw_body_bytes_max=_BODY_BYTES_MAX,
    media=(Media(status=200, content_types=("text/html",), description="No more mail is sent."),),
    errors=("invalid_link",),
)
async def unsubscribe(call: Call) -> Outcome:
    """By the page's button, or by a mail program in one step, as RFC 8058 says. Sign-in codes are still sent."""
    account_id = _account_of_link(call)
    if isinstance(account_id, Refusal):
        return account_id
    reply = await call.ask(call.deps.accounts.ref(account_id), StopMail("unsubscribed"))
    return reply if isinstance(reply, Refusal) else _page("<p>You get no more of these mails.</p>")


def _account_of_link(call: Call) -> str | Refusal:
    """Return the account of the link. Refuses with ``invalid_link``."""
    query = call.query()
    account_ids, sigs = query.get("account_id", []), query.get("sig", [])
    if len(account_ids) != 1 or len(sigs) != 1 or not is_id(account_ids[0]):
        return INVALID_LINK
    if not call.deps.urls.is_unsubscribe_link(account_ids[0], sigs[0]):
        return INVALID_LINK
    require_place(call.deps, call.request, place_of(account_ids[0]))
    return account_ids[0]


def _page(content: str) -> Response:
    title = "Mail about your credit"
    text = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><h1>{title}</h1>{content}</html>'
    )
    return Response(text, content_type="text/html; charset=utf-8", headers=_HEADERS)
