"""Providers whose calls are answered by a function, in place of a server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import trio

from holdfast.providers.media.cog import CogProvider
from holdfast.providers.media.replicate import ReplicateProvider


class Answer(NamedTuple):
    """A response without headers, and a body of no meaning."""

    status: int

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_: object) -> None:
        """End the exchange."""

    def header(self, name: str) -> None:
        """Return None, for any header."""

    async def read(self, limit_bytes: int) -> bytes:
        return b"{}"


def serve(provider: CogProvider | ReplicateProvider, answer: Callable[[str], Awaitable[int]]) -> None:
    """Let ``answer`` return the status for a path, or raise what a connection raises."""

    async def exchange(_endpoint: object, request: bytes, *, is_repeatable: bool, ends_at: float) -> Answer:
        assert is_repeatable or request.startswith(b"POST ")
        with trio.fail_at(ends_at):
            return Answer(await answer(request.split()[1].decode()))

    pool: Any = SimpleNamespace(exchange=exchange)
    provider._client._pool = pool
