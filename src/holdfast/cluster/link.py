"""A link: the asks of this member to one other, over a connection that this member opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec
import trio

from holdfast.actors.runtime.faults import NotAccepted, Overloaded
from holdfast.actors.runtime.mailbox import AskDeadlines, TrioFuture
from holdfast.actors.runtime.messages import Command
from holdfast.cluster import frames
from holdfast.cluster.codec import Codec, LinkLost, fault_of
from holdfast.persistence.journal.changes import Change
from holdfast.telemetry.traces import traceparent

ASKS_MAX: Final = 20_000
"""The most asks that wait for replies on one link."""
PING_S: Final = 1.0
SILENT_S: Final = 6.0
"""A member that sends nothing for so long, though pinged, counts as gone: it is frozen, or cannot be reached."""


class Link:
    """Asks to the member ``member_id``. It accepts asks while it :attr:`is_up`."""

    def __init__(
        self,
        stream: trio.abc.Stream,
        member_id: str,
        *,
        me: str,
        cluster: str,
        codecs: Mapping[str, Codec],
        deadlines: AskDeadlines,
    ) -> None:
        self.member_id = member_id
        self.is_up = False
        self._hello = frames.Hello(frames.PROTOCOL, cluster, me)
        self._codecs = codecs
        self._frames = frames.FrameStream(stream, self._take)
        self._numbers = 0
        self._waiting: dict[int, tuple[TrioFuture[object], Codec, str]] = {}
        self._deadlines = deadlines
        self._on_up: Callable[[], None] = lambda: None
        self._has_missed = True
        """Whether changes of rows were not sent, as before it was up, and nor was that some are missing."""

    async def run(self, on_up: Callable[[], None]) -> str:
        """Serve until the connection closes, and return why it did.

        ``on_up`` is called once the other member has introduced itself.
        """
        self._on_up = on_up
        self._frames.send(self._hello)
        self._ending = "the connection closed"
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch, nursery.cancel_scope)
                try:
                    await self._frames.run()
                except frames.MalformedFrames as exc:
                    self._ending = f"malformed frames: {exc}"
                nursery.cancel_scope.cancel()
        finally:
            self._close()
        return self._ending

    async def ask(
        self, group: str, key: str, command: Command[object], deadline_s: float, *, fails_fast: bool = False
    ) -> object:
        """Return the reply; with ``fails_fast`` the actor must not be waiting for its restart.

        Raises the actor's faults, ``Overloaded`` also if too much waits on this link.

        Raises :class:`~holdfast.cluster.codec.CannotEncode` or ``NotAccepted`` if the command may be sent
        elsewhere, and :class:`LinkLost` if the link closes first.
        """
        name, codec = type(command).__name__, self._codecs[group]
        body = codec.encode_command(command)
        if not self.is_up:
            raise NotAccepted(f"no link to {self.member_id}")
        if len(self._waiting) >= ASKS_MAX:
            raise Overloaded(f"{ASKS_MAX} asks wait on the link to {self.member_id}")
        self._numbers = number = self._numbers + 1
        self._send(frames.AskFrame(number, group, key, name, body, deadline_s, traceparent.get(), fails_fast))
        future: TrioFuture[object] = TrioFuture()
        self._waiting[number] = future, codec, name
        try:
            return await self._deadlines.wait(future, trio.current_time() + deadline_s, deadline_s)
        finally:
            self._waiting.pop(number, None)

    def tell(self, group: str, key: str, command: Command[object]) -> None:
        """Send a command without reply. Raises ``Overloaded``, and as :meth:`ask` if it may be sent elsewhere."""
        body = self._codecs[group].encode_command(command)
        if not self.is_up:
            raise NotAccepted(f"no link to {self.member_id}")
        self._send(frames.TellFrame(group, key, type(command).__name__, body, traceparent.get()))

    def announce_change(self) -> None:
        """Have the other member read the members again; with a full queue its next heartbeat does that."""
        if self.is_up:
            self._send_if_room(frames.MembersChanged())

    def send_changes(self, changes: Sequence[Change]) -> None:
        """Send which rows were changed, and whether others may have been that did not fit into the queue."""
        if self.is_up:
            try:
                self._frames.send(frames.RowsChanged(changes, self._has_missed))
                self._has_missed = False
            except frames.QueueFull:
                self._has_missed = True

    def _send(self, frame: frames.Frame) -> None:
        try:
            self._frames.send(frame)
        except frames.QueueFull as full:
            raise Overloaded(f"the link to {self.member_id}: {full}") from full

    def _take(self, frame: frames.Frame) -> None:
        match frame:
            case frames.Reply(number=number):
                waiting = self._waiting.get(number)
                if waiting is not None and not waiting[0].is_set:
                    future, codec, name = waiting
                    try:
                        future.set(codec.decode_reply(name, frame.form, frame.body))
                    except msgspec.DecodeError as exc:
                        raise frames.MalformedFrames(f"the reply to {name}: {exc}") from None
            case frames.Fault(number=number):
                waiting = self._waiting.get(number)
                if waiting is not None and not waiting[0].is_set:
                    waiting[0].fail(fault_of(frame))
            case frames.Pong():
                pass
            case frames.Hello() if not self.is_up:
                wanted = frames.Hello(frames.PROTOCOL, self._hello.cluster, self.member_id)
                if frame != wanted:
                    other = [
                        name for name in frame.__struct_fields__ if getattr(frame, name) != getattr(wanted, name)
                    ]
                    raise frames.MalformedFrames(f"it differs in {', '.join(other)}")
                self.is_up = True
                self._frames.read_bytes_max = frames.READ_BYTES_MAX
                self.send_changes(())
                self._on_up()
            case _:
                raise frames.MalformedFrames(f"{type(frame).__name__} does not belong here")

    async def _watch(self, scope: trio.CancelScope) -> None:
        """Close the link when the other member has been silent, or has not read, for too long.

        Silence is counted in pauses of this process: one that stood still itself has not waited meanwhile.
        """
        received_at, waited_s, silent_s = self._frames.received_at, 0.0, 0.0
        while True:
            await trio.sleep(PING_S)
            waited_s += PING_S
            silent_s = silent_s + PING_S if self._frames.received_at == received_at else 0.0
            received_at = self._frames.received_at
            is_unknown = not self.is_up and waited_s >= SILENT_S
            if silent_s >= SILENT_S or is_unknown or self._frames.is_stalled():
                self._ending = f"no answer for {SILENT_S:g} s"
                scope.cancel()
            elif silent_s >= PING_S and self.is_up:
                self._send_if_room(frames.Ping())
            if self._has_missed:
                self.send_changes(())

    def _send_if_room(self, frame: frames.Frame) -> None:
        """Queue a frame that may be left out: asks report a full queue, and the watch notices silence."""
        with suppress(frames.QueueFull):
            self._frames.send(frame)

    def _close(self) -> None:
        self.is_up = False
        unsent = {frame.number for frame in self._frames.unsent() if isinstance(frame, frames.AskFrame)}
        for number, (future, _, _) in self._waiting.items():
            if not future.is_set:
                lost = NotAccepted if number in unsent else LinkLost
                future.fail(lost(f"the link to {self.member_id} closed"))
        self._waiting.clear()
