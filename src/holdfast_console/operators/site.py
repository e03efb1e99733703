"""The operators' pages, on the operators' listener if there is one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.http.kit.operators import OPERATOR_COOKIE
from holdfast.ledger.refusals import Refusal
from holdfast_console.operators.action_forms import form_of
from holdfast_console.operators.frame import Frame, section_of
from holdfast_console.sites import Site
from holdfast_console.views import PageCall, Visit

LIVE_S: Final = 2
"""How often the script asks for a page again."""


class OperatorsSite(Site):
    """Pages that an operator sees."""

    async def identify(self, call: PageCall) -> Refusal | None:
        """Identify the operator."""
        return await call.identify_operator()

    async def frame(self, visit: Visit) -> Mapping[str, Any]:
        """Return the navigation with what waits, and the operator."""
        deps, request = visit.call.deps, visit.call.request
        cookie = OPERATOR_COOKIE.read(request.cookies, deps.settings)
        return {
            "section": section_of(request.path),
            "navigation": await deps.state(Frame).navigation(deps),
            "operator": visit.call.operator,
            "csrf_token": "" if cookie is None else OPERATOR_COOKIE.csrf_token(cookie, deps.settings),
            "is_production": deps.settings.is_production,
            "live": {"live-s": LIVE_S},
        }


SITE: Final = OperatorsSite("holdfast_console.operators", "/ops", "operators", form_of=form_of)
