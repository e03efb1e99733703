"""Views: the handlers of the pages, declared like the endpoints, and what they can do.

A view reads by calling endpoints in process, so that a page shows what the API returns.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec
from quart import Response
from sqlalchemy import Connection

from holdfast.actors.runtime.faults import AccountAway
from holdfast.http.endpoints import all_routes
from holdfast.http.kit.calls import LIGHT_BYTES_MAX, Auth, Call, Method, Needs
from holdfast.http.kit.credentials import read_bearer
from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.kit.errors import refusal_of_fault
from holdfast.http.kit.listing import CURSOR, FORMAT, LIMIT
from holdfast.http.kit.requests import HoldfastRequest
from holdfast.http.kit.responses import handle
from holdfast.http.kit.routes import BodyResponse, Handler, Outcome, Route
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.queries.credentials import SessionRecord
from holdfast_console.forms import (
    CSRF_FIELD,
    FORM_BYTES_MAX,
    IDEMPOTENCY_FIELD,
    RETURN_FIELD,
    Message,
    SentForm,
    body_of_form,
    parse_file_form,
    parse_form,
)
from holdfast_console.rendering import Again, Headers, Html, Redirect

S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")

NO_FIELDS: Final[Mapping[str, object]] = MappingProxyType({})
ROWS_SHOWN: Final = "50"
"""How many entries of a list a page shows."""

ViewResult: TypeAlias = Html | Redirect | Again | Refusal | Response


class ListShown(NamedTuple):
    """A list on a page, as its endpoint returned it, with its filters and what may be chosen for them."""

    found: msgspec.Struct | Refusal
    filters: Mapping[str, str]
    choices: Mapping[str, object]
    is_filtered: bool


class PageCall(Call):
    """The request of a page.

    ``form`` has the fields of a form that was sent. ``address`` is that of the page to show, with its query
    ``args``: the request's own, or of the page with the form that was not done. ``token`` is the session's.
    """

    __slots__ = ("address", "args", "form", "sent_form", "token")

    def __init__(self, deps: Dependencies, view: View, request: HoldfastRequest, path: dict[str, str]) -> None:
        super().__init__(deps, view, request, path)
        self.form: Mapping[str, str] = {}
        self.address = request.full_path.rstrip("?")
        self.args = request.args.to_dict()
        self.sent_form: SentForm | None = None
        self.token = ""

    @property
    def is_identified(self) -> bool:
        """Whether it is known who makes the request."""
        return self.operator is not None or self._caller is not None

    async def identify_session(self, token: str) -> SessionRecord | Refusal:
        """Set the session by its token, and return it. Refuses as a route of sessions does."""
        bearer = read_bearer([f"Bearer {token}"], "session")
        if isinstance(bearer, Refusal):
            return bearer
        self.bearer = bearer
        found = await self._verify()
        if isinstance(found, SessionRecord):
            self._caller, self.token = found, token
        assert isinstance(found, SessionRecord | Refusal)
        return found

    async def read_form(self) -> Refusal | None:
        """Read the form that was sent, and its files; one that may be large is counted until the request ends."""
        view, count = self.route, None
        assert isinstance(view, View)
        with ExitStack() as opened:
            held = self._hold_body() if view.form_bytes_max > FORM_BYTES_MAX else None
            if held is not None:
                opened.enter_context(held.preparation)
                count = held.add
            raw = await self.request.read_body(view.form_bytes_max, count)
        refusal = None if held is None else held.begin_request()
        if refusal is not None:
            return refusal
        self.body_bytes, self._is_heavy = len(raw), len(raw) > LIGHT_BYTES_MAX
        content_type = self.request.headers.get("Content-Type")
        if view.takes_file:
            caller = f"origin:{self.origin()}"
            parsed = await self.compute(parse_file_form, raw, content_type, caller=caller)
            if isinstance(parsed, Refusal):
                return parsed
            self.form, self.files = parsed
            return None
        form = parse_form(raw, content_type)
        if isinstance(form, Refusal):
            return form
        self.form = form
        return None

    def turn_to(self, address: str, path: Mapping[str, str], sent_form: SentForm) -> None:
        """Show the page at an address instead, with a form on it that was sent and not done."""
        self.address, self.path, self.sent_form = address, {**path}, sent_form
        self.args = dict(parse_qsl(urlsplit(address).query))

    def csrf_token(self) -> str | None:
        """Return the form's token; the script sends that of an upload in a header."""
        is_upload = isinstance(self.route, View) and self.route.is_upload
        return super().csrf_token() if is_upload else self.form.get(CSRF_FIELD)

    def idempotency_keys(self) -> list[str]:
        """Return the form's key, if it has one."""
        return [self.form[IDEMPOTENCY_FIELD]] if IDEMPOTENCY_FIELD in self.form else []


