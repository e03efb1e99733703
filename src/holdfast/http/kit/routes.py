"""Routes: declarations next to their handlers, of the credential, request, responses and errors of an endpoint.

A :class:`Route` is used by the web framework (method and path), by :mod:`holdfast.http.kit.calls` (which
authenticates the caller and reads the body before the handler runs) and by :mod:`holdfast.http.kit.openapi` (which
generates the document and its examples). There is no other list of endpoints.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

import msgspec
from quart import Response
from werkzeug.routing import BaseConverter

from holdfast.http.kit.calls import Auth, Call, Method, Needs
from holdfast.ledger.refusals import Refusal


@dataclass(frozen=True, slots=True)
class BodyResponse:
    """A response with headers, or with a status other than that of its body."""

    body: msgspec.Struct | Refusal
    status: int | None = None
    headers: tuple[tuple[str, str], ...] = ()


def replayed(body: msgspec.Struct | Refusal) -> BodyResponse:
    """Return the response to an earlier request with the same Idempotency-Key."""
    return BodyResponse(body, headers=(("Idempotent-Replayed", "true"),))


Outcome: TypeAlias = msgspec.Struct | BodyResponse | Refusal | Response
Handler: TypeAlias = Callable[[Call], Awaitable[Outcome]]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter, header or path parameter. ``schema`` is JSON Schema."""

    name: str
    place: Literal["query", "header", "path"]
    description: str
    schema: tuple[tuple[str, object], ...] = (("type", "string"),)
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Media:
    """A successful response that is not a JSON struct."""

    status: int
    content_types: tuple[str, ...]
    description: str
    schema_type: Literal["string", "object"] = "string"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route(Needs):
    """One endpoint. ``errors`` are the codes of its handler, in addition to those that its other fields imply.

    ``other_reply`` is a second type of a successful response.
    """

    summary: str
    tag: str
    handler: Handler
    raw_body_example: Mapping[str, object] | None
    reply: type[msgspec.Struct] | None
    other_reply: type[msgspec.Struct] | None
    statuses: tuple[int, ...]
    media: tuple[Media, ...]
    parameters: tuple[Parameter, ...]
    errors: tuple[str, ...]

    @property
    def idempotent(self) -> bool:
        """Whether the route accepts an Idempotency-Key."""
        return any(each.name == IDEMPOTENCY_KEY.name for each in self.parameters)

    @property
    def rule(self) -> str:
        """The path in the web framework's syntax; a model's id may contain slashes."""
        return re.sub(r"\{(\w+)\}", lambda m: f"<{CONVERTERS.get(m[1], 'default')}:{m[1]}>", self.path)


IDEMPOTENCY_KEY: Final = Parameter(
    name="Idempotency-Key",
    place="header",
    description="Makes the request safe to repeat for 24 hours. 1 to 255 printable ASCII characters.",
    schema=(("type", "string"), ("minLength", 1), ("maxLength", 255), ("pattern", "^[\\x20-\\x7e]+$")),
)


REQUIRED_IDEMPOTENCY_KEY: Final = replace(IDEMPOTENCY_KEY, required=True)
"""For money that operators move: a repeat must never move it twice."""


CONVERTERS: Final = {"model_id": "path", "request_id": "task", "order_id": "order"}
"""The converters of path parameters that are not simply text without a slash."""


class TaskIdConverter(BaseConverter):
    """Any text except the names of other routes, so that ``GET /v2/task/create`` is 405 and not a task."""

    regex = "(?!(?:create|list)$)[^/]+"


class OrderIdConverter(BaseConverter):
    """Any text except the payment providers, which are routes of their own."""

    regex = "(?!(?:sandbox|cardprovider)$)[^/]+"


class RouteTable:
    """The routes of one module, in order of declaration."""

    def __init__(self, tag: str) -> None:
        self._tag = tag
        self.routes: list[Route] = []

    def __call__(
        self,
        method: Method,
        path: str,
        *,
        summary: str,
        auth: Auth = Auth.NONE,
        scope: str | None = None,
        body: type[msgspec.Struct] | None = None,
        body_optional: bool = False,
        takes_input: bool = False,
        raw_body_bytes_max: int | None = None,
        raw_body_limit: Callable[[Call], int] | None = None,
        raw_body_example: Mapping[str, object] | None = None,
        action: str | None = None,
        is_urgent: bool = False,
        reply: type[msgspec.Struct] | None = None,
        other_reply: type[msgspec.Struct] | None = None,
        statuses: tuple[int, ...] = (200,),
        media: tuple[Media, ...] = (),
        parameters: tuple[Parameter, ...] = (),
        errors: tuple[str, ...] = (),
    ) -> Callable[[Handler], Handler]:
        """Declare the decorated handler as a route."""
        assert action is None or (
            auth is Auth.OPERATOR_ACT and body is not None and "reason" in body.__struct_fields__
        )

        def declare(handler: Handler) -> Handler:
            self.routes.append(
                Route(
                    method=method,
                    path=path,
                    summary=summary,
                    tag=self._tag,
                    handler=handler,
                    auth=auth,
                    scope=scope,
                    body=body,
                    body_optional=body_optional,
                    takes_input=takes_input,
                    raw_body_bytes_max=raw_body_bytes_max,
                    raw_body_limit=raw_body_limit,
                    raw_body_example=raw_body_example,
                    action=action,
                    is_urgent=is_urgent,
                    reply=reply,
                    other_reply=other_reply,
                    statuses=statuses,
                    media=media,
                    parameters=parameters,
                    errors=errors,
                )
            )
            return handler

        return declare
