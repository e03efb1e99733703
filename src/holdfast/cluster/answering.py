"""The other end of a link: the asks of one other member, answered over the connection that it opened.

An ask is never forwarded again, so that two members with different views of the placement cannot pass it back and
forth. No task waits for an answer: the future of the ask's envelope sends it when the actor sets it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec
import structlog
import trio

from holdfast.actors.runtime.faults import AskFault, NotAccepted, OutcomeUnknown, Overloaded
from holdfast.actors.runtime.mailbox import Envelope, TrioFuture
from holdfast.actors.runtime.messages import Command
from holdfast.actors.runtime.refs import TellRef
from holdfast.cluster import frames
from holdfast.cluster.codec import CannotEncode, Codec, fault_frame
from holdfast.cluster.link import ASKS_MAX
from holdfast.persistence.journal.changes import Changes
from holdfast.telemetry.traces import within_trace

log = structlog.get_logger(__name__)

ASKER_SILENT_S = 15.0
"""The connection of a member that sends nothing for so long is closed."""


class LocalGroup(Protocol):
    """The actors of one kind that live in this process."""

    @property
    def is_ready(self) -> bool: ...

    def accept(self, key: str, envelope: Envelope, *, fails_fast: bool = False) -> object:
        """Put a message into the mailbox of an actor. Raises the faults of an ask."""
        ...

    def ref(self, key: str) -> TellRef: ...


class Answering:
    """Answers the asks of one other member.

    ``on_member`` is called with its id once it has introduced itself, ``on_change`` when its row has changed. Rows
    that it has changed are noted in ``changes``.
    """

    def __init__(
        self,
        stream: trio.abc.Stream,
        *,
        me: str,
        cluster: str,
        codecs: Mapping[str, Codec],
        groups: Mapping[str, LocalGroup],
        on_member: Callable[[str], None],
        on_change: Callable[[], None],
        changes: Changes,
    ) -> None:
        self._hello = frames.Hello(frames.PROTOCOL, cluster, me)
        self._codecs = codecs
        self._groups = groups
        self._on_member = on_member
        self._on_change = on_change
        self._changes = changes
        self._frames = frames.FrameStream(stream, self._take)
        self._member_id: str | None = None
        self._open_asks = 0
        self._is_closed = False
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        """Serve until the connection closes."""
        self._frames.send(self._hello)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch)
                with self._scope:
                    await self._serve()
                nursery.cancel_scope.cancel()
        finally:
            self._is_closed = True

    @property
    def member_id(self) -> str | None:
        """The id of the other member; None until it has introduced itself."""
        return self._member_id

    def close(self) -> None:
        """Close the connection."""
        self._scope.cancel()

    async def flush(self) -> None:
        """Wait until all replies so far are written."""
        await self._frames.flush()

    async def _serve(self) -> None:
        try:
            await self._frames.run()
        except frames.MalformedFrames as exc:
            log.warning("link closed: malformed frames", member=self._member_id, reason=str(exc))

    async def _watch(self) -> None:
        """Close the connection of a member that is silent, though it would ping at least, or does not read."""
        since = trio.current_time()
        await trio.sleep(frames.HELLO_S)
        if self._member_id is None:
            self.close()
        while True:
            await trio.sleep_until(since + ASKER_SILENT_S)
            if self._frames.received_at <= since or self._frames.is_stalled():
                self.close()
            since = max(since, self._frames.received_at)

    def _take(self, frame: frames.Frame) -> None:
        match frame:
            case frames.Hello(protocol=protocol, cluster=cluster, member_id=member_id) if self._member_id is None:
                if (protocol, cluster) != (frames.PROTOCOL, self._hello.cluster):
                    # It has this member's hello, and logs the difference.
                    self.close()
                    return
                self._member_id = member_id[:80]
                self._frames.read_bytes_max = frames.READ_BYTES_MAX
                self._on_member(member_id)
            case _ if self._member_id is None:
                raise frames.MalformedFrames("the first frame is no hello")
            case frames.AskFrame():
                self._take_ask(frame)
            case frames.TellFrame(group=group, key=key, name=name):
                local, command = self._groups.get(group), self._decode(group, name, frame.body)
                if local is not None:
                    with within_trace(frame.traceparent):
                        local.ref(key).tell(command)
            case frames.Ping():
                self._send(frames.Pong())
            case frames.MembersChanged():
                self._on_change()
            case frames.RowsChanged(changes=changes, missed=missed):
                self._changes.note(changes)
                if missed:
                    self._changes.note_missed()
            case _:
                raise frames.MalformedFrames(f"{type(frame).__name__} does not belong here")

    def _take_ask(self, ask: frames.AskFrame) -> None:
        command = self._decode(ask.group, ask.name, ask.body)
        now = trio.current_time()
        answer = _Answer(self, ask.number)
        self._open_asks += 1
        envelope = Envelope(command, answer, deadline=now + ask.within_s, sent_at=now, traceparent=ask.traceparent)
        local = self._groups.get(ask.group)
        try:
            if local is None or not local.is_ready:
                raise NotAccepted(f"{ask.group} are not running")
            if self._open_asks > ASKS_MAX:
                raise Overloaded(f"{ASKS_MAX} asks of {self._member_id} are open")
            local.accept(ask.key, envelope, fails_fast=ask.fails_fast)
        except AskFault as fault:
            answer.fail(fault)

    def _decode(self, group: str, name: str, body: bytes) -> Command[object]:
        codec = self._codecs.get(group)
        if codec is None:
            raise frames.MalformedFrames(f"the group {group[:40]!r} is not known")
        try:
            return codec.decode_command(name, body)
        except (msgspec.DecodeError, TypeError, ValueError) as exc:
            raise frames.MalformedFrames(f"{name[:40]}: {exc}") from None

    def answer(self, number: int, reply: object) -> None:
        """Send the reply to an ask."""
        try:
            form, body = Codec.encode_reply(reply)
        except CannotEncode as exc:
            log.error("reply cannot be sent", member=self._member_id, reason=str(exc))
            self.fail(number, OutcomeUnknown("the reply cannot be sent to the member that asked"))
            return
        self._open_asks -= 1
        self._send(frames.Reply(number, form, body))

    def fail(self, number: int, fault: BaseException) -> None:
        """Send the fault of an ask."""
        self._open_asks -= 1
        self._send(fault_frame(number, fault))

    def _send(self, frame: frames.Frame) -> None:
        if self._is_closed:
            return
        try:
            self._frames.send(frame)
        except frames.QueueFull as full:
            # The asker does not read its replies. Their outcome is unknown to it once the link closes.
            self._is_closed = True
            self.close()
            log.warning("link closed: replies are not read", member=self._member_id, reason=str(full))


class _Answer(TrioFuture[object]):
    """The future of an ask's envelope: what it is set to is sent to the asker."""

    __slots__ = ("_answering", "_number")

    def __init__(self, answering: Answering, number: int) -> None:
        super().__init__()
        self._answering = answering
        self._number = number

    def set(self, value: object | None = None) -> None:
        """Send the reply."""
        super().set(value)
        self._answering.answer(self._number, value)

    def fail(self, exception: BaseException) -> None:
        """Send the fault."""
        super().fail(exception)
        self._answering.fail(self._number, exception)
