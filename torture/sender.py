"""Sends requests to any process of the service and counts the responses."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2
import trio

from .record import Witness

ANSWER_S_MAX = 25.0
"""A client's timeout; the service responds within its ask deadline of ten seconds, or with 503."""
PAUSE_S = 0.1


@dataclass
class Sender:
    """Sends requests to any of the service's processes. ``addresses`` may change while clients run."""

    witness: Witness
    addresses: Callable[[], Sequence[str]]
    rng: random.Random
    http: httpx2.AsyncClient

    async def send(
        self, method: str, path: str, *, body: Any = None, token: str = "", headers: dict[str, str] | None = None
    ) -> httpx2.Response | None:
        """Send one request; None without a response: its outcome is unknown."""
        sent = dict(headers or {})
        if token:
            sent["Authorization"] = f"Bearer {token}"
        begun = trio.current_time()
        answer = None
        with trio.move_on_after(ANSWER_S_MAX):
            try:
                url = self.rng.choice(self.addresses()) + path
                answer = await self.http.request(method, url, json=body, headers=sent)
            except (httpx2.TransportError, httpx2.DecodingError):
                answer = None
        if answer is None:
            self.witness.unknown += 1
            await trio.sleep(PAUSE_S)
            return None
        self.witness.slowest_answer_s = max(self.witness.slowest_answer_s, trio.current_time() - begun)
        self.witness.answers += 1
        self.witness.unavailable += answer.status_code == 503
        return answer


def code_of(answer: httpx2.Response) -> str:
    """Return the error code of a response; empty if it has none."""
    try:
        return str(answer.json()["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return ""
