"""Reading no more of an answer's body than was allowed for."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable

import trio


class BodyTooLarge(Exception):
    """More bytes came than the limit."""


async def drain(
    blocks: AsyncIterable[bytes], limit_bytes: int, take: Callable[[bytes], Awaitable[None]] | None = None
) -> bytes:
    """Read ``blocks`` to their end; return them, or hand each to ``take`` and return nothing.

    Raises :class:`BodyTooLarge` once more than ``limit_bytes`` came, and whatever ``take`` raises. The reading is
    then ended by cancelling it from within: an HTTP body is a chain of asynchronous generators, and leaving one
    half read would leave its closing to the garbage collector. ``take`` is shielded for the same reason.
    """
    kept = bytearray()
    received = 0
    trouble: Exception | None = None
    with trio.CancelScope() as reading:
        async for block in blocks:
            if trouble is not None:
                continue
            received += len(block)
            if received > limit_bytes:
                trouble = BodyTooLarge(limit_bytes)
            elif take is None:
                kept += block
            else:
                try:
                    with trio.CancelScope(shield=True):
                        await take(block)
                except Exception as fault:
                    trouble = fault
            if trouble is not None:
                reading.cancel()
    if trouble is not None:
        raise trouble
    return bytes(kept)
