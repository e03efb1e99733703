"""Requests that belong to another cell: which they are, and how that cell is asked for the response.

A credential or an id in the path names a place, so most requests are sent on before their body is read. What names
its account in its body, and what is missing here, raises :class:`~holdfast.http.kit.other_cells.OfAnotherCell` once
that is known; its body has been kept for that. Each time a request carries the sender's signature with the reason.

Only the cells in the list are called, at the path that the client asked for, or at customers' paths for the code of
an operator. The client's address is reported in the header that the settings name, so the cells trust each other's
machines as they trust a proxy. A certificate of a cell is checked by the authorities of the system, or by those of
OpenSSL's ``SSL_CERT_FILE``.
"""

from __future__ import annotations

import math
import re
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

import httpx2
import msgspec
import structlog
import trio
from quart import Response
from quart.wrappers.response import DataBody
from werkzeug.datastructures import Headers

from holdfast.actors.runtime.faults import AccountAway
from holdfast.http.kit.calls import BY_BEARER
from holdfast.http.kit.client_address import client_address
from holdfast.http.kit.credentials import place_of_credential
from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.kit.errors import ErrorResponse
from holdfast.http.kit.extensions import ServedPage
from holdfast.http.kit.other_cells import (
    Hop,
    LookAgain,
    NotHere,
    OfAnotherCell,
    raise_moved,
    require_here,
    require_place,
)
from holdfast.http.kit.requests import HoldfastRequest
from holdfast.http.kit.responses import refusal_response, streamed
from holdfast.http.kit.routes import Route, is_for_operators
from holdfast.ledger.cells import Cell
from holdfast.ledger.refusals import ACCOUNT_MOVING, Refusal
from holdfast.ledger.values import place_carried_by
from holdfast.persistence.queries.moves import find_departed
from holdfast.persistence.server.lookups import Lookup
from holdfast.providers.outbound.connection_pool import parse_retry_after
from holdfast.providers.signatures import sign, verify_signature

