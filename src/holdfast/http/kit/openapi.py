"""The OpenAPI document, generated from the route declarations alone."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from importlib.resources import files
from inspect import cleandoc
from typing import Any, Final

import msgspec

from holdfast import __version__
from holdfast.http.kit.calls import Auth
from holdfast.http.kit.code_samples import code_samples
from holdfast.http.kit.errors import ERROR_TABLE, ErrorResponse
from holdfast.http.kit.extensions import ErrorForm, Extension
from holdfast.http.kit.field_docs import field_docs, structs_in
from holdfast.http.kit.listing import PAGE
from holdfast.http.kit.operators import CSRF_HEADER
from holdfast.http.kit.reference import CUSTOMERS, Reference
from holdfast.http.kit.routes import EVENT_STREAM, Media, Parameter, Route
from holdfast.ledger.alerts.account_events import PAYLOADS, AnyEventKind
from holdfast.ledger.api_keys import INCLUDED, TASKS_READ
from holdfast.ledger.tasks.events import EVENT_KINDS
from holdfast.ledger.tasks.public import TaskEvent

JsonSchema = dict[str, Any]

RECORDED_AT: Final = "https://holdfast.example"
"""Stands for the service's address in the recorded responses."""
RECORDED: Final = files("holdfast.http.kit") / "responses.json"
"""Responses of a real service by the type of their body, and events by their kind, which the tests record."""

_EVENTS: Final = "Events"
"""The section of the requests to customers' webhooks."""
_FORM: Final = "multipart/form-data"
_FILE: Final = {"type": "string", "format": "binary"}
_REF: Final = "#/components/schemas/{name}"

_BEARER_CODES: Final = ("missing_credentials", "invalid_credentials", "wrong_credential_type")
_KEY_CODES: Final = ("invalid_api_key", "api_key_expired", "api_key_paused", "account_disabled", "account_closing")
_AWAY_CODE: Final = "account_moving"
_OPERATOR_CODES: Final = (
    *_BEARER_CODES,
    "invalid_session",
    "session_expired",
    "account_disabled",
    "insufficient_role",
    "cross_origin_request",
    "sign_in_locked",
)
_AUTH_CODES: Final[dict[Auth, tuple[str, ...]]] = {
    Auth.SESSION: (
        *_BEARER_CODES,
        "invalid_session",
        "session_expired",
        "account_disabled",
        "account_closing",
        _AWAY_CODE,
    ),
    Auth.API_KEY: (*_BEARER_CODES, *_KEY_CODES, "insufficient_scope", _AWAY_CODE),
    Auth.SESSION_OR_KEY: (
        *_BEARER_CODES,
        "invalid_session",
        "session_expired",
        *_KEY_CODES,
        "insufficient_scope",
        _AWAY_CODE,
    ),
    Auth.KEY_OR_LINK: (*_BEARER_CODES, *_KEY_CODES, "insufficient_scope", _AWAY_CODE),
    Auth.OPERATOR_READ: _OPERATOR_CODES,
    Auth.OPERATOR_ACT: (*_OPERATOR_CODES, "invalid_csrf_token"),
}
_BODY_CODES: Final = ("unsupported_media_type", "request_too_large", "request_timeout")
_UPLOAD_CODES: Final = (
    "invalid_form",
    "missing_parameter",
    "invalid_parameter",
    "file_limit_reached",
    "storage_full",
)
_IDEMPOTENCY_CODES: Final = ("invalid_idempotency_key", "idempotency_key_reused", "idempotency_key_in_use")
_EVERYWHERE: Final = ("malformed_request", "headers_too_large", "internal_error")
_BEHIND_ROWS: Final = ("temporarily_unavailable", "overloaded")

_SECURITY: Final[dict[Auth, list[dict[str, list[str]]]]] = {
    Auth.NONE: [],
    Auth.OPTIONAL: [{}, {"session_token": []}, {"api_key": []}],
    Auth.SESSION: [{"session_token": []}],
    Auth.API_KEY: [{"api_key": []}],
    Auth.SESSION_OR_KEY: [{"session_token": []}, {"api_key": []}],
    Auth.KEY_OR_LINK: [{"api_key": []}, {}],
    Auth.CALLBACK_SIGNATURE: [{"callback_signature": []}],
    Auth.PROVIDER_WEBHOOK: [{"webhook_signature": []}, {"container_token": []}, {"callback_signature": []}],
    Auth.SANDBOX_SIGNATURE: [{"sandbox_signature": []}],
    Auth.CARD_SIGNATURE: [{"card_signature": []}],
    Auth.OPERATOR_READ: [{"operator_token": []}, {"session_token": []}, {"operator_session": []}],
    Auth.OPERATOR_ACT: [{"operator_token": []}, {"session_token": []}, {"operator_session": [], "csrf_token": []}],
}

