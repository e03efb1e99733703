"""Pages from templates. Everything is escaped, and a name that a template does not find is an error."""

from __future__ import annotations

import functools
import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from importlib.resources import files
from typing import Final, NamedTuple, TypeAlias

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from quart import Response

from holdfast.http.kit.values import shown
from holdfast.ledger.public_types import noun
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import format_amount
from holdfast_console import formats
from holdfast_console.forms import Message, SentForm

CONTENT_TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_FOLDER: Final = files("holdfast_console") / "static"


class StaticFile(NamedTuple):
    """A file as it is served."""

    content: bytes
    content_type: str


@functools.cache
def static_files() -> dict[str, StaticFile]:
    """Return all files, by the names they are served under: ``pages.css`` is ``pages-0123456789ab.css``."""
    found = {}
    for file in sorted(_FOLDER.iterdir(), key=lambda each: each.name):
        stem, _, extension = file.name.rpartition(".")
        content = file.read_bytes()
        name = f"{stem}-{hashlib.sha256(content).hexdigest()[:12]}.{extension}"
        found[name] = StaticFile(content, CONTENT_TYPES[extension])
    return found


@functools.cache
def static_path(root: str, name: str) -> str:
    """Return the path of a file: ``pages.css`` is at ``/ops/static/pages-0123456789ab.css`` below ``/ops``."""
    stem, _, extension = name.rpartition(".")
    served = next(each for each in static_files() if each.startswith(f"{stem}-") and each.endswith(f".{extension}"))
    return f"{root}/static/{served}"


def static_response(name: str) -> Response | Refusal:
    """Return a file under its name with a hash: what that names never changes. Refuses with ``route_not_found``."""
    found = static_files().get(name)
    if found is None:
        return Refusal(code="route_not_found", message=f"The file {shown(name)} does not exist.")
    headers = {"Cache-Control": "public, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff"}
    return Response(found.content, content_type=found.content_type, headers=headers)


_POLICY: Final[Mapping[str, str]] = {
    "default-src": "'none'",
    **dict.fromkeys(("script-src", "style-src", "img-src", "media-src", "connect-src", "form-action"), "'self'"),
    "base-uri": "'none'",
    "frame-ancestors": "'none'",
}


def policy_of(sources: Mapping[str, str]) -> str:
    """Return a page's Content-Security-Policy; ``sources`` are further ones, by directive."""
    named = {**_POLICY, **{name: f"{_POLICY.get(name, '')} {more}".strip() for name, more in sources.items()}}
    return "; ".join(f"{name} {allowed}" for name, allowed in named.items())


HEADERS: Final = {
    "Content-Security-Policy": policy_of({}),
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    # Not no-referrer: browsers would then send forms with "Origin: null".
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


Headers: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Html:
    """A page to render: a template below ``templates``, and its values. The script keeps a live one current.

    ``live_s`` is how often it does, for what the site has no events of. ``sources`` are what else the page's
    Content-Security-Policy allows, by directive.
    """

    template: str
    values: Mapping[str, object] = field(default_factory=dict)
    status: int = 200
    is_live: bool = False
    live_s: int | None = None
    headers: Headers = ()
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Redirect:
    """A redirect to a path of the pages, with a message to show there."""

    path: str
    message: Message | None = None
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class Again:
    """The page at ``address``, with a form of it as it was filled in, and why it was not done."""

    address: str
    sent_form: SentForm
    status: int = 200
    headers: Headers = ()


def environment(folder: str, root: str, **more: object) -> Environment:
    """Return the environment of the templates in a folder and of the common ones, with ``more`` global names."""
    made = Environment(
        loader=ChoiceLoader([PackageLoader("holdfast_console", f"templates/{each}") for each in (folder, "")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {
        "tone": formats.tone_of,
        "words": formats.words_of,
        "duration": formats.duration_text,
        "noun": noun,
        "number": formats.number_text,
        "outside": formats.outside_text,
        "short": formats.short_text,
        "json": formats.json_text,
        "exact": formats.exact_text,
        "amount": format_amount,
    }
    made.globals |= {
        "root": root,
        "static": functools.partial(static_path, root),
        "identifier": formats.identifier,
        "new_key": _new_key,
        **more,
    }
    made.tests["refused"] = lambda value: isinstance(value, Refusal)
    return made


def _new_key() -> str:
    """Return the Idempotency-Key of a form, so that a form sent twice acts once."""
    return secrets.token_urlsafe(16)


def html_response(templates: Environment, page: Html, /, *, now: datetime, **values: object) -> Response:
    """Render a page. ``values`` are those of every page."""
    template = templates.get_template(page.template)
    text = template.render(
        **values,
        **page.values,
        ago=lambda at: formats.moment(at, now),
        stamp=lambda at: formats.stamp(at, now),
    )
    headers = {**HEADERS, "Content-Security-Policy": policy_of(page.sources)}
    response = Response(text, status=page.status, content_type="text/html; charset=utf-8", headers=headers)
    for name, value in page.headers:
        response.headers.add(name, value)
    return response
