"""What a distribution beside the core adds to the front end, and the distributions that are installed.

A distribution names its :class:`Extension` in its metadata, as an entry point of the group ``holdfast.extensions``.
The core imports none of them, and serves without those that are not installed.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from importlib.metadata import entry_points
from importlib.resources.abc import Traversable
from types import ModuleType
from typing import Final, TypeAlias

import msgspec
from quart import Response

from holdfast.http.kit.calls import Method
from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.kit.errors import RefusalResponse
from holdfast.http.kit.requests import HoldfastRequest
from holdfast.http.kit.responses import refusal_response
from holdfast.http.kit.routes import Route, RouteTable
from holdfast.ledger.links import PublicUrls
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.task import Task, WebhookFormat

GROUP: Final = "holdfast.extensions"
EXTENSIONS: Final = {
    "compat": "APIs for OpenAI's and Replicate's clients, and for agents",
    "console": "pages for operators and accounts",
}
"""What each extension of this repository is for; its distribution is ``holdfast-`` and its name."""

WebhookBody: TypeAlias = Callable[[PublicUrls, Task, datetime], bytes]
"""Encodes a task as it was at an event, with links that are signed as of a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorForm:
    """The form of the errors of all paths ``below`` one, which the clients of another API read.

    ``body`` is its type, ``status_of`` the status of a code in it. ``convert`` returns a refusal in this form.
    """

    below: str
    body: type[msgspec.Struct]
    content_type: str
    status_of: Callable[[str], int]
    convert: Callable[[RefusalResponse], RefusalResponse]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPage:
    """What is served and is no endpoint: the OpenAPI document does not describe it. Its errors are its own.

    ``refuse`` returns the response to a request that no cell can serve now.
    """

    method: Method
    path: str
    serve: Callable[[Dependencies, HoldfastRequest, dict[str, str]], Awaitable[Response]]
    refuse: Callable[[Refusal], Response] = refusal_response
    needs_session: bool = False
    """Whether it is of the account whose session the cookie has."""

    @property
    def name(self) -> str:
        """The page's name in metrics."""
        return f"{self.method} {self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """What one distribution adds to the front end.

    ``routes`` are endpoints, which the OpenAPI document describes, with the recorded responses of the file
    ``examples``, by the type of their body. ``operators_pages`` are served on a listener for operators alone,
    where ``pages`` of the same paths are not. ``bases`` are what the base URLs of its clients end in.
    ``webhook_bodies`` encode the events of tasks that were created with one of these formats. What it remembers is
    in :meth:`Dependencies.state`.
    """

    name: str
    routes: tuple[Route, ...] = ()
    pages: tuple[ServedPage, ...] = ()
    operators_pages: tuple[ServedPage, ...] = ()
    examples: Traversable | None = None
    bases: tuple[str, ...] = ()
    error_form: ErrorForm | None = None
    webhook_bodies: Mapping[WebhookFormat, WebhookBody] = field(default_factory=dict)


@functools.cache
def installed_extensions() -> tuple[Extension, ...]:
    """Return the extensions of all installed distributions, by their names."""
    found = [each.load() for each in sorted(entry_points(group=GROUP), key=lambda each: each.name)]
    assert all(isinstance(each, Extension) for each in found), f"an entry point of {GROUP} names something else"
    return tuple(found)


def what_is_lacking() -> dict[str, str]:
    """Return what extensions that are not installed are for, by the distribution that has each."""
    installed = {each.name for each in installed_extensions()}
    return {f"holdfast-{name}": purpose for name, purpose in EXTENSIONS.items() if name not in installed}


def routes_below(package: str) -> tuple[Route, ...]:
    """Return the routes of every module of a package whose ``route`` is a route table, by the modules' names."""
    tables = (getattr(module, "route", None) for module in modules_below(package))
    return tuple(route for table in tables if isinstance(table, RouteTable) for route in table.routes)


def modules_below(package: str) -> list[ModuleType]:
    """Return the modules of a package, by their names."""
    names = sorted(
        each.name for each in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}.")
    )
    return [importlib.import_module(name) for name in names]