@dataclass(frozen=True, slots=True)
class Visit:
    """One request of a page, as its view sees it."""

    call: PageCall

    @property
    def form(self) -> dict[str, str]:
        """The fields of the form that belong to the action."""
        sent = self.call.form
        return {name: value for name, value in sent.items() if name not in {CSRF_FIELD, IDEMPOTENCY_FIELD}}

    @property
    def return_to(self) -> str:
        """The address of the page that the form is on, as it was sent."""
        return self.call.form.get(RETURN_FIELD, "")

    @property
    def path(self) -> Mapping[str, str]:
        """The parameters in the path."""
        return self.call.path

    def parameter(self, name: str) -> str:
        """Return a query parameter, "" if it was not sent."""
        return self.call.args.get(name, "").strip()

    def first_page(self) -> str:
        """Return the address of the list's first page, with the same filters; "" on that page."""
        return self._page_at("") if self.parameter("cursor") else ""

    def next_page(self, cursor: str | None) -> str:
        """Return the address of the list's page at ``cursor``, with the same filters; "" without a cursor."""
        return "" if cursor is None else self._page_at(cursor)

    def _page_at(self, cursor: str) -> str:
        sent, page = {**self.call.args, "cursor": cursor}, self.call.address.partition("?")[0]
        query = urlencode({name: value for name, value in sent.items() if name != "cursor" or value})
        return f"{page}?{query}" if query else page

    async def read(
        self,
        handler: Handler,
        reply: type[S],
        *,
        path: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> S | Refusal:
        """Call an endpoint that reads. A fault that callers may expect is returned as its refusal."""
        found, _ = _body_of(await self._run(handler, path or {}, query or {}))
        assert isinstance(found, reply | Refusal)
        return found

    async def query(self, query: Callable[[Connection], T]) -> T | Refusal:
        """Read what endpoints have too, but only by several reads. A fault is returned as :meth:`read` does."""
        try:
            return await self.call.read(query)
        except Exception as fault:
            return _refusal_of(fault)

    async def stream(self, handler: Handler, *, query: Mapping[str, str] | None = None) -> Response | Refusal:
        """Call an endpoint that reads, with the path of this request, and return its response as it is sent."""
        found = await self._run(handler, self.path, query or {}, is_stream=True)
        assert isinstance(found, Response | Refusal)
        return found

    async def read_list(
        self, handler: Handler, *, always: Mapping[str, str] | None = None, **defaults: str
    ) -> ListShown:
        """Call an endpoint that lists, with the cursor and the filters of the page's own address, and its path.

        The filters ``defaults`` hold unless the address has others, those of ``always`` in any case.
        """
        parameters = [each for each in route_of(handler).parameters if each not in (CURSOR, LIMIT, FORMAT)]
        sent = self.call.args
        filters = {
            each.name: self.parameter(each.name) if each.name in sent else defaults.get(each.name, "")
            for each in parameters
        }
        filters |= always or {}
        query = {**filters, "cursor": self.parameter("cursor"), "limit": ROWS_SHOWN}
        return ListShown(
            found=await self.read(handler, msgspec.Struct, path=self.path, query=query),
            filters=filters,
            choices={each.name: each.schema["enum"] for each in parameters if "enum" in each.schema},
            is_filtered=any(value not in ("", defaults.get(name)) for name, value in filters.items()),
        )

    async def submit(
        self,
        handler: Handler | Route,
        reply: type[S],
        fields: Mapping[str, object] = NO_FIELDS,
        *,
        path: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> S | Refusal:
        """Call an endpoint that changes something, with ``fields`` as its body; ``path`` is that of this request.

        Text becomes numbers and booleans where the body has them.
        """
        found, _ = _body_of(await self._run(handler, self.path if path is None else path, query or {}, fields))
        assert isinstance(found, reply | Refusal)
        return found

    async def submit_with_headers(
        self, handler: Handler, fields: Mapping[str, object] = NO_FIELDS
    ) -> tuple[msgspec.Struct | Refusal, Headers]:
        """Call an endpoint as :meth:`submit` does, and return the headers of its response, too."""
        return _body_of(await self._run(handler, self.path, {}, fields))

    async def act(
        self,
        handler: Handler,
        to: str,
        text: str,
        fields: Mapping[str, object] = NO_FIELDS,
        *,
        path: Mapping[str, str] | None = None,
    ) -> Redirect | Refusal:
        """Call an endpoint as :meth:`submit` does, and go on to the page ``to``, which shows the text."""
        done = await self.submit(handler, msgspec.Struct, fields, path=path)
        return done if isinstance(done, Refusal) else Redirect(to, Message(text))

    async def _run(
        self,
        handler: Handler | Route,
        path: Mapping[str, str],
        query: Mapping[str, str],
        fields: Mapping[str, object] | None = None,
        *,
        is_stream: bool = False,
    ) -> Outcome:
        route = handler if isinstance(handler, Route) else route_of(handler)
        body = None if route.body is None or fields is None else body_of_form(fields, route.body)
        if isinstance(body, Refusal):
            return body
        inner = InnerCall(self.call, route, path, query, body)
        if route.is_of_owner or not is_stream:
            inner.take_outer_session()
        inner.json = dict(fields or {})
        try:
            return await handle(inner, route)
        except Exception as fault:
            return _refusal_of(fault)


def _refusal_of(fault: Exception) -> Refusal:
    """Return the refusal of a fault that callers may expect. Raises any other, and if the account is elsewhere."""
    refusal = refusal_of_fault(fault)
    if refusal is None or isinstance(fault, AccountAway):
        raise fault
    return refusal


def _body_of(outcome: Outcome) -> tuple[msgspec.Struct | Refusal, Headers]:
    if isinstance(outcome, BodyResponse):
        return outcome.body, outcome.headers
    assert isinstance(outcome, msgspec.Struct | Refusal), "pages read endpoints that return values"
    return outcome, ()


class InnerCall(Call):
    """A call of an endpoint by a view: query and body are given instead of sent."""

    __slots__ = ("_outer", "_query")

    def __init__(
        self,
        outer: PageCall,
        route: Route,
        path: Mapping[str, str],
        query: Mapping[str, str],
        body: msgspec.Struct | None,
    ) -> None:
        super().__init__(outer.deps, route, outer.request, {**path})
        self._outer = outer
        self.operator, self.bearer = outer.operator, outer.bearer
        self._body = body
        self._query = query
        # An input is as large as the form that it is from, as far as limits and threads go.
        self.body_bytes, self._is_heavy = outer.body_bytes, outer._is_heavy

    def take_outer_session(self) -> None:
        """Take the session of the page, which was read for this request. What streams reads it again and again."""
        if isinstance(self._outer._caller, SessionRecord):
            self.take_session(self._outer._caller)

    def query(self) -> dict[str, list[str]]:
        """Return the given query parameters; one without a value counts as not sent."""
        return {name: [value] for name, value in self._query.items() if value}

    def idempotency_keys(self) -> list[str]:
        """Return the page's key."""
        return self._outer.idempotency_keys()


ViewHandler: TypeAlias = Callable[[Visit], Awaitable[ViewResult]]


@dataclass(frozen=True, slots=True, kw_only=True)
class View(Needs):
    """One page, or one action of the pages."""

    handler: ViewHandler
    form_bytes_max: int = FORM_BYTES_MAX
    takes_file: bool = False
    """The form may have a file, in memory: ``form_bytes_max`` is then of all."""
    is_for_browsers: bool = False
    """Clients that do not ask for HTML find nothing here."""
    is_upload: bool = False
    """The body is a file, which the handler reads; the form's token comes in a header."""


class ViewTable:
    """The views of one module, in order of declaration. ``auth`` is that of views that do not say otherwise."""

    def __init__(self, auth: Auth) -> None:
        self._auth = auth
        self.views: list[View] = []

    def __call__(
        self,
        path: str,
        *,
        method: Method = "GET",
        auth: Auth | None = None,
        form_bytes_max: int = FORM_BYTES_MAX,
        takes_file: bool = False,
        is_for_browsers: bool = False,
        is_upload: bool = False,
    ) -> Callable[[ViewHandler], ViewHandler]:
        """Declare the decorated handler as a view."""

        def declare(handler: ViewHandler) -> ViewHandler:
            self.views.append(
                View(
                    method=method,
                    path=path,
                    handler=handler,
                    auth=auth or self._auth,
                    form_bytes_max=form_bytes_max,
                    takes_file=takes_file,
                    is_for_browsers=is_for_browsers,
                    is_upload=is_upload,
                )
            )
            return handler

        return declare


@functools.cache
def _routes_by_handler() -> dict[Handler, Route]:
    return {route.handler: route for route in all_routes()}


def route_of(handler: Handler) -> Route:
    """Return the route of an endpoint's handler."""
    return _routes_by_handler()[handler]