_IN_PATHS: Final = {
    "account_id": "The account's id, `acct_…`.",
    "api_key_id": "The API key's id, `key_…`.",
    "asset_id": "The result's id, `asset_…`.",
    "file_id": "The file's id, `file_…`.",
    "event_id": "The event's id, `evt_…`.",
    "group": "The actors' group: `accounts`, `tasks` or `sign-in`.",
    "host": "The host of webhooks, with its port if the URL has one.",
    "key": "The actor's key in its group: the id of its account or task, or an e-mail address.",
    "member_id": "The process's id, `proc_…`.",
    "model_id": "The model's id, such as `studio/image-1`.",
    "order_id": "The payment order's id, `ord_…`.",
    "poison_id": "The message's id, `poi_…`.",
    "provider": "The media provider's name in the catalog.",
    "request_id": "The task's id, `task_…`.",
    "webhook_id": "The webhook's id, `wh_…`.",
    "review_case_id": "The review's id, `rev_…`.",
}
"""Descriptions of parameters in paths, by name."""

_WEBHOOK_HEADERS: Final = tuple(
    Parameter(name=name, location="header", description=description, required=True)
    for name, description in (
        ("webhook-id", "The event's id, the same at each delivery."),
        ("webhook-timestamp", "When this delivery was signed, in unix seconds."),
        ("webhook-signature", "`v1,<base64>`, one or more, separated by blanks, over `id.timestamp.body`."),
    )
)


def describe(
    routes: Sequence[Route],
    public_url: str,
    extensions: Sequence[Extension] = (),
    reference: Reference = CUSTOMERS,
    url: str | None = None,
) -> JsonSchema:
    """Return the OpenAPI document of these routes of the core and its extensions, served at ``url``.

    ``public_url`` is the customers' address, which links begin with; ``url`` None is the same.
    """
    url = url or public_url
    routes = reference.ordered(routes)
    forms = [each.error_form for each in extensions if each.error_form is not None]
    error_forms = [next((each for each in forms if route.path.startswith(each.below)), None) for route in routes]
    events: list[tuple[AnyEventKind, type[msgspec.Struct]]] = []
    if reference.has_events:
        events = [*((kind, TaskEvent) for kind in EVENT_KINDS), *PAYLOADS.items()]
    bodies = {route.body for route in routes if route.body is not None}
    replies = {shape for route in routes for shape in (route.reply, route.other_reply) if shape is not None}
    shapes: set[type[msgspec.Struct]] = {*bodies, *replies, ErrorResponse, *(shape for _, shape in events)}
    shapes |= {form.body for form in error_forms if form is not None}
    schemas = _components(shapes)
    received = structs_in(bodies)
    for shape in structs_in(shapes):
        _finish(schemas[shape.__name__], field_docs(shape), is_received=shape in received)
    recorded: JsonSchema = {}
    for file in (RECORDED, *(each.examples for each in extensions if each.examples is not None)):
        recorded |= json.loads(file.read_text(encoding="utf-8").replace(RECORDED_AT, public_url.rstrip("/")))
    schemas["ErrorResponse"]["examples"] = [recorded["ErrorResponse"]]
    paths: dict[str, JsonSchema] = defaultdict(dict)
    for route, form in zip(routes, error_forms, strict=True):
        paths[route.path][route.method.lower()] = _operation(route, url, schemas, recorded, form)
    tags = dict.fromkeys(reference.sections) | dict.fromkeys(route.tag for route in routes)
    used = {route.tag for route in routes} | ({_EVENTS} if events else set())
    schemes = {name for route in routes for each in _SECURITY[route.auth] for name in each}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": reference.title,
            "version": __version__,
            "description": reference.introduction(url),
        },
        "servers": [{"url": url}],
        # Each operation says what it needs; a page asks for these first.
        "security": [{name: []} for name in reference.credentials],
        "tags": [{"name": tag, "description": reference.sections.get(tag, "")} for tag in tags if tag in used],
        "paths": dict(paths),
        "webhooks": {kind: {"post": _webhook(kind, shape, recorded)} for kind, shape in events},
        "components": {
            "schemas": schemas,
            "headers": {
                "RequestId": {
                    "description": "The id of this request; quote it in support requests.",
                    "required": True,
                    "schema": {"type": "string", "pattern": "^req_[0-9a-f]{32}$"},
                }
            },
            "securitySchemes": {
                name: scheme for name, scheme in _security_schemes(public_url).items() if name in schemes
            },
        },
    }