MARK: Final = "Holdfast-Forwarded"
LISTED: Final = "Holdfast-Cells"
"""The header of an answer to another cell with the numbers of the cells in the list of who answers."""
ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024
"""The longest answer that is read whole: what all processes of a thousand machines say of themselves is shorter."""
LOST: Final = (httpx2.HTTPError, msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What reading an answer raises if it does not arrive whole, or is too long, nested too deeply, or not JSON."""
_UNREACHED: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
"""What a request raises that no cell has got."""
CONNECT_S: Final = 2.0
AWAY_S: Final = 1.0
"""How long a cell that could not be reached is not tried again."""
ANSWER_S: Final = 600.0
"""As long as a client of OpenAI's waits for a result. One that gives up earlier ends its request here and there."""
CLOSE_S: Final = 1.0

_CONNECTION: Final = frozenset(
    {b"connection", b"expect", b"host", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
)
_MARK: Final = MARK.lower().encode()
_REPLACED: Final = frozenset({b"forwarded", b"x-forwarded-for", _MARK})
"""The headers that say who calls; the client's own say nothing."""
_OWN: Final = frozenset({b"x-request-id", b"traceresponse", LISTED.lower().encode()})
_SESSION: Final = re.compile(r"\bhst_[A-Za-z0-9_-]{43}", re.ASCII)
_IN_PATH: Final = ("request_id", "order_id", "file_id", "asset_id", "archive_id")

_ACCOUNT_PATH: Final = b"/v2/control/limits"
"""What any session or API key may read, where its account is."""
_KEY: Final = b"idempotency-key"
_READING: Final = frozenset({"GET", "HEAD"})
_MISSING: Final = frozenset({404, 410})
"""The statuses of what is not here, also by a link, which may be in another cell."""
_MISDIRECTED: Final = 421
"""The status of a response to another cell, which has to look elsewhere."""
_DISAGREE: Final = Refusal(
    code="temporarily_unavailable",
    message="The parts of the service do not agree who serves this; try again later.",
)
_AWAY: Final = Refusal(
    code="temporarily_unavailable",
    message="The part of the service that has this account is away; try again later.",
)
_UNKNOWN: Final = Refusal(
    code="temporarily_unavailable",
    message="The outcome is unknown; repeat the request with its Idempotency-Key.",
)

log = structlog.get_logger(__name__)


class Clients:
    """The HTTP client for each cell, made at first use: one that stalls takes no connection of the others.

    ``ssl_context`` checks the certificates of all. Reading the authorities takes some 20 ms, in which nothing else
    is served, so in an installation with cells this is made before the first request.
    """

    def __init__(self) -> None:
        self.ssl_context = ssl.create_default_context()
        self._clients: dict[str, httpx2.AsyncClient] = {}
        self._away: dict[str, float] = {}
        """When a cell that could not be reached is tried again."""

    def client_for(self, cell: Cell, connections_max: int) -> httpx2.AsyncClient:
        """Return the client for a cell."""
        found = self._clients.get(cell.url)
        if found is None:
            found = self._clients[cell.url] = httpx2.AsyncClient(
                trust_env=False,
                follow_redirects=False,
                verify=self.ssl_context,
                timeout=httpx2.Timeout(ANSWER_S, connect=CONNECT_S, pool=CONNECT_S),
                limits=httpx2.Limits(max_connections=connections_max, keepalive_expiry=5.0),
            )
        return found

    def admit(self, cell: Cell) -> bool:
        """Return whether to send a request to a cell: while that cannot be reached, one a second tries it again.

        Otherwise each request for a machine that is off would wait here for it.
        """
        retry_at, now = self._away.get(cell.url), trio.current_time()
        if retry_at is None:
            return True
        if now < retry_at:
            return False
        self._away[cell.url] = now + AWAY_S
        return True

    def note(self, cell: Cell, reason: str | None) -> None:
        """Remember whether a cell was reached; ``reason`` says why not. A line says when that changes."""
        if reason is None:
            if self._away.pop(cell.url, None) is not None:
                log.info("a cell is reached again", cell=cell.number)
        elif cell.url not in self._away:
            self._away[cell.url] = trio.current_time() + AWAY_S
            log.warning("a cell cannot be reached", cell=cell.number, reason=reason)

    def extensions(self, cell: Cell) -> dict[str, object]:
        """Return what notes a cell as reached once a request is sent to it: the answer may take minutes."""

        async def trace(event: str, _info: object) -> None:
            if event == "http11.send_request_headers.complete":
                self.note(cell, None)

        return {"trace": trace}

    async def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            await client.aclose()


def place_of_request(request: HoldfastRequest, path: Mapping[str, str], route: Route | ServedPage) -> int | None:
    """Return the place in a request's credential, in a page's cookie, or else in an id of the path."""
    place = place_of_credential(_bearer_of(request, route))
    if place is not None or isinstance(route, ServedPage):
        return place
    named = next((path[name] for name in _IN_PATH if name in path), None)
    return None if named is None else place_carried_by(named)


def _bearer_of(request: HoldfastRequest, route: Route | ServedPage) -> list[str]:
    """Return the headers with a request's credential, as one would have that of a page's cookie."""
    if isinstance(route, ServedPage):
        found = _SESSION.search(";".join(request.sent.get(b"cookie", []))) if route.needs_session else None
        return [] if found is None else [f"Bearer {found[0]}"]
    return request.sent.get(b"authorization", []) if route.auth in BY_BEARER else []


async def serve_in_cells(
    deps: Dependencies,
    route: Route | ServedPage,
    request: HoldfastRequest,
    path: Mapping[str, str],
    serve: Callable[[], Awaitable[Response]],
) -> Response:
    """Have a request served by the cell that has what it names, by its head or as is found on the way.

    Operators call each cell themselves.
    """
    if is_for_operators(request.path):
        return await _serve_operator(route, serve)
    hop = _hop_of(deps, request)
    if hop is None:
        log.warning("a request has the mark of no cell: SERVER_KEY or the clock may differ", path=request.path)
        return _refused(route, _DISAGREE)
    request.hop, request.keeps_body = hop, True
    response = await _serve_or_forward(deps, route, request, place_of_request(request, path, route), serve)
    if hop:
        response.headers[LISTED] = _listed(deps)
    return response


async def _serve_or_forward(
    deps: Dependencies,
    route: Route | ServedPage,
    request: HoldfastRequest,
    place: int | None,
    serve: Callable[[], Awaitable[Response]],
) -> Response:
    while True:
        try:
            if place is not None and not request.is_settled:
                require_place(deps, request, place)
            return await _serve_here(deps, request, place, serve)
        except (AccountAway, LookAgain, NotHere) as fault:
            if request.had_effect:
                return _refused(route, _UNKNOWN)
            if isinstance(fault, AccountAway):
                return _refused(route, ACCOUNT_MOVING)
            if isinstance(fault, NotHere):
                return Response(b"", status=_MISDIRECTED)
            request.has_looked_again = True
        except OfAnotherCell as found:
            answer = await _ask_in_turn(deps, request, found, _bearer_of(request, route))
            if answer is not None:
                return _refused(route, answer) if isinstance(answer, Refusal) else answer
            # It may have come back meanwhile, or it is nowhere.
            request.is_settled = True
        if request.is_body_gone:
            request.body_fault = AccountAway("the body was read, or sent to another cell")


def _refused(route: Route | ServedPage, refusal: Refusal) -> Response:
    return route.refuse(refusal) if isinstance(route, ServedPage) else refusal_response(refusal)


async def _serve_operator(route: Route | ServedPage, serve: Callable[[], Awaitable[Response]]) -> Response:
    try:
        return await serve()
    except AccountAway:
        return _refused(route, ACCOUNT_MOVING)


async def _serve_here(
    deps: Dependencies, request: HoldfastRequest, place: int | None, serve: Callable[[], Awaitable[Response]]
) -> Response:
    """Serve a request here. Raises as :func:`require_here` does if what it names is not here, or not any more."""
    try:
        response = await serve()
    except AccountAway:
        if place is not None:
            await require_here(deps, request, place)
        raise
    is_missing = response.status_code in _MISSING
    if request.caller is None:
        if is_missing and place is not None:
            await require_here(deps, request, place)
    elif (is_missing or request.method in _READING) and isinstance(response.response, DataBody):
        # Rows may have been read when the account had just departed.
        departed = Lookup(find_departed, request.caller)
        await deps.access.lookups.run(departed)
        if departed.found is not None:
            if departed.found.is_closed or request.is_settled:
                raise AccountAway("the account departed while the request was served")
            raise_moved(deps, request, departed.found.cell)
    return response


async def forward(deps: Dependencies, request: HoldfastRequest, cell: Cell, hop: Hop) -> Response | Refusal | None:
    """Return another cell's response to a request; None if it does not have what that names.

    Refuses with ``temporarily_unavailable``, and says whether the cell may have got it.
    """
    if hop <= request.hop:
        log.error("the cells disagree where a request belongs", path=request.path, cell=cell.number)
        return _DISAGREE
    if request.had_effect or request.is_body_gone:
        return _UNKNOWN
    content = _parts(request) if _is_sent_once(request) else request.kept_body
    # The connection may have been closed while it was kept for the next request.
    tries = 2 if content is request.kept_body and (request.method in _READING or request.sent.get(_KEY)) else 1
    answer = await _send(
        deps,
        cell,
        httpx2.Request(
            request.method,
            httpx2.URL(cell.url).copy_with(raw_path=_target(request)),
            headers=_headers(deps, request, cell, hop),
            content=content,
            extensions=deps.state(Clients).extensions(cell),
        ),
        tries=tries,
    )
    if isinstance(answer, Refusal):
        return answer
    request.lists_differ |= answer.headers.get(LISTED) != _listed(deps)
    if answer.status_code == _MISDIRECTED:
        await answer.aclose()
        return None
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


async def _send(
    deps: Dependencies, cell: Cell, sent: httpx2.Request, *, tries: int = 1
) -> httpx2.Response | Refusal:
    """Return the head of a cell's answer. Refuses with ``temporarily_unavailable`` if there is none."""
    clients = deps.state(Clients)
    if not clients.admit(cell):
        return _AWAY
    client = clients.client_for(cell, deps.settings.waiting_max)
    while True:
        tries -= 1
        try:
            return await client.send(sent, stream=True)
        except _UNREACHED as fault:
            clients.note(cell, type(fault).__name__)
            return _AWAY
        except httpx2.HTTPError as fault:
            if tries and isinstance(fault, httpx2.NetworkError | httpx2.RemoteProtocolError):
                continue
            log.warning("a cell's answer was lost", cell=cell.number, reason=type(fault).__name__)
            return _UNKNOWN


async def ask_for_operator(
    deps: Dependencies,
    request: HoldfastRequest,
    found: OfAnotherCell,
    method: str,
    path: str,
    *,
    body: msgspec.Struct | None = None,
    token: str | None = None,
) -> bytes | Refusal | None:
    """Call a customers' endpoint for an operator where it is to be answered, and return the body of a success.

    None if no cell has what it names. Refuses as the endpoint does, and as :func:`forward` does.
    """
    for cell, hop in found.asked:
        mark = _mark(deps, cell, method, path.encode(), hop)
        headers = [*_reported(deps, request), (_MARK, mark.encode())]
        if token is not None:
            headers.append((b"authorization", f"Bearer {token}".encode()))
        if body is not None:
            headers.append((b"content-type", b"application/json"))
        content = None if body is None else msgspec.json.encode(body)
        extensions = deps.state(Clients).extensions(cell)
        sent = httpx2.Request(method, cell.url + path, headers=headers, content=content, extensions=extensions)
        answer = await _send(deps, cell, sent)
        if isinstance(answer, Refusal):
            return answer
        async with _body_of(answer) as parts:
            if answer.status_code == _MISDIRECTED:
                continue
            try:
                content = await read_answer(parts)
                if answer.status_code == 200:
                    return content
                error = msgspec.json.decode(content, type=ErrorResponse).error
            except LOST:
                return _UNKNOWN
        pause_s = parse_retry_after(answer.headers.get("Retry-After"), deps.wall())
        retry_after_s = None if pause_s is None else math.ceil(pause_s)
        return Refusal(code=error.code, message=error.message, param=error.param, retry_after_s=retry_after_s)
    return None


async def _ask_in_turn(
    deps: Dependencies, request: HoldfastRequest, found: OfAnotherCell, bearer: Sequence[str]
) -> Response | Refusal | None:
    """Return as :func:`forward` the response of the first cell that has what a request names.

    A body that is sent once goes only to a cell that has the account, where several may have it.
    """
    asks_first = len(found.asked) > 1 and bool(bearer) and _is_sent_once(request)
    for cell, reason in found.asked:
        if asks_first and not await _has_account(deps, cell, reason, bearer[0]):
            continue
        answer = await forward(deps, request, cell, reason)
        if answer is not None:
            return answer
    return None


def _is_sent_once(request: HoldfastRequest) -> bool:
    """Whether a request has a body that is sent on as it is read."""
    return request.kept_body is None and bool(request.content_length or request.sent.get(b"transfer-encoding"))


async def _has_account(deps: Dependencies, cell: Cell, hop: Hop, bearer: str) -> bool:
    """Whether a cell has the account of a credential; True if it does not say, so that it is asked all the same."""
    headers = {"Authorization": bearer, MARK: _mark(deps, cell, "GET", _ACCOUNT_PATH, hop)}
    clients = deps.state(Clients)
    if not clients.admit(cell):
        return True
    try:
        client = clients.client_for(cell, deps.settings.waiting_max)
        answer = await client.get(
            cell.url + _ACCOUNT_PATH.decode(), headers=headers, extensions=clients.extensions(cell)
        )
    except _UNREACHED as fault:
        clients.note(cell, type(fault).__name__)
        return True
    except httpx2.HTTPError:
        return True
    return answer.status_code != _MISDIRECTED


async def forward_to_each(
    deps: Dependencies, request: HoldfastRequest, without_effect: type[msgspec.Struct]
) -> Response | Refusal | None:
    """Ask the other cells in turn, and return the first response that is not ``without_effect``; None if all are.

    A request that a cell has sent on for that is not sent again. Refuses as :func:`forward` does, and if one that
    was asked has another list: there may be cells that were not asked.
    """
    if deps.cells is None or request.hop >= Hop.MISSED:
        return None
    for cell in deps.cells.others:
        response = await forward(deps, request, cell, Hop.MISSED)
        if isinstance(response, Refusal):
            return response
        if response is None:
            continue
        try:
            async with response.response as parts:
                content = await read_answer(parts)
        except LOST as fault:
            # It may have had its effect, so its sender must send it again.
            log.warning("a cell's answer was lost", cell=cell.number, reason=type(fault).__name__)
            return _UNKNOWN
        if response.status_code == 200:
            with suppress(msgspec.ValidationError):
                msgspec.json.decode(content, type=without_effect)
                continue
        return Response(content, response.status_code, response.headers)
    return _DISAGREE if request.lists_differ else None


async def read_answer(parts: AsyncIterable[bytes]) -> bytes:
    """Return the whole of another cell's answer, which is JSON. Raises one of :data:`LOST`."""
    content = b""
    with trio.CancelScope() as within_limit:
        async for part in parts:
            content += part
            if len(content) > ANSWER_BYTES_MAX:
                # The client's iterators are closed by this, and not by leaving them.
                within_limit.cancel()
    if within_limit.cancel_called:
        raise msgspec.DecodeError("the answer is too long")
    # Whether it is JSON at all: by type it is refused at the first part that differs.
    msgspec.json.decode(content)
    return content


@asynccontextmanager
async def _body_of(answer: httpx2.Response) -> AsyncIterator[AsyncIterator[bytes]]:
    try:
        yield answer.aiter_raw()
    finally:
        with trio.move_on_after(CLOSE_S, shield=True):
            await answer.aclose()


async def _parts(request: HoldfastRequest) -> AsyncIterator[bytes]:
    """Yield the body as it comes; the other cell limits it. It is sent once."""
    while (part := await request.read_part(None)) is not None:
        yield part


def _headers(deps: Dependencies, request: HoldfastRequest, cell: Cell, hop: Hop) -> list[tuple[bytes, bytes]]:
    kept = [each for each in request.scope["headers"] if each[0] not in _CONNECTION | _REPLACED]
    mark = _mark(deps, cell, request.method, _target(request), hop)
    host = httpx2.URL(cell.url).netloc
    return [(b"host", host), *kept, *_reported(deps, request), (_MARK, mark.encode())]


def _reported(deps: Dependencies, request: HoldfastRequest) -> list[tuple[bytes, bytes]]:
    """Return the header that reports the client's address, if that is known."""
    settings = deps.settings
    peer = request.scope.get("client")
    reported = request.headers.getlist(settings.proxy_header)
    address = client_address(
        str(peer[0]) if peer else None, reported, settings.trusted_proxies, header=settings.proxy_header
    )
    if address is None:
        return []
    if settings.proxy_header == "Forwarded":
        shown = f'"[{address}]"' if address.version == 6 else str(address)
        return [(b"forwarded", f"for={shown}".encode())]
    return [(b"x-forwarded-for", str(address).encode())]


def _target(request: HoldfastRequest) -> bytes:
    query = request.scope["query_string"]
    return request.scope["raw_path"] + (b"?" + query if query else b"")


def _hop_of(deps: Dependencies, request: HoldfastRequest) -> int | None:
    """Return the reason for which another cell has sent a request on to this one; 0 if none has.

    None if its signature is not valid: as a client's own, a request could go between two cells without end.
    """
    assert deps.cells is not None
    sent, own = ",".join(request.sent.get(_MARK, [])), deps.cells.own
    method, target = request.method, _target(request)
    if not sent:
        return 0
    return next(
        (
            hop
            for hop in Hop
            if verify_signature(sent, _signed(own, method, target, hop), [_key(deps)], now=deps.wall()) == "valid"
        ),
        None,
    )


def _mark(deps: Dependencies, cell: Cell, method: str, target: bytes, hop: Hop) -> str:
    return sign(_key(deps), _signed(cell, method, target, hop), at=int(deps.wall().timestamp()))


def _signed(cell: Cell, method: str, target: bytes, hop: Hop) -> bytes:
    return f"{cell.number} {hop.name} {method} ".encode() + target


def _listed(deps: Dependencies) -> str:
    assert deps.cells is not None
    return " ".join(str(cell.number) for cell in deps.cells.all)


def _key(deps: Dependencies) -> str:
    return deps.settings.derived_key("cells").hex()
