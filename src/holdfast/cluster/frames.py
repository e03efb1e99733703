"""Frames, and the stream that carries them between two members.

On the wire a batch of frames is a length in four bytes and a msgpack array. What is sent while a batch is being
written goes with the next one, so that one writer and one reader serve any number of asks without a task for each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import msgspec
import trio

from holdfast.persistence.journal.changes import Change

PROTOCOL: Final = 2
"""The version of frames and of the messages in them. Members of different versions open no links."""

LENGTH_BYTES: Final = 4
BATCH_BYTES: Final = 256 * 1024
"""A batch takes no further frame once it is as large as this."""
BODY_BYTES_MAX: Final = 40 * 1024 * 1024
"""Above the largest body of a request that settings allow: a number takes up to nine bytes here, in JSON four."""
READ_BYTES_MAX: Final = BATCH_BYTES + BODY_BYTES_MAX + 64 * 1024
HELLO_BYTES_MAX: Final = 1024
"""The largest batch of a side that has not introduced itself."""
HELLO_S: Final = 5.0
"""How long the other side may take to introduce itself, TLS included."""
QUEUE_BYTES_MAX: Final = 64 * 1024 * 1024
SEND_TIMEOUT_S: Final = 10.0
_FRAME_BYTES = 100
"""Added to the size of a body, to bound the number of frames that have none."""
_RECEIVE_BYTES = 64 * 1024


class _Frame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The base of all frames."""


class Hello(_Frame, frozen=True, tag=0):
    """The first frame in each direction. ``cluster`` is equal for all members with the same secrets."""

    protocol: int
    cluster: str
    member_id: str


class AskFrame(_Frame, frozen=True, tag=1):
    """A command of the type ``name`` to the actor ``key`` of a group; it is answered under its number."""

    number: int
    group: str
    key: str
    name: str
    body: bytes
    within_s: float
    traceparent: str | None = None
    fails_fast: bool = False


class TellFrame(_Frame, frozen=True, tag=2):
    """A command that expects no reply."""

    group: str
    key: str
    name: str
    body: bytes
    traceparent: str | None = None


class Reply(_Frame, frozen=True, tag=3):
    """The reply to an ask, in one of the forms of :mod:`holdfast.cluster.codec`."""

    number: int
    form: int
    body: bytes


class Fault(_Frame, frozen=True, tag=4):
    """The fault that ended an ask."""

    number: int
    name: str
    message: str
    retry_after_s: float = 1.0


class Ping(_Frame, frozen=True, tag=5):
    """Answered at once with a pong."""


class Pong(_Frame, frozen=True, tag=6):
    """The answer to a ping."""


class MembersChanged(_Frame, frozen=True, tag=7):
    """The sender's row has changed: read the members again."""


class RowsChanged(_Frame, frozen=True, tag=8):
    """The sender has committed these changes. ``missed``: it may have others, of any rows, that it did not send."""

    changes: Sequence[Change]
    missed: bool = False


Frame: TypeAlias = Hello | AskFrame | TellFrame | Reply | Fault | Ping | Pong | MembersChanged | RowsChanged

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Frame]).decode


class MalformedFrames(Exception):
    """The other side sent something that is not a batch of frames, or a frame that does not belong here."""


class QueueFull(Exception):
    """Too many bytes wait to be written."""


class FrameStream:
    """Frames over a byte stream. ``take`` handles each frame at once and does not wait."""

    def __init__(self, stream: trio.abc.Stream, take: Callable[[Frame], None]) -> None:
        self._stream = stream
        self._take = take
        self._queue: list[Frame] = []
        self._queued_bytes = 0
        self._writer: trio.lowlevel.Task | None = None
        self._flushed: trio.Event | None = None
        self._sending_since: float | None = None
        self.read_bytes_max = HELLO_BYTES_MAX
        """The largest batch that is read; to be raised once the other side has introduced itself."""
        self.received_at = -math.inf
        """When the last bytes arrived (trio's clock)."""

    def send(self, frame: Frame) -> None:
        """Queue a frame. Raises :class:`QueueFull`."""
        size = _size_bytes(frame)
        if self._queued_bytes + size > QUEUE_BYTES_MAX:
            raise QueueFull(f"{self._queued_bytes} bytes wait to be sent")
        self._queue.append(frame)
        self._queued_bytes += size
        if self._writer is not None:
            trio.lowlevel.reschedule(self._writer)
            self._writer = None

    def is_stalled(self) -> bool:
        """Whether the other side has not read for :data:`SEND_TIMEOUT_S`."""
        since = self._sending_since
        return since is not None and trio.current_time() - since > SEND_TIMEOUT_S

    def unsent(self) -> list[Frame]:
        """Return the frames of which no byte has been written."""
        return list(self._queue)

    async def flush(self) -> None:
        """Wait until all frames are written."""
        if self._queue or self._writer is None:
            self._flushed = self._flushed or trio.Event()
            await self._flushed.wait()

    async def run(self) -> None:
        """Read and write until either side closes the stream, and close it.

        Raises :class:`MalformedFrames`.
        """
        malformed: list[MalformedFrames] = []
        async with self._stream, trio.open_nursery() as nursery:
            nursery.start_soon(self._write, nursery.cancel_scope)
            try:
                await self._read()
            except MalformedFrames as exc:
                malformed.append(exc)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass
            nursery.cancel_scope.cancel()
        if malformed:
            raise malformed[0]

    async def _write(self, scope: trio.CancelScope) -> None:
        try:
            while True:
                if not self._queue:
                    await self._wait_for_frames()
                batch = self._next_batch()
                self._sending_since = trio.current_time()
                await self._stream.send_all(len(batch).to_bytes(LENGTH_BYTES) + batch)
                self._sending_since = None
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            scope.cancel()

    async def _wait_for_frames(self) -> None:
        self._writer = trio.lowlevel.current_task()
        if self._flushed is not None:
            self._flushed.set()
            self._flushed = None

        def abort(_: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
            self._writer = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def _next_batch(self) -> bytes:
        """Take frames from the queue, all of them unless they are large."""
        if self._queued_bytes <= BATCH_BYTES:
            taken, self._queue, self._queued_bytes = self._queue, [], 0
            return _encode(taken)
        size = count = 0
        for frame in self._queue:
            if size >= BATCH_BYTES:
                break
            size += _size_bytes(frame)
            count += 1
        taken = self._queue[:count]
        del self._queue[:count]
        self._queued_bytes -= size
        return _encode(taken)

    async def _read(self) -> None:
        buffer = bytearray()
        while True:
            data = await self._stream.receive_some(_RECEIVE_BYTES)
            if not data:
                return
            self.received_at = trio.current_time()
            buffer += data
            start = 0
            while len(buffer) - start >= LENGTH_BYTES:
                length = int.from_bytes(buffer[start : start + LENGTH_BYTES])
                if length > self.read_bytes_max:
                    raise MalformedFrames(f"a batch of {length} bytes")
                end = start + LENGTH_BYTES + length
                if len(buffer) < end:
                    break
                try:
                    frames = _decode(memoryview(buffer)[start + LENGTH_BYTES : end])
                except msgspec.DecodeError as exc:
                    raise MalformedFrames(str(exc)) from None
                for frame in frames:
                    self._take(frame)
                start = end
            del buffer[:start]


def _size_bytes(frame: Frame) -> int:
    match frame:
        case AskFrame() | Reply() | TellFrame():
            return _FRAME_BYTES + len(frame.body)
        case RowsChanged():
            return _FRAME_BYTES * (1 + len(frame.changes))
        case _:
            return _FRAME_BYTES
