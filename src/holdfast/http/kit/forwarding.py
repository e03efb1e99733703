"""Requests that belong to another cell: which they are, and how that cell is asked for the response.

A credential or an id in the path names a place, so most requests are sent on before their body is read. What names
its account in its body raises :class:`OfAnotherCell` once that is known; its body has been kept for that. A request
is sent on once: it carries the sender's signature, and a cell that finds it wrong again answers 503.

Only the cells in the list are called, at the path that the client asked for. The client's address is reported in
the header that the settings name, so the cells trust each other's machines as they trust a proxy.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

import httpx2
import msgspec
import structlog
import trio
from quart import Response
from werkzeug.datastructures import Headers

from holdfast.http.kit.calls import BY_BEARER
from holdfast.http.kit.client_address import client_address
from holdfast.http.kit.credentials import place_of_credential
from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.kit.extensions import ServedPage
from holdfast.http.kit.requests import HoldfastRequest
from holdfast.http.kit.responses import streamed
from holdfast.http.kit.routes import Route
from holdfast.ledger.cells import Cell
from holdfast.ledger.ids import place_carried_by
from holdfast.ledger.refusals import Refusal
from holdfast.providers.outbound.connection_pool import tls_context
from holdfast.providers.signatures import sign, verify_signature

MARK: Final = "Holdfast-Forwarded"
CONNECT_S: Final = 2.0
ANSWER_S: Final = 600.0
"""As long as a client of OpenAI's waits for a result. One that gives up earlier ends its request here and there."""
CLOSE_S: Final = 1.0

