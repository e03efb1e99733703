"""An operator's browser on the pages of the API in this process."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Final
from urllib.parse import urlencode

import httpx2
from tests.strict_html import StrictHtml

from holdfast.telemetry.costs import Costs
from holdfast_console.forms import Message, read_message

from .stage import Stage

SAME_ORIGIN: Final[Mapping[str, str]] = MappingProxyType(
    {"Host": "localhost", "Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}
)
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@dataclass
class PageReader:
    """A browser with its headers, the cookie of a session among them once it has signed in."""

    stage: Stage
    headers: Mapping[str, str]
    ours: ClassVar[re.Pattern[str]] = re.compile(r"/ops\b|#|(https://holdfast\.example)?/v2/assets/")
    """What a page may link to."""

    async def sign_in(self) -> None:
        """Sign in as the form does."""
        token = self.stage.deps.settings.operator_token
        response = await self.send("/ops/sign-in", token=token, return_to="/ops/reviews")
        assert (response.status_code, response.headers["Location"]) == (303, "/ops/reviews")
        self.headers = {**self.headers, "Cookie": response.headers["Set-Cookie"].partition(";")[0]}

    async def get(self, path: str, **query: str) -> httpx2.Response:
        return await self.stage.call("GET", path + ((query and "?" + urlencode(query)) or ""), headers=self.headers)

    async def read(self, path: str, status: int = 200) -> StrictHtml:
        """Read a page that must be valid, and safe for a browser."""
        response = await self.get(path)
        assert response.status_code == status, response.text
        check_headers(response)
        page = StrictHtml(response.text)
        assert page.faults == [], page.faults
        assert [link for link in page.links if not self.ours.match(link)] == []
        return page

    async def send(self, path: str, changed: dict[str, str] | None = None, /, **fields: str) -> httpx2.Response:
        """Send a form; ``changed`` are headers."""
        headers = {**FORM, **self.headers, **(changed or {})}
        return await self.stage.call("POST", path, headers=headers, content=urlencode(fields))

    async def hidden(self, path: str, name: str = "csrf_token") -> str:
        """The value of a page's hidden field."""
        found = re.search(rf'name="{name}" value="([^"]+)"', (await self.get(path)).text)
        assert found is not None
        return found.group(1)


def check_headers(response: httpx2.Response) -> None:
    assert response.headers["Cache-Control"] == "no-store"
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    policy = response.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy


def message_of(response: httpx2.Response) -> Message:
    """The message that the next page shows."""
    message = read_message(response.headers["Set-Cookie"].partition(";")[0].partition("=")[2])
    assert message is not None
    return message


def answer_controls(stage: Stage, **answers: Any) -> Any:
    """Let the control actors of one process answer by the command's name."""
    controls: Any = stage.deps.operating.controls
    answers = {"ReadCosts": Costs({}, {}), **answers}
    controls.answer = lambda command: answers[type(command).__name__]
    return controls
