"""Sending requests whose cancellation leaves nothing behind.

httpx iterates a request's body as an asynchronous generator, which stands still while the bytes are written. A
cancellation at that moment leaves the generator to the garbage collector, and trio complains of it. A body that is
no generator has nothing to leave.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import httpx


class PlainBody(httpx.AsyncByteStream):
    """Bytes to send, iterated without a generator."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def __aiter__(self) -> AsyncIterator[bytes]:
        """One block, then the end."""
        return _OneBlock(self._content)


class _OneBlock:
    def __init__(self, content: bytes) -> None:
        self._left = [content] if content else []

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if not self._left:
            raise StopAsyncIteration
        return self._left.pop()


@asynccontextmanager
async def exchange(
    client: httpx.AsyncClient, method: str, url: str, *, content: bytes | None, headers: Mapping[str, str]
) -> AsyncIterator[httpx.Response]:
    """Send a request and open its answer, whose body is yet to be read. Raises what httpx raises."""
    request = client.build_request(method, url, content=content, headers=dict(headers))
    request.stream = PlainBody(content or b"")
    answer = await client.send(request, stream=True)
    try:
        yield answer
    finally:
        await answer.aclose()