_CONNECTION: Final = frozenset(
    {b"connection", b"expect", b"host", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
)
_REPLACED: Final = frozenset({b"forwarded", b"x-forwarded-for", MARK.lower().encode()})
"""The headers that say who calls; the client's own say nothing."""
_OWN: Final = frozenset({b"x-request-id", b"traceresponse"})
_SESSION: Final = re.compile(r"\bhst_[A-Za-z0-9_-]{43}", re.ASCII)
_IN_PATH: Final = ("request_id", "order_id", "file_id", "asset_id")

log = structlog.get_logger(__name__)


class OfAnotherCell(Exception):
    """The request belongs to another cell, as its body says."""

    def __init__(self, cell: Cell) -> None:
        super().__init__(f"cell {cell.number}")
        self.cell = cell


def require_place(deps: Dependencies, place: int) -> None:
    """Raise :class:`OfAnotherCell` if a place is not one of this cell."""
    if deps.cells is not None and (cell := deps.cells.of_place(place)) is not deps.cells.own:
        raise OfAnotherCell(cell)


def require_email(deps: Dependencies, email: str) -> None:
    """Raise :class:`OfAnotherCell` if another cell knows where an e-mail address has its account."""
    if deps.cells is not None and (cell := deps.cells.of_email(email)) is not deps.cells.own:
        raise OfAnotherCell(cell)


class Clients:
    """The HTTP client for each cell, made at first use: one that stalls takes no connection of the others."""

    def __init__(self) -> None:
        self._clients: dict[str, httpx2.AsyncClient] = {}

    def client_for(self, cell: Cell, connections_max: int) -> httpx2.AsyncClient:
        """Return the client for a cell."""
        found = self._clients.get(cell.url)
        if found is None:
            found = self._clients[cell.url] = httpx2.AsyncClient(
                trust_env=False,
                follow_redirects=False,
                verify=tls_context(),
                timeout=httpx2.Timeout(ANSWER_S, connect=CONNECT_S, pool=CONNECT_S),
                limits=httpx2.Limits(max_connections=connections_max, keepalive_expiry=5.0),
            )
        return found

    async def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            await client.aclose()


def place_of_request(request: HoldfastRequest, path: Mapping[str, str], route: Route | ServedPage) -> int | None:
    """Return the place in a request's credential, in a page's cookie, or else in an id of the path."""
    if isinstance(route, ServedPage):
        found = _SESSION.search(";".join(request.sent[b"cookie"])) if route.needs_session else None
        return None if found is None else place_of_credential([f"Bearer {found[0]}"])
    if route.auth in BY_BEARER:
        place = place_of_credential(request.sent[b"authorization"])
        if place is not None:
            return place
    named = next((path[name] for name in _IN_PATH if name in path), None)
    return None if named is None else place_carried_by(named)


def is_forwarded(deps: Dependencies, request: HoldfastRequest) -> bool:
    """Whether another cell has sent a request on to this one."""
    sent = request.sent[MARK.lower().encode()]
    if not sent or deps.cells is None:
        return False
    signed = _signed(deps.cells.own, request)
    return verify_signature(",".join(sent), signed, [_key(deps)], now=deps.wall()) == "valid"


async def forward(
    deps: Dependencies, request: HoldfastRequest, cell: Cell, body: bytes | None = None
) -> Response | Refusal:
    """Return another cell's response to a request, whose ``body`` is None if nothing has read it.

    Refuses with ``temporarily_unavailable``, and says whether the cell may have got it.
    """
    if is_forwarded(deps, request):
        log.error("the cells disagree where a request belongs", path=request.path, cell=cell.number)
        message = "The parts of the service do not agree who serves this; try again later."
        return Refusal(code="temporarily_unavailable", message=message)
    client = deps.state(Clients).client_for(cell, deps.settings.waiting_max)
    has_body = bool(request.content_length or request.sent[b"transfer-encoding"])
    content = body if body is not None else _parts(request) if has_body else None
    url = httpx2.URL(cell.url).copy_with(raw_path=_target(request))
    sent = httpx2.Request(request.method, url, headers=_headers(deps, request, cell), content=content)
    try:
        answer = await client.send(sent, stream=True)
    except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as fault:
        log.warning("a cell cannot be reached", cell=cell.number, reason=type(fault).__name__)
        message = "The part of the service that has this account is away; try again later."
        return Refusal(code="temporarily_unavailable", message=message)
    except httpx2.HTTPError as fault:
        log.warning("a cell's answer was lost", cell=cell.number, reason=type(fault).__name__)
        message = "The outcome is unknown; repeat the request with its Idempotency-Key."
        return Refusal(code="temporarily_unavailable", message=message)
    # Of the two ids of this request the client gets the one that is in the response's body.
    request.id = answer.headers.get("x-request-id", request.id)
    response = streamed(_body_of(answer), {}, status=answer.status_code)
    response.timeout = None
    response.headers = Headers(
        (name.decode("latin1"), value.decode("latin1"))
        for name, value in answer.headers.raw
        if name.lower() not in _CONNECTION | _OWN
    )
    if request.method == "HEAD":
        await answer.aclose()
    return response


async def forward_to_each(
    deps: Dependencies, request: HoldfastRequest, body: bytes, without_effect: type[msgspec.Struct]
) -> Response | Refusal | None:
    """Ask the other cells in turn, and return the first response that is not ``without_effect``; None if all are.

    A request that a cell has sent on is not sent again.
    """
    if deps.cells is None or is_forwarded(deps, request):
        return None
    for cell in deps.cells.all:
        if cell is deps.cells.own:
            continue
        response = await forward(deps, request, cell, body)
        if isinstance(response, Refusal):
            return response
        async with response.response as parts:
            content = b"".join([part async for part in parts])
        if response.status_code != 200 or not _is(content, without_effect):
            return Response(content, response.status_code, response.headers)
    return None


def _is(content: bytes, kind: type[msgspec.Struct]) -> bool:
    try:
        msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError:
        return False
    return True


@asynccontextmanager
async def _body_of(answer: httpx2.Response) -> AsyncIterator[AsyncIterator[bytes]]:
    try:
        yield answer.aiter_raw()
    finally:
        with trio.move_on_after(CLOSE_S, shield=True):
            await answer.aclose()


async def _parts(request: HoldfastRequest) -> AsyncIterator[bytes]:
    """Yield the body as it comes; the other cell limits it."""
    while (part := await request.read_part(None)) is not None:
        yield part


def _headers(deps: Dependencies, request: HoldfastRequest, cell: Cell) -> list[tuple[bytes, bytes]]:
    settings = deps.settings
    kept = [each for each in request.scope["headers"] if each[0] not in _CONNECTION | _REPLACED]
    peer = request.scope.get("client")
    reported = request.headers.getlist(settings.proxy_header)
    address = client_address(
        str(peer[0]) if peer else None, reported, settings.trusted_proxies, header=settings.proxy_header
    )
    if address is not None and settings.proxy_header == "Forwarded":
        shown = f'"[{address}]"' if address.version == 6 else str(address)
        kept.append((b"forwarded", f"for={shown}".encode()))
    elif address is not None:
        kept.append((b"x-forwarded-for", str(address).encode()))
    mark = sign(_key(deps), _signed(cell, request), at=int(deps.wall().timestamp()))
    host = httpx2.URL(cell.url).netloc
    return [(b"host", host), *kept, (MARK.lower().encode(), mark.encode())]


def _target(request: HoldfastRequest) -> bytes:
    query = request.scope["query_string"]
    return request.scope["raw_path"] + (b"?" + query if query else b"")


def _signed(cell: Cell, request: HoldfastRequest) -> bytes:
    return f"{cell.number} {request.method} ".encode() + _target(request)


def _key(deps: Dependencies) -> str:
    return deps.settings.derived_key("cells").hex()
