"""Sites: the pages below one path, with what they have in common. There are the operators' and the account's."""

from __future__ import annotations

import functools
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

from jinja2 import Environment

from holdfast.http.kit.errors import row_of
from holdfast.http.kit.extensions import modules_below
from holdfast.ledger.refusals import Refusal
from holdfast_console.forms import SentForm
from holdfast_console.rendering import Again, environment
from holdfast_console.views import PageCall, View, ViewHandler, ViewResult, ViewTable, Visit


class FoundPage(NamedTuple):
    """A page, with the parameters of its path."""

    handler: ViewHandler
    path: Mapping[str, str]


class Site(ABC):
    """The pages of one package, at and below ``root``.

    ``folder`` has its templates, which may use the global ``names``.
    """

    def __init__(self, package: str, root: str, folder: str, **names: object) -> None:
        self._package = package
        self.root = root
        self.sign_in_path = f"{root}/sign-in"
        self._folder, self._names = folder, names

    @functools.cached_property
    def views(self) -> tuple[View, ...]:
        """The views of all modules, in the order of the modules' names."""
        tables = (getattr(module, "view", None) for module in modules_below(self._package))
        return tuple(view for table in tables if isinstance(table, ViewTable) for view in table.views)

    @functools.cached_property
    def templates(self) -> Environment:
        """The site's templates."""
        return environment(self._folder, self.root, **self._names)

    def page_at(self, address: str) -> FoundPage | None:
        """Return the page at an address, which may have a query; None if there is none below the root."""
        path = address.partition("?")[0]
        for view in self.views:
            found = re.fullmatch(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(view.path)), path)
            if found and view.method == "GET" and path.startswith(self.root):
                return FoundPage(view.handler, found.groupdict())
        return None

    @abstractmethod
    async def identify(self, call: PageCall) -> Refusal | None:
        """Find out who makes a request, unless its view is for everybody. Refuses changes of other sites' pages."""

    @abstractmethod
    async def frame(self, visit: Visit) -> Mapping[str, Any]:
        """Return what all pages show to who is signed in, and how the script keeps those current that live."""

    def sign_in_again(self, _visit: Visit, /) -> ViewResult | None:
        """Return what is shown for a form without a valid session, if it is kept until there is one."""
        return None


def again_of(site: Site, visit: Visit, refusal: Refusal) -> Again | None:
    """Return the page that a refused form is on, filled in as it was; None if that is no page of the site."""
    address = visit.return_to
    if visit.call.request.method != "POST" or site.page_at(address) is None or visit.call.sent_form is not None:
        return None
    sent_form = SentForm(visit.call.request.path, visit.form, refusal.message, refusal.param, refusal.code)
    return Again(address, sent_form, row_of(refusal.code).status)
