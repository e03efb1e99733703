"""Read a response's body up to a limit."""

from __future__ import annotations

from collections.abc import AsyncIterable

import trio

from holdfast.providers.outbound.faults import BodyTooLarge


async def drain(blocks: AsyncIterable[bytes], limit_bytes: int) -> bytes:
    """Read ``blocks`` to their end and return them.

    Raises :class:`BodyTooLarge` for more than ``limit_bytes``. Reading is then ended by cancelling it from within:
    the body is a chain of asynchronous generators, and one that is not read to its end would be closed by the
    garbage collector.
    """
    read = bytearray()
    with trio.CancelScope() as reading:
        async for block in blocks:
            if len(read) <= limit_bytes:
                read += block
            if len(read) > limit_bytes:
                reading.cancel()
    if len(read) > limit_bytes:
        raise BodyTooLarge(limit_bytes)
    return bytes(read)
