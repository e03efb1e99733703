"""Any order of attempts, delays, cuts, freezes and refusals, at any processes: never more tasks than requests.

The code of such creates runs against an account and rows in memory, on a virtual clock. A message that was sent is
decided however late, also after its sender has gone. A frozen process neither answers nor sees that a client has
hung up; it sees that within a second of when it runs and has read the request, which may come late.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, Literal, cast
from unittest.mock import patch

import msgspec
import pytest
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from holdfast.actors.account.messages import BeginAttempt, RequestAttempt, TaskAccepted
from holdfast.actors.runtime.faults import AskFault, OutcomeUnknown, Unavailable
from holdfast.http.kit.calls import Call
from holdfast.http.kit.credentials import KnownKey
from holdfast.http.schemas.tasks import CreateTaskRequest
from holdfast.ledger.refusals import SUPERSEDED, Refusal
from holdfast.persistence.records.rows import IdempotencyProbe, StoredReply
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast_compat.attempts import RequestAttempts, Resend
from holdfast_compat.openai import resent_creates

from .identities import NOW

PROCESSES = 3
WANTED = CreateTaskRequest("a model", {})
SEEN_S = resent_creates.HANG_UP_S * 0.9
BUSY = Refusal(code="concurrency_limit_exceeded", message="Too many tasks are in flight.")

Fate = Literal["answered", "lost", "missed", "refused", "busy", "away", "unknown"]
"""The request is lost on its way; or its answer is; or the account refuses it for now; or its process does, before
it asks the account; or the account is away; or what it has decided of a create is not learnt.
"""
NO_TASK: frozenset[Fate] = frozenset({"refused", "busy", "away", "unknown"})
"""The client has to send it again."""


@dataclass(frozen=True)
class Sent:
    """An attempt: to which process, and how long it takes; the client gives up after ``patience_s``."""

    process: int = 0
    fate: Fate = "answered"
    wait_s: float = 0.4
    """Since the attempt before."""
    way_s: float = 0.0
    """From the client to the process."""
    asked_s: float = 0.0
    """From the process to the account, which decides then."""
    reply_s: float = 0.0
    held_s: float = 0.0
    """From the reply to the response."""
    patience_s: float = 20.0


@dataclass(frozen=True)
class Freeze:
    """A process does not run for a while."""

    process: int
    at_s: float
    for_s: float


@dataclass
class Process:
    """What one process knows, and whether it runs."""

    attempts: RequestAttempts = field(default_factory=RequestAttempts)
    frozen: int = 0
    thawed: trio.Event = field(default_factory=trio.Event)

    async def runs(self) -> None:
        """Wait until the process runs."""
        while self.frozen:
            await self.thawed.wait()

    async def freeze(self, freeze: Freeze) -> None:
        """Do not run for a while."""
        await trio.sleep(freeze.at_s)
        self.frozen += 1
        await trio.sleep(freeze.for_s)
        self.frozen -= 1
        self.thawed.set()
        self.thawed = trio.Event()


@dataclass
class World:
    """One account, whose requests are all equal; ``refuses`` False lets it forget that attempts begin."""

    nursery: trio.Nursery
    refuses: bool = True
    processes: list[Process] = field(default_factory=lambda: [Process() for _ in range(PROCESSES)])
    tasks: list[tuple[datetime, str]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    begun: dict[str, tuple[str, datetime]] = field(default_factory=dict)
    served: set[int] = field(default_factory=set)
    got: defaultdict[int, list[str]] = field(default_factory=lambda: defaultdict(list))

    def now(self) -> datetime:
        return NOW + timedelta(seconds=trio.current_time())

    def decide(self, call: FakeCall, command: BeginAttempt | RequestAttempt | None) -> Any:
        """Decide a beginning, or a create of a request that knows of an attempt."""
        if call.sent.fate == "away":
            return Unavailable("it restarts")
        if isinstance(command, BeginAttempt):
            self.begun[command.attempt.group] = command.attempt.attempt_id, self.now()
            return None
        assert command is not None, "all clients here number their attempts"
        newest, _ = self.begun.get(command.group, (command.attempt_id, None))
        if self.refuses and newest != command.attempt_id:
            return SUPERSEDED
        if call.sent.fate == "refused":
            return BUSY
        self.tasks.append((self.now(), f"task_{len(self.tasks)}"))
        self.keys.append(call.request.id)
        self.served.add(call.number)
        return TaskAccepted(self.tasks[-1][1], "quo_1", "queued", None, 1, "1 image")

    async def send(self, request: int, number: int, sent: Sent) -> bool:
        """Send one attempt; return whether its client got a task."""
        if sent.fate == "lost":
            return False
        got = len(self.got[request])
        hung_up, answered = trio.Event(), trio.Event()
        self.nursery.start_soon(self.handle, request, number, sent, hung_up, answered)
        with trio.move_on_after(sent.patience_s):
            await answered.wait()
        hung_up.set()
        return len(self.got[request]) > got and sent.fate != "missed"

    async def handle(
        self, request: int, number: int, sent: Sent, hung_up: trio.Event, answered: trio.Event
    ) -> None:
        """Handle an attempt as its process does, until its client is seen to have hung up."""
        process = self.processes[sent.process]
        await trio.sleep(sent.way_s)
        await process.runs()
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                await hung_up.wait()
                await process.runs()
                await trio.sleep(SEEN_S)
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            call = cast("Call", FakeCall(self, request, number, sent))
            reply: str | Refusal | None = None
            if sent.fate == "busy":
                resent_creates.note_refused(call, number)
            else:
                with suppress(AskFault):
                    reply = await resent_creates.create_once(call, WANTED, number, resent_creates.CLIENT_TIMEOUT_S)
            if isinstance(reply, str):
                self.served.add(request)
                with process.attempts.served(reply):
                    await trio.sleep(sent.held_s)
                    await process.runs()
                if not hung_up.is_set():
                    self.got[request].append(reply)
            answered.set()
            nursery.cancel_scope.cancel()

    async def client(self, request: int, attempts: list[Sent]) -> None:
        for number, sent in enumerate(attempts):
            await trio.sleep(sent.wait_s)
            if await self.send(request, number, sent):
                return


@dataclass
class FakeCall:
    """What is used of a call."""

    world: World
    number: int
    attempt: int
    sent: Sent

    def __post_init__(self) -> None:
        self.known_key = KnownKey("acct_1", "key_1")
        self.process = self.world.processes[self.sent.process]
        self.request = SimpleNamespace(id=f"req_{self.number}_{self.attempt}")
        self.deps = SimpleNamespace(
            state=lambda _kind: self.process.attempts,
            accounts=SimpleNamespace(ref=lambda _: None),
            now=self.world.now,
            settings=SimpleNamespace(idempotency_ttl_s=86_400),
        )

    def fingerprint(self) -> bytes:
        return b"equal"

    async def ask(self, _ref: object, command: BeginAttempt | RequestAttempt | None) -> Any:
        """Send a command to the account; it is decided even if this is cancelled."""
        replies: list[Any] = []
        decided = trio.Event()

        async def deliver() -> None:
            await trio.sleep(self.sent.asked_s)
            replies.append(self.world.decide(self, command))
            decided.set()

        self.world.nursery.start_soon(deliver)
        if self.sent.fate == "unknown" and not isinstance(command, BeginAttempt):
            await trio.sleep(self.sent.reply_s)
            raise OutcomeUnknown("the account did not answer")
        await decided.wait()
        await trio.sleep(self.sent.reply_s)
        await self.process.runs()
        if isinstance(replies[0], Unavailable):
            raise replies[0]
        return replies[0]

    async def read(self, query: Any) -> Any:
        await trio.lowlevel.checkpoint()
        await self.process.runs()
        return query(self.world)


async def accepted_task(call: FakeCall, _wanted: Any, _key: Any, *, after: RequestAttempt | None) -> Any:
    return await call.ask(None, after)


def replies_of_route(world: World, _account_id: str, *, route: str, oldest: datetime) -> dict[str, bytes]:
    found = [
        (key, TaskAccepted(each, "quo_1", "queued", None, 1, "1 image"))
        for key, (at, each) in zip(world.keys, world.tasks, strict=True)
        if at > oldest
    ]
    return {key: msgspec.json.encode(each) for key, each in reversed(found)}


def find_reply(world: World, probe: IdempotencyProbe, **_: Any) -> StoredReply | None:
    if probe.key not in world.begun:
        return None
    attempt_id, at = world.begun[probe.key]
    return StoredReply(attempt_id.encode(), msgspec.json.encode(at))


def play(requests: list[list[Sent]], freezes: list[Freeze], *, refuses: bool = True) -> World:
    """Let the clients send their requests, and return what is left when all is quiet."""

    async def main() -> World:
        async with trio.open_nursery() as nursery:
            world = World(nursery, refuses)
            for freeze in freezes:
                nursery.start_soon(world.processes[freeze.process].freeze, freeze)
            for number, attempts in enumerate(requests):
                nursery.start_soon(world.client, number, attempts)
        return world

    fakes: dict[str, Any] = {
        "accepted_task": accepted_task,
        "replies_of_route": replies_of_route,
        "find_reply": find_reply,
    }
    with patch.multiple(resent_creates, **fakes):
        return trio.run(main, clock=MockClock(autojump_threshold=0))


DELAYS = st.sampled_from([0.0, 0.0, 0.0, 0.05, 0.3, 2.0, 9.0])
ATTEMPT = st.builds(
    Sent,
    process=st.integers(0, PROCESSES - 1),
    fate=st.sampled_from(["answered", "answered", "lost", "missed", *sorted(NO_TASK)]),
    wait_s=st.sampled_from([0.0, 0.4, 0.4, 1.5, 8.0]),
    way_s=DELAYS,
    asked_s=DELAYS,
    reply_s=DELAYS,
    held_s=DELAYS,
    patience_s=st.sampled_from([0.01, 0.3, 1.0, 5.0, 20.0]),
)
REQUESTS = st.lists(st.lists(ATTEMPT, min_size=1, max_size=4), min_size=1, max_size=5)
FREEZES = st.lists(
    st.builds(Freeze, st.integers(0, PROCESSES - 1), st.sampled_from([0.0, 0.35, 0.5, 1.0, 4.0]), DELAYS),
    max_size=3,
)

Order = tuple[list[list[Sent]], list[Freeze]]
FROZEN: Order = (
    # The client gives up on a process that is frozen before the account has decided, and gets its task at another.
    [[Sent(asked_s=9.0, patience_s=1.0), Sent(process=1)]],
    [Freeze(0, 0.45, 10.0)],
)
# The account's owner is frozen with the create on a link: it decides that after the resend, or in the middle of it.
AFTER: Order = ([[Sent(asked_s=9.0, patience_s=0.3), Sent(process=1)]], [])
BETWEEN: Order = ([[Sent(asked_s=2.0, patience_s=0.3), Sent(process=1, asked_s=0.7)]], [])
# The bytes of an attempt come after the next one was answered, here or elsewhere.
LATE: Order = ([[Sent(way_s=3.0, patience_s=0.3), Sent()]], [])
LATE_ELSEWHERE: Order = ([[Sent(way_s=3.0, patience_s=0.3), Sent(process=1)]], [])
LATE_SECOND: Order = ([[Sent(fate="lost"), Sent(way_s=3.0, patience_s=0.3), Sent()]], [])
LATE_BESIDE: Order = (
    # It does not take the task of the other request either, whose resend would then find none.
    [
        [Sent(fate="missed"), Sent(way_s=2.0, patience_s=0.3), Sent()],
        [Sent(wait_s=0.6, held_s=4.0, patience_s=3.5), Sent()],
    ],
    [],
)
# While an attempt is outwaited its client hangs up, and sends its request again just before that wait is over.
IN_THE_WAIT: Order = (
    [
        [Sent(fate="lost", wait_s=0.0), Sent(process=1, wait_s=0.1)],
        [Sent(wait_s=0.05, asked_s=0.1, patience_s=0.9), Sent(process=1, wait_s=0.05)],
    ],
    [],
)


@settings(max_examples=200)
@given(REQUESTS, FREEZES)
@example(*FROZEN)
@example(*AFTER)
@example(*BETWEEN)
@example(*LATE)
@example(*LATE_ELSEWHERE)
@example(*LATE_SECOND)
@example(*LATE_BESIDE)
@example(*IN_THE_WAIT)
def test_there_are_never_more_tasks_than_requests(requests: list[list[Sent]], freezes: list[Freeze]) -> None:
    world = play(requests, freezes)
    assert len(world.tasks) <= len(requests)
    if not any(sent.fate in NO_TASK for attempts in requests for sent in attempts):
        assert len(world.tasks) <= len(world.served)


@settings(max_examples=50)
@given(REQUESTS, FREEZES)
def test_requests_that_are_answered_at_once_are_as_many_tasks(
    requests: list[list[Sent]], freezes: list[Freeze]
) -> None:
    patient = [[replace(attempts[0], fate="answered", patience_s=1e6)] for attempts in requests]
    world = play(patient, freezes)
    assert sorted(task for tasks in world.got.values() for task in tasks) == sorted(each for _, each in world.tasks)
    assert len(world.tasks) == len(requests)


async def test_a_create_whose_files_cannot_be_claimed_is_known_as_refused() -> None:
    """Its resend does not take the task of an equal request that was answered."""

    async def without_database(*_: Any, **__: Any) -> Any:
        raise DatabaseAway("it is restarting")

    async with trio.open_nursery() as nursery:
        world = World(nursery)
        call, known = cast("Call", FakeCall(world, 0, 0, Sent())), world.processes[0].attempts
        with patch.object(resent_creates, "accepted_task", without_database), pytest.raises(DatabaseAway):
            await resent_creates.create_once(call, WANTED, 0, resent_creates.CLIENT_TIMEOUT_S)
        with known.served("task_1"):
            assert known.choose(Resend(resent_creates._group(call), 1), {"req_1": "task_1"}) is None


EQUAL = st.lists(
    st.tuples(st.booleans(), st.integers(0, 3), DELAYS, DELAYS).map(
        lambda drawn: [
            Sent(fate="unknown" if drawn[0] and not nth else "away", asked_s=drawn[2], reply_s=drawn[3])
            for nth in range(drawn[1])
        ]
    ),
    min_size=1,
    max_size=5,
)
"""The first attempts at requests while an account is away: it may have learnt of the very first."""


@settings(max_examples=100)
@given(EQUAL)
@example([[], [Sent(fate="away")]])
@example([[Sent(fate="unknown"), Sent(fate="away")], [Sent(fate="unknown")]])
def test_equal_requests_stay_as_many_when_the_account_was_away(first: list[list[Sent]]) -> None:
    """No answer is lost on its way from their one process."""
    world = play([[replace(each, patience_s=1e6) for each in (*sent, Sent())] for sent in first], [])
    assert len(world.tasks) == len(first)
    assert sorted(task for tasks in world.got.values() for task in tasks) == sorted(each for _, each in world.tasks)


def test_a_refusal_makes_no_second_task_of_a_request_whose_answer_was_lost() -> None:
    world = play([[Sent(fate="missed"), Sent(fate="busy"), Sent()]], [])
    assert [each for _, each in world.tasks] == world.got[0][-1:]


def test_a_superseded_resend_of_a_refused_request_is_a_task_of_its_own() -> None:
    answered = [Sent(wait_s=0.0)]
    refused = [Sent(wait_s=0.1, fate="refused", patience_s=0.3), Sent(asked_s=0.5)]
    resent_meanwhile = [Sent(fate="lost", wait_s=0.0), Sent(process=1, wait_s=1.5)]
    world = play([answered, refused, resent_meanwhile], [])
    assert len(world.tasks) == 2
    assert world.got[0] != world.got[1]


def test_a_request_beside_a_resend_is_a_task_of_its_own() -> None:
    """It is on its way while a resend begins, and so is refused once; its client still waits."""
    resent = [Sent(fate="lost", wait_s=0.0), Sent(process=1, asked_s=0.3)]
    beside = [Sent(wait_s=0.3, asked_s=1.0)]
    world = play([resent, beside], [])
    assert len(world.tasks) == 2
    assert sorted(map(len, world.got.values())) == [1, 1]
    assert world.got[0] != world.got[1]


def test_an_equal_request_creates_where_nothing_is_known_of_a_resend() -> None:
    resent = [Sent(fate="lost", wait_s=0.0), Sent(process=1)]
    world = play([resent, [Sent(process=2, wait_s=60.0)]], [])
    assert len(world.tasks) == 2
    assert world.got[0] != world.got[1]


def test_the_refusal_by_the_account_and_the_wait_are_what_it_takes() -> None:
    for requests, freezes in (FROZEN, AFTER, BETWEEN):
        assert len(play(requests, freezes).tasks) == 1
        assert len(play(requests, freezes, refuses=False).tasks) == 2
    for requests, freezes in (LATE, LATE_ELSEWHERE, LATE_SECOND, LATE_BESIDE):
        assert len(play(requests, freezes).tasks) <= len(requests)
        with patch.object(resent_creates, "HANG_UP_S", 0.0):
            assert len(play(requests, freezes).tasks) == len(requests) + 1


def test_long_after_an_attempt_an_equal_request_waits_for_nothing() -> None:
    resent = [Sent(fate="lost", wait_s=0.0), Sent(process=1)]
    for after_s, waits_s in ((600.0, resent_creates.HANG_UP_S), (3600.0, 0.0)):
        world = play([resent, [Sent(process=2, wait_s=after_s, asked_s=0.5)]], [])
        (first, _), (second, _) = world.tasks
        assert second - first == timedelta(seconds=after_s + 0.5 - 0.4 + waits_s + 0.5)
