"""Views: the handlers of the operators' pages, declared like the endpoints, and what they can do.

A view reads by calling endpoints in process, so that a page shows what the API returns.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias, TypeVar
from urllib.parse import urlencode

import msgspec
from quart import Response

from holdfast.http.endpoints import all_routes
from holdfast.http.kit.calls import Auth, Call, Method, Needs
from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.kit.errors import refusal_of_fault
from holdfast.http.kit.listing import PAGE
from holdfast.http.kit.requests import HoldfastRequest
from holdfast.http.kit.responses import handle
from holdfast.http.kit.routes import BodyResponse, Handler, Route
from holdfast.ledger.refusals import Refusal
from holdfast_console.forms import CSRF_FIELD, IDEMPOTENCY_FIELD, body_of_form
from holdfast_console.rendering import Headers, Html, Redirect

S = TypeVar("S", bound=msgspec.Struct)

ROWS_SHOWN: Final = "50"
"""How many entries of a list a page shows."""

ViewResult: TypeAlias = Html | Redirect | Refusal | Response


class ListShown(NamedTuple):
    """A list on a page, as its endpoint returned it, with its filters and what may be chosen for them."""

    found: msgspec.Struct | Refusal
    filters: Mapping[str, str]
    choices: Mapping[str, object]
    is_filtered: bool


class PageCall(Call):
    """The request of a page. ``form`` has the fields of a form that was sent."""

    __slots__ = ("form",)

    def __init__(self, deps: Dependencies, view: View, request: HoldfastRequest, path: dict[str, str]) -> None:
        super().__init__(deps, view, request, path)
        self.form: Mapping[str, str] = {}

    def csrf_token(self) -> str | None:
        """Return the form's token."""
        return self.form.get(CSRF_FIELD)

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
    def path(self) -> Mapping[str, str]:
        """The parameters in the path."""
        return self.call.path

    def parameter(self, name: str) -> str:
        """Return a query parameter, "" if it was not sent."""
        return self.call.request.args.get(name, "").strip()

    def first_page(self) -> str:
        """Return the address of the list's first page, with the same filters; "" on that page."""
        return self._page_at("") if self.parameter("cursor") else ""

    def next_page(self, cursor: str | None) -> str:
        """Return the address of the list's page at ``cursor``, with the same filters; "" without a cursor."""
        return "" if cursor is None else self._page_at(cursor)

    def _page_at(self, cursor: str) -> str:
        sent = {**self.call.request.args.to_dict(), "cursor": cursor}
        query = urlencode({name: value for name, value in sent.items() if name != "cursor" or value})
        return f"{self.call.request.path}?{query}" if query else self.call.request.path

    async def read(
        self,
        handler: Handler,
        reply: type[S],
        *,
        path: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> S | Refusal:
        """Call an endpoint that reads. A fault that callers may expect is returned as its refusal."""
        route = route_of(handler)
        found, _ = await self._run(InnerCall(self.call, route, path or {}, query or {}, None), route)
        assert isinstance(found, reply | Refusal)
        return found

    async def read_list(
        self, handler: Handler, *, always: Mapping[str, str] | None = None, **defaults: str
    ) -> ListShown:
        """Call an endpoint that lists, with the cursor and the filters of the page's own address, and its path.

        The filters ``defaults`` hold unless the address has others, those of ``always`` in any case.
        """
        parameters = [each for each in route_of(handler).parameters if each not in PAGE]
        sent = self.call.request.args
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

    async def submit(self, route: Route, *, fields: Mapping[str, str]) -> tuple[msgspec.Struct | Refusal, Headers]:
        """Call an endpoint that changes something, with a form's fields as its body and the path of this request.

        Returns its reply and headers, as :meth:`read` does.
        """
        body = None if route.body is None else body_of_form(fields, route.body)
        if isinstance(body, Refusal):
            return body, ()
        inner = InnerCall(self.call, route, self.path, {}, body)
        inner.json = dict(fields)
        return await self._run(inner, route)

    async def _run(self, inner: InnerCall, route: Route) -> tuple[msgspec.Struct | Refusal, Headers]:
        try:
            outcome = await handle(inner, route)
        except Exception as fault:
            refusal = refusal_of_fault(fault)
            if refusal is None:
                raise
            return refusal, ()
        if isinstance(outcome, BodyResponse):
            return outcome.body, outcome.headers
        assert isinstance(outcome, msgspec.Struct | Refusal), "pages call endpoints that return values"
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
        self.operator = outer.operator
        self._body = body
        self._query = query

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


class ViewTable:
    """The views of one module, in order of declaration."""

    def __init__(self) -> None:
        self.views: list[View] = []

    def __call__(
        self, path: str, *, method: Method = "GET", auth: Auth = Auth.OPERATOR_READ
    ) -> Callable[[ViewHandler], ViewHandler]:
        """Declare the decorated handler as a view."""

        def declare(handler: ViewHandler) -> ViewHandler:
            self.views.append(View(method=method, path=path, handler=handler, auth=auth))
            return handler

        return declare


@functools.cache
def _routes_by_handler() -> dict[Handler, Route]:
    return {route.handler: route for route in all_routes()}


def route_of(handler: Handler) -> Route:
    """Return the route of an endpoint's handler."""
    return _routes_by_handler()[handler]
