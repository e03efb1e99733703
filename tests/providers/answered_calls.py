"""Providers whose calls are answered by a function, in place of a server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

from holdfast.providers.media.cog import CogProvider
from holdfast.providers.media.replicate import ReplicateProvider


class Answer(NamedTuple):
    """A response without headers, and a body of no meaning."""

    status: int

    def header(self, name: str) -> None:
        """Return None, for any header."""

    async def read(self, limit_bytes: int) -> bytes:
        return b"{}"


def serve(provider: CogProvider | ReplicateProvider, answer: Callable[[str], Awaitable[int]]) -> None:
    """Let ``answer`` return the status for a path, or raise what a connection raises."""

    @asynccontextmanager
    async def exchange(_endpoint: object, request: bytes, *, is_repeatable: bool) -> AsyncIterator[Answer]:
        assert is_repeatable or request.startswith(b"POST ")
        yield Answer(await answer(request.split()[1].decode()))

    pool: Any = SimpleNamespace(exchange=exchange)
    provider._client._pool = pool