def _security_schemes(public_url: str) -> JsonSchema:
    return {
        "session_token": _bearer("A session token, `hst_…`, that the sign-in returns."),
        "api_key": _bearer("An API key, `hk_…`, that its creation returns."),
        "operator_token": _bearer("The operators' token: the setting `OPERATOR_TOKEN`."),
        "operator_session": {
            "type": "apiKey",
            "in": "cookie",
            "name": "__Host-holdfast_operator" if public_url.startswith("https:") else "holdfast_operator",
            "description": "The session of an operator's browser.",
        },
        "csrf_token": _header(CSRF_HEADER, "The `csrf_token` of the operator's session."),
        "callback_signature": _header("X-Callback-Signature", "Made with the provider's callback secret."),
        "webhook_signature": _header("webhook-signature", "Made with the provider's own secret."),
        "container_token": _bearer("A container's own secret."),
        "sandbox_signature": _header("X-Sandbox-Payment-Signature", "Came with the sandbox order."),
        "card_signature": _header("Cardprovider-Signature", "Made with the card provider's secret."),
    }


def _bearer(description: str) -> JsonSchema:
    return {"type": "http", "scheme": "bearer", "description": description}


def _header(name: str, description: str) -> JsonSchema:
    return {"type": "apiKey", "in": "header", "name": name, "description": description}


def _components(shapes: set[type[msgspec.Struct]]) -> JsonSchema:
    return msgspec.json.schema_components(sorted(shapes, key=lambda each: each.__name__), ref_template=_REF)[1]


def _finish(schema: JsonSchema, docs: Mapping[str, str], *, is_received: bool) -> None:
    """Describe a struct and its fields, and state what generators of clients need.

    Some take a field with a ``default`` for required. In a request such a field may be omitted, so its description
    has the default; in a response it is always sent.
    """
    schema["description"] = _markdown(schema.get("description", ""))
    for name, field in schema["properties"].items():
        has_default, default = "default" in field, field.pop("default", None)
        if has_default and not is_received:
            schema["required"].append(name)
        of_type = [each.pop("description") for each in (field, *field.get("anyOf", ())) if "description" in each]
        if len(field.get("enum", ())) == 1:
            of_type.append(f"Always `{field['enum'][0]}`.")
        description = " ".join(_markdown(each) for each in (docs.get(name, ""), *of_type) if each)
        if default is not None:
            description += f" By default {json.dumps(default)}."
        field["description"] = description
        _complete(field)


def _complete(schema: Any) -> None:
    """Say that enumerations are of strings, and that objects may have any fields: JSON Schema leaves it open."""
    if isinstance(schema, dict):
        if "enum" in schema:
            schema.setdefault("type", "string")
        if schema.get("type") == "object":
            schema.setdefault("additionalProperties", True)
        for each in schema.values():
            _complete(each)
    elif isinstance(schema, list):
        for each in schema:
            _complete(each)


def _markdown(docstring: str) -> str:
    """Return a docstring as Markdown: without its indentation and double backquotes."""
    return cleandoc(docstring).replace("``", "`")


def _webhook(kind: AnyEventKind, shape: type[msgspec.Struct], recorded: JsonSchema) -> JsonSchema:
    """Describe the request sent to a customer's endpoint."""
    of_task = "An event of a task, sent to its `webhook_url` and to webhooks."
    return {
        "operationId": f"receive_{kind.replace('.', '_')}",
        "summary": kind,
        "description": of_task if shape is TaskEvent else "An event of an account, sent to its webhooks.",
        "tags": [_EVENTS],
        "security": [],
        # openapi-generator 7 finds the types of webhooks' parameters in Python only here.
        "parameters": [{**_parameter(header), "x-py-typing": "str"} for header in _WEBHOOK_HEADERS],
        "requestBody": {
            "required": True,
            "content": _json(_reference(shape), recorded.get(kind)),
            "x-py-typing": shape.__name__,
        },
        "responses": {"2XX": {"description": "Delivered. Any other status is retried; 410 ends the delivery."}},
    }


