"""Read a response's body up to a limit."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable

import trio


class BodyTooLarge(Exception):
    """The body is larger than the limit."""


async def drain(
    blocks: AsyncIterable[bytes], limit_bytes: int, take: Callable[[bytes], Awaitable[None]] | None = None
) -> bytes:
    """Read ``blocks`` to their end; return them, or pass each to ``take`` and return nothing.

    Raises :class:`BodyTooLarge` for more than ``limit_bytes``, and what ``take`` raises. Reading is then ended by
    cancelling it from within: a body is a chain of asynchronous generators, and one that is not read to its end
    would be closed by the garbage collector. ``take`` is shielded for the same reason.
    """
    read = bytearray()
    received = 0
    error: Exception | None = None
    with trio.CancelScope() as reading:
        async for block in blocks:
            if error is not None:
                continue
            received += len(block)
            if received > limit_bytes:
                error = BodyTooLarge(limit_bytes)
            elif take is None:
                read += block
            else:
                try:
                    with trio.CancelScope(shield=True):
                        await take(block)
                except Exception as fault:
                    error = fault
            if error is not None:
                reading.cancel()
    if error is not None:
        raise error
    return bytes(read)
