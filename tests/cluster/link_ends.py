"""Both ends of a link over streams in memory, and a link whose other end is the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec
import trio
from trio.testing import (
    MemoryReceiveStream,
    MemorySendStream,
    memory_stream_pair,
)

from holdfast.actors.account.messages import SignOut
from holdfast.actors.runtime.mailbox import AskDeadlines, Envelope
from holdfast.actors.runtime.messages import Command
from holdfast.actors.runtime.refs import TrioActorRef
from holdfast.cluster.answering import Answering
from holdfast.cluster.codec import ACCOUNTS, codecs
from holdfast.cluster.frames import PROTOCOL, Frame, Hello
from holdfast.cluster.link import Link
from holdfast.persistence.journal.changes import Changes
from holdfast.persistence.records.rows import SessionRevokedRow
from holdfast.telemetry.traces import traceparent

AT = datetime(2026, 11, 22, tzinfo=UTC)
Stream = trio.StapledStream[MemorySendStream, MemoryReceiveStream]


class Recorder(TrioActorRef):
    """The address of an actor that keeps what it receives."""

    def __init__(self, accounts: Accounts, key: str) -> None:
        super().__init__(key)
        self._accounts = accounts

    def tell(self, message: Command[object]) -> None:
        self._accounts.received.append((self.actor_urn, message, traceparent.get()))


@dataclass
class Accounts:
    """A group whose mailboxes the test empties."""

    is_ready: bool = True
    asked: list[tuple[str, Envelope]] = field(default_factory=list)
    received: list[tuple[str, Command[object], str | None]] = field(default_factory=list)
    fault: Exception | None = None

    def accept(self, key: str, envelope: Envelope, *, fails_fast: bool = False) -> None:
        if self.fault is not None:
            raise self.fault
        self.asked.append((key, envelope))

    def ref(self, key: str) -> TrioActorRef:
        return Recorder(self, key)


@dataclass
class Joined:
    """A link and what answers it."""

    link: Link
    accounts: Accounts
    near: Stream
    far: Stream
    members: list[str] = field(default_factory=list)
    changes: list[int] = field(default_factory=list)
    rows_changed: Changes = field(default_factory=Changes)

    async def asked(self, count: int = 1) -> list[tuple[str, Envelope]]:
        with trio.fail_after(60):
            while len(self.accounts.asked) < count:
                await trio.lowlevel.checkpoint()
        return self.accounts.asked


@asynccontextmanager
async def joined(wrap: Callable[[Stream], trio.abc.Stream] = lambda stream: stream) -> AsyncIterator[Joined]:
    near, far = memory_stream_pair()
    accounts = Accounts()
    asker = Link(wrap(near), "far", me="near", cluster="c", codecs=codecs(), deadlines=AskDeadlines())
    pair = Joined(asker, accounts, near, far)
    answers = Answering(
        wrap(far),
        me="far",
        cluster="c",
        codecs=codecs(),
        groups={ACCOUNTS: accounts},
        on_member=pair.members.append,
        on_change=lambda: pair.changes.append(1),
        changes=pair.rows_changed,
    )
    up = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answers.run)
        nursery.start_soon(asker.run, up.set)
        with trio.fail_after(60):
            await up.wait()
        yield pair
        nursery.cancel_scope.cancel()


def signed_out(session_id: str) -> SessionRevokedRow:
    return SessionRevokedRow("acct_1", session_id, AT)


async def ask(pair: Joined, command: Command[object] | None = None, *, key: str = "acct_1") -> object:
    return await pair.link.ask(ACCOUNTS, key, command or SignOut("ses_1"), 10.0)


class Drip(trio.abc.Stream):
    """A stream whose bytes arrive one at a time."""

    def __init__(self, inner: Stream) -> None:
        self._inner = inner

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._inner.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return bytes(await self._inner.receive_some(1))

    async def aclose(self) -> None:
        await self._inner.aclose()


@asynccontextmanager
async def link_alone() -> AsyncIterator[tuple[Link, Stream, trio.Event]]:
    """A link whose other end is the test."""
    near, far = memory_stream_pair()
    asker = Link(near, "far", me="near", cluster="c", codecs=codecs(), deadlines=AskDeadlines())
    ended = trio.Event()

    async def run() -> None:
        await asker.run(lambda: None)
        ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        yield asker, far, ended
        nursery.cancel_scope.cancel()


def batch(*sent: Frame) -> bytes:
    body = msgspec.msgpack.encode(sent)
    return len(body).to_bytes(4) + body


HELLO = batch(Hello(PROTOCOL, "c", "far"))