def example_body(route: Route, schemas: JsonSchema) -> object | None:
    """Return an example of the route's request body, None if it has none. ``schemas`` are the document's."""
    if route.raw_body_example is not None:
        return route.raw_body_example
    return None if route.body is None else example(schemas[route.body.__name__], schemas)


def example(schema: JsonSchema, schemas: JsonSchema) -> object:
    """Return an example of a schema: its own if it has one, else one made of its required properties' examples."""
    if "$ref" in schema:
        return example(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    if "examples" in schema:
        return schema["examples"][0]
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("type") == "object":
        properties = schema.get("properties", {})
        named = [name for name in properties if name in schema["required"] or "examples" in properties[name]]
        return {name: example(properties[name], schemas) for name in named}
    return {"boolean": True, "integer": 1, "array": []}.get(schema.get("type", ""), "…")


def error_codes(route: Route) -> list[str]:
    """Return every code a route may refuse with: those it declares, and those its declaration implies."""
    codes = [*route.errors]
    if route.refuses_parameters:
        codes.append("invalid_parameter")
    if all(each in route.parameters for each in PAGE):
        codes.append("invalid_cursor")
    codes += (*_EVERYWHERE, *_AUTH_CODES.get(route.auth, ()))
    if route.method != "GET":
        codes += _BODY_CODES
        if route.files_max:
            codes += _UPLOAD_CODES
        if not route.files_max or route.body is not None:
            codes.append("invalid_json")
    if route.body is not None:
        codes += ("missing_parameter", "invalid_parameter")
    if route.idempotent:
        codes += _IDEMPOTENCY_CODES
    if route.auth is not Auth.NONE or route.method != "GET":
        codes += _BEHIND_ROWS
    return list(dict.fromkeys(codes))


def _operation(
    route: Route, url: str, schemas: JsonSchema, recorded: JsonSchema, error_form: ErrorForm | None
) -> JsonSchema:
    body = example_body(route, schemas)
    form = _form(route) if route.form_files else None
    title, *more = re.split("[;:] ", route.summary, maxsplit=1)
    opening = [f"{each[0].upper()}{each[1:]}." for each in more]
    operation: JsonSchema = {
        "operationId": route.handler.__name__,
        "summary": title,
        "description": "\n\n".join((*opening, _markdown(route.handler.__doc__ or ""), *_who_may(route))),
        "tags": [route.tag],
        "security": _SECURITY[route.auth],
        "parameters": [_parameter(each) for each in (*_path_parameters(route.path), *route.parameters)],
        "responses": _responses(route, recorded, error_form),
        "x-codeSamples": code_samples(route, url, body, form),
    }
    if route.body is not None or route.raw_body_bytes_max is not None:
        schema = {"type": "object", "additionalProperties": True} if route.body is None else _reference(route.body)
        operation["requestBody"] = {
            "required": not route.body_optional,
            "content": _json(schema, body),
        }
    if form is not None:
        bodies = operation.setdefault("requestBody", {"required": True, "content": {}})
        # First: of several bodies, generators of TypeScript take the first, and import a form that comes later from
        # where they write none.
        bodies["content"] = {_FORM: {"schema": form, **_encoding(form)}, **bodies["content"]}
        if route.form is None:
            bodies["content"]["application/octet-stream"] = {"schema": _FILE}
    return operation


def _who_may(route: Route) -> list[str]:
    """Say which API keys may call a route, if not every one."""
    if route.auth is Auth.SESSION:
        return ["Only for sessions: no scope of an API key opens it."]
    if route.scope is None:
        return []
    needed = [route.scope, *([TASKS_READ] if route.returns_results and route.scope != TASKS_READ else [])]
    if len(needed) == 1:
        included = INCLUDED.get(route.scope)
        also = "" if included is None else f", which `{included}` includes"
        return [f"An API key needs the scope `{route.scope}`{also}."]
    return [f"An API key needs the scopes {' and '.join(f'`{each}`' for each in needed)}."]


def _encoding(form: JsonSchema) -> JsonSchema:
    """Say that an object in a form is sent as a part for each key: ``metadata[key]``."""
    objects = [name for name, schema in form["properties"].items() if schema.get("type") == "object"]
    return {"encoding": {name: {"style": "deepObject", "explode": True} for name in objects}} if objects else {}


def _form(route: Route) -> JsonSchema:
    """Return the schema of a form: its files, and its fields, in which null cannot be sent."""
    properties = {name: {**_FILE, "description": text} for name, text in route.form_files.items()}
    schema = {"type": "object", "required": [] if route.body else list(properties)[:1], "properties": properties}
    if route.form is None:
        return schema
    fields = _components({route.form})[route.form.__name__]
    _finish(fields, field_docs(route.form), is_received=True)
    for each in fields["properties"].values():
        sent = [branch for branch in each.pop("anyOf", ()) if branch != {"type": "null"}]
        each.update(sent[0] if len(sent) == 1 else {"anyOf": sent} if sent else {})
    schema["required"] += fields["required"]
    schema["properties"] = properties | fields["properties"]
    return {**schema, "additionalProperties": {"type": "string", "description": "A field of the model's own."}}


def _responses(route: Route, recorded: JsonSchema, form: ErrorForm | None) -> JsonSchema:
    responses: JsonSchema = {}
    by_status: dict[int, list[str]] = defaultdict(list)
    error = (
        _json(_reference(ErrorResponse)) if form is None else {form.content_type: {"schema": _reference(form.body)}}
    )
    for code in error_codes(route):
        by_status[ERROR_TABLE[code].status if form is None else form.status_of(code)].append(code)
    for status, codes in by_status.items():
        phrase = HTTPStatus(status).phrase
        responses[str(status)] = _response(f"{phrase}: " + ", ".join(f"`{code}`" for code in codes), error)
    if route.reply is not None:
        for status in route.statuses:
            responses[str(status)] = _response(
                HTTPStatus(status).phrase,
                _json(
                    _either(route.reply, ErrorResponse if status >= 400 else route.other_reply),
                    recorded.get(route.reply.__name__) if status < 300 else None,
                ),
            )
    for media in route.media:
        content = {kind: _media_content(media, kind, recorded) for kind in media.content_types}
        existing = responses.get(str(media.status), {"content": {}})["content"]
        responses[str(media.status)] = _response(media.description, existing | content)
    return dict(sorted(responses.items()))


def _media_content(media: Media, content_type: str, recorded: JsonSchema) -> JsonSchema:
    if media.schema_type == "object":
        return {"schema": {"type": "object", "additionalProperties": True}}
    if not content_type.startswith("text/"):
        return {"schema": _FILE}
    text = media.example
    if not isinstance(text, str):
        events = [(name, json.dumps(recorded[shape.__name__])) for name, shape in text.items()]
        text = "".join(f"event: {name}\ndata: {data}\n\n" for name, data in events)
    examples = {"examples": {"Example": {"value": text}}} if text else {}
    # Of a stream any schema is right: in OpenAPI 3.1 some take it for that of the whole text, others of each event.
    # 3.2 tells them apart, but generators refuse it.
    return {"schema": {} if content_type == EVENT_STREAM else {"type": "string"}, **examples}


def _response(description: str, content: JsonSchema) -> JsonSchema:
    headers = {"X-Request-Id": {"$ref": "#/components/headers/RequestId"}}
    return {"description": description, "headers": headers, "content": content}


def _parameter(parameter: Parameter) -> JsonSchema:
    return {
        "name": parameter.name,
        "in": parameter.location,
        "description": parameter.description,
        "required": parameter.required,
        "schema": parameter.schema,
        **({"style": "deepObject", "explode": True} if parameter.has_keys else {}),
    }


def _path_parameters(path: str) -> Iterable[Parameter]:
    for name in re.findall(r"\{(\w+)\}", path):
        yield Parameter(
            name=name,
            location="path",
            description=_IN_PATHS.get(name, f"The {name.replace('_', ' ')}."),
            schema={"type": "string", "minLength": 1},
            required=True,
        )


def _json(schema: JsonSchema, example: object | None = None) -> JsonSchema:
    examples = {} if example is None else {"examples": {"Example": {"value": example}}}
    return {"application/json": {"schema": schema, **examples}}


def _either(shape: type[msgspec.Struct], other: type[msgspec.Struct] | None) -> JsonSchema:
    return _reference(shape) if other is None else {"anyOf": [_reference(shape), _reference(other)]}


def _reference(shape: type[msgspec.Struct]) -> JsonSchema:
    return {"$ref": _REF.format(name=shape.__name__)}
