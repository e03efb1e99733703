"""Routes: declarations next to their handlers, of the credential, request, responses and errors of an endpoint.

A :class:`Route` is used by the web framework (method and path), by :mod:`holdfast.http.kit.calls` (which
authenticates the caller and reads the body before the handler runs) and by :mod:`holdfast.http.kit.openapi` (which
generates the document and its examples). There is no other list of endpoints.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Concatenate, Final, Literal, ParamSpec, TypeAlias, TypeVar

import msgspec
from quart import Response

from holdfast.http.kit.calls import SIGNED, Auth, Call, Needs
from holdfast.ledger.refusals import Refusal

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BodyResponse:
    """A response with headers, or with a status other than that of its body."""

    body: msgspec.Struct | Refusal
    status: int | None = None
    headers: tuple[tuple[str, str], ...] = ()


Outcome: TypeAlias = msgspec.Struct | BodyResponse | Refusal | Response
Handler: TypeAlias = Callable[[Call], Awaitable[Outcome]]


EVENT_STREAM: Final = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter, header or path parameter. ``schema`` is JSON Schema."""

    name: str
    location: Literal["query", "header", "path"]
    description: str
    schema: Mapping[str, object] = field(default_factory=lambda: {"type": "string"})
    required: bool = False

    @property
    def has_keys(self) -> bool:
        """Whether it is sent as ``name[key]``, once for each key."""
        return self.schema["type"] == "object"

    @property
    def shown_name(self) -> str:
        """The name by which it is sent."""
        return f"{self.name}[…]" if self.has_keys else self.name

    def is_sent_as(self, name: str) -> bool:
        """Whether a name in a query is this parameter's."""
        if self.has_keys:
            return name.startswith(f"{self.name}[") and name.endswith("]") and name != f"{self.name}[]"
        return name == self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Media:
    """A successful response that is not a JSON struct.

    ``example`` is one of a text: written out, or the names of a stream's events with the types of their data.
    """

    status: int
    content_types: tuple[str, ...]
    description: str
    schema_type: Literal["string", "object"] = "string"
    example: str | Mapping[str, type[msgspec.Struct]] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration(Needs):
    """What is declared of an endpoint.

    ``form_files`` describes the files of a form by their names; the first is required unless there may be a
    ``body`` without them. The form has the fields of ``form``, too; without any, a file may be the whole body.
    ``other_reply`` is a second type of a successful response. ``errors`` are the codes of the handler, in addition
    to those that other fields imply. A request that ``is_kept`` in memory leads by its id to the account; one that
    creates a task is found by that, and one that changes nothing not at all. ``summary`` is a title, and after a
    semicolon or colon what the description begins with. ``tag`` is the section of the reference; that of its table
    unless it is declared.
    """

    summary: str
    tag: str = ""
    raw_body_example: Mapping[str, object] | None = None
    form_files: Mapping[str, str] = field(default_factory=dict)
    form: type[msgspec.Struct] | None = None
    reply: type[msgspec.Struct] | None = None
    other_reply: type[msgspec.Struct] | None = None
    statuses: tuple[int, ...] = (200,)
    media: tuple[Media, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    errors: tuple[str, ...] = ()
    is_kept: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Route(Declaration):
    """One endpoint: its declaration and its handler."""

    handler: Handler

    @property
    def idempotent(self) -> bool:
        """Whether the route accepts an Idempotency-Key."""
        return any(each.name == IDEMPOTENCY_KEY.name for each in self.parameters)

    @property
    def refuses_parameters(self) -> bool:
        """Whether a query parameter that is not declared is refused."""
        if self.method == "GET":
            return any(each.location == "query" for each in self.parameters)
        return self.auth not in SIGNED


IDEMPOTENCY_KEY: Final = Parameter(
    name="Idempotency-Key",
    location="header",
    description="Makes the request safe to repeat for 24 hours. 1 to 255 printable ASCII characters.",
    schema={"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[\\x20-\\x7e]+$"},
)


REQUIRED_IDEMPOTENCY_KEY: Final = replace(IDEMPOTENCY_KEY, required=True)
"""For money that operators move: a repeat must never move it twice."""


HEALTH_PATHS: Final = frozenset({"/healthz", "/readyz"})
"""What is served on both listeners."""


def is_for_operators(path: str) -> bool:
    """Whether what is at a path is served on the operators' listener."""
    return path in {"/metrics", "/ops"} or path.startswith("/ops/")


def _takes(fields: Callable[P, object]) -> Callable[[Callable[..., T]], Callable[Concatenate[Any, P], T]]:
    """Type a method as taking what ``fields`` takes."""
    del fields
    return lambda method: method


class RouteTable:
    """The routes of one module, in order of declaration.

    ``tag``, ``auth`` and ``scope`` are those of routes that do not say otherwise.
    """

    def __init__(self, tag: str, *, auth: Auth = Auth.NONE, scope: str | None = None) -> None:
        self.tag = tag
        self._usual = {"tag": tag, "auth": auth, "scope": scope}
        self.routes: list[Route] = []

    @_takes(Declaration)
    def __call__(self, *args: Any, **fields: Any) -> Callable[[Handler], Handler]:
        """Declare the decorated handler as a route."""

        def declare(handler: Handler) -> Handler:
            self.routes.append(Route(*args, **{**self._usual, **fields}, handler=handler))
            return handler

        return declare

    def mirror(
        self, of: RouteTable, handler: Handler, name: str, path: str, summary: str, **changed: Any
    ) -> Handler:
        """Declare a route that does what another one ``of`` a table does, by this table's credential.

        Return its handler, which has the name and, as ``description``, may have words of its own. What else is
        ``changed`` of the declaration is given by name.
        """
        [route] = [each for each in of.routes if each.handler is handler]

        @functools.wraps(handler)
        async def mirroring(call: Call) -> Outcome:
            return await handler(call)

        mirroring.__name__ = name
        mirroring.__doc__ = changed.pop("description", handler.__doc__)
        fields: dict[str, Any] = {**self._usual, "path": path, "summary": summary, **changed}
        self.routes.append(replace(route, **fields, handler=mirroring))
        return mirroring
