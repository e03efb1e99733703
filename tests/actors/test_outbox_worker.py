"""The outbox worker on a test clock: backoff, slow receivers, and the messages it sends."""

from __future__ import annotations

import base64
import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import cast

import trio
import trio.testing
from tests.recorded_refs import RecordedRef

from holdfast.actors.task.messages import EventsDue, RecordAnnouncement
from holdfast.actors.workers.outbox import PER_ACCOUNT_MAX, QUICK_MAX, OutboxWorker
from holdfast.actors.workers.worker import WorkerRef
from holdfast.ledger.tasks.events import PAUSES_S, DeliveryResponse, pause_after
from holdfast.ledger.tasks.task import EventKind
from holdfast.ledger.tasks.webhook_secrets import webhook_secret
from holdfast.persistence.claims.outbox import FIRST, Capacity, DueEvent
from holdfast.persistence.journal.journal import Journal
from holdfast.persistence.journal.units import Committed, Unit, UnitResult
from holdfast.persistence.records.rows import OutboxAttemptRow, OutboxOutcomeRow
from holdfast.providers.signatures import verify_standard
from holdfast.telemetry.reports.conditions import Conditions
from holdfast.telemetry.reports.reporter import Reporter

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
KEY = b"k" * 32
THREE_DAYS_S = 259_200
TICK_S = 60.0


@dataclass
class Setup:
    """In-memory rows, journal, tasks and receivers of an outbox worker."""

    worker_ref: WorkerRef = field(default_factory=lambda: WorkerRef("outbox"))
    events: dict[str, DueEvent] = field(default_factory=dict)
    due_at: dict[str, datetime] = field(default_factory=dict)
    sent: list[tuple[float, str, dict[str, str], bytes]] = field(default_factory=list)
    running: Counter[str] = field(default_factory=Counter)
    most_running: Counter[str] = field(default_factory=Counter)
    attempts: list[OutboxAttemptRow] = field(default_factory=list)
    outcomes: list[OutboxOutcomeRow] = field(default_factory=list)
    reported: list[tuple[str, RecordAnnouncement]] = field(default_factory=list)
    afters: list[str | None] = field(default_factory=list)
    """After which account each claim began."""
    silent: set[str] = field(default_factory=set)
    """The accounts whose receivers are known to be silent."""
    following: list[str] = field(default_factory=list)
    """After which account the next claim is to begin, for each of the next claims."""
    answer: Callable[[str], DeliveryResponse] = lambda _: DeliveryResponse(200)
    answer_after_s: Callable[[str], float] = lambda _: 0.0
    render: Callable[[DueEvent], bytes] = lambda event: event.event_id.encode()

    def now(self) -> datetime:
        return NOON + timedelta(seconds=trio.current_time() - self.started_s)

    def add(self, event_id: str, account_id: str = "acct_1", kind: EventKind = "task.failed") -> None:
        """Add an event that is due now, for the account's own receiver."""
        at = self.now()
        url = f"https://{account_id}.test/"
        self.events[event_id] = DueEvent(account_id, event_id, "task_1", kind, url, at, 0, at, 0, "{}", ())
        self.due_at[event_id] = at

    async def claim(
        self,
        now: datetime,
        after: str | None,
        named: Collection[str],
        capacity: Capacity,
        learned: Mapping[str, bool],
    ) -> tuple[list[DueEvent], str | None]:
        self.afters.append(after)
        await trio.lowlevel.checkpoint()
        for account_id, is_silent in learned.items():
            (self.silent.add if is_silent else self.silent.discard)(account_id)
        taken: list[DueEvent] = []
        many = Counter(capacity.busy)
        free = {True: capacity.to_silent, False: capacity.quick}
        for event_id, due_at in sorted(self.due_at.items(), key=lambda item: item[1]):
            event = self.events[event_id]
            is_silent = event.account_id in self.silent
            if after is None and event.account_id not in named:
                continue
            if due_at <= now and free[is_silent] and many[event.account_id] < PER_ACCOUNT_MAX:
                many[event.account_id] += 1
                free[is_silent] -= 1
                claimed = event._replace(attempts=event.attempts + 1, tries=event.tries + 1, is_silent=is_silent)
                self.events[event_id] = claimed
                self.due_at[event_id] = now + timedelta(seconds=max(20, pause_after(claimed.tries)))
                taken.append(claimed)
        return taken, self.following.pop(0) if self.following else None

    async def write(self, unit: Unit) -> UnitResult:
        """Write a unit, as the journal would."""
        await trio.lowlevel.checkpoint()
        attempt, outcome = unit.rows
        assert isinstance(attempt, OutboxAttemptRow)
        assert isinstance(outcome, OutboxOutcomeRow)
        self.attempts.append(attempt)
        self.outcomes.append(outcome)
        if outcome.due_at is None:
            del self.due_at[outcome.event_id]
        else:
            self.due_at[outcome.event_id] = outcome.due_at
        return Committed()

    def ref(self, key: str) -> RecordedRef:
        """Return the address of a task."""
        return RecordedRef(lambda message: self._tell(key, message))

    def _tell(self, key: str, message: object) -> None:
        assert isinstance(message, RecordAnnouncement)
        self.reported.append((key, message))

    async def send(self, account_id: str, url: str, body: bytes, headers: Mapping[str, str]) -> DeliveryResponse:
        assert url in {f"https://{account_id}.test/", "https://dead.test/hooks"}
        self.sent.append((trio.current_time() - self.started_s, url, dict(headers), body))
        self.running[url] += 1
        self.most_running[url] = max(self.running[url], self.most_running[url])
        self.most_running["all"] = max(self.running.total(), self.most_running["all"])
        try:
            await trio.sleep(self.answer_after_s(url))
        finally:
            self.running[url] -= 1
        return self.answer(url)

    async def run(self, nursery: trio.Nursery, *, tick_s: float = TICK_S) -> OutboxWorker:
        """Start a worker."""
        worker = OutboxWorker(
            self.worker_ref,
            claim=self.claim,
            journal=cast(Journal, self),
            tasks=self,
            render=self.render,
            send=self.send,
            secrets_key=KEY,
            give_up_s=THREE_DAYS_S,
            conditions=Conditions(self.reporter),
            now=self.now,
            rng=random.Random(7),
            tick_s=tick_s,
        )
        await nursery.start(lambda *, task_status: worker.run(task_status=task_status))
        return worker

    reporter: Reporter = field(default_factory=Reporter)
    started_s: float = field(default_factory=trio.current_time)


async def test_a_dead_host_has_one_report_whatever_accounts_it_concerns(
    autojump_clock: trio.testing.MockClock,
) -> None:
    setup = Setup(answer=lambda _: DeliveryResponse(503))
    for number in range(8):
        setup.add(f"evt_{number}", f"acct_{number % 4}")
        setup.events[f"evt_{number}"] = setup.events[f"evt_{number}"]._replace(url="https://dead.test/hooks")
    async with trio.open_nursery() as nursery:
        await setup.run(nursery)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()

    [report] = setup.reporter.recent()
    assert (report.key, report.account_id) == ("dead.test", None)
    # Which three of them fail first is not defined; two of those may be one account's.
    assert report.reason is not None
    assert report.reason.startswith("webhooks are not delivered: status 503; ")
    assert report.reason.endswith(" accounts and 3 events")


async def test_a_dead_receiver_is_tried_ten_times_and_then_given_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    setup = Setup(answer=lambda _: DeliveryResponse(503))
    setup.add("evt_1")
    async with trio.open_nursery() as nursery:
        await setup.run(nursery)
        await trio.sleep(THREE_DAYS_S + 3600)
        nursery.cancel_scope.cancel()

    times = [at for at, *_ in setup.sent]
    assert len(times) == 10
    assert times[0] == 0
    gaps = [later - sooner for sooner, later in pairwise(times)]
    for gap, pause_s in zip(gaps[:-1], PAUSES_S, strict=False):
        assert pause_s <= gap <= 1.25 * pause_s + TICK_S
    assert THREE_DAYS_S <= times[-1] <= THREE_DAYS_S + TICK_S
    assert {headers["webhook-id"] for _, _, headers, _ in setup.sent} == {"evt_1"}
    assert [row.number for row in setup.attempts] == list(range(1, 11))
    assert [row.status for row in setup.outcomes] == ["pending"] * 9 + ["given_up"]
    assert setup.outcomes[-1].done_at is not None
    assert setup.due_at == {}


async def test_each_attempt_is_signed_with_its_own_time(autojump_clock: trio.testing.MockClock) -> None:
    setup = Setup(answer=lambda _: DeliveryResponse(500 if len(setup.sent) < 3 else 204))
    setup.add("evt_1")
    async with trio.open_nursery() as nursery:
        await setup.run(nursery)
        await trio.sleep(1000)
        nursery.cancel_scope.cancel()

    secret = webhook_secret(KEY, "acct_1", 0)
    assert len(setup.sent) == 3
    assert len({headers["webhook-timestamp"] for _, _, headers, _ in setup.sent}) == 3
    for at, _, headers, body in setup.sent:
        assert verify_standard(headers, body, [secret], now=NOON + timedelta(seconds=at)) == "valid"
        assert verify_standard(headers, body + b" ", [secret], now=NOON + timedelta(seconds=at)) == "invalid"
        assert len(base64.b64decode(headers["webhook-signature"].removeprefix("v1,"))) == 32


async def test_a_hanging_receiver_delays_only_its_account(
    autojump_clock: trio.testing.MockClock,
) -> None:
    setup = Setup(answer_after_s=lambda url: 15.0 if "slow" in url else 0.1)
    for number in range(50):
        setup.add(f"evt_slow_{number:02}", "acct_slow")
    setup.add("evt_quick", "acct_quick")
    async with trio.open_nursery() as nursery:
        await setup.run(nursery)
        await trio.sleep(1)
        assert [row.event_id for row in setup.outcomes] == ["evt_quick"]
        await trio.sleep(15 * (50 / PER_ACCOUNT_MAX) + 20)
        nursery.cancel_scope.cancel()
    assert setup.most_running["https://acct_slow.test/"] == PER_ACCOUNT_MAX
    assert Counter(row.status for row in setup.outcomes) == {"delivered": 51}


async def test_claims_follow_each_other_until_all_accounts_had_a_turn(
    autojump_clock: trio.testing.MockClock,
) -> None:
    setup = Setup(following=["acct_5", "acct_9"])
    async with trio.open_nursery() as nursery:
        await setup.run(nursery)
        await trio.sleep(1)
        assert setup.afters == [FIRST, "acct_5", "acct_9"]
        await trio.sleep(TICK_S)
        assert setup.afters[3:] == [FIRST]
        nursery.cancel_scope.cancel()


async def test_concurrent_deliveries_are_bounded(
    autojump_clock: trio.testing.MockClock,
) -> None:
    setup = Setup(answer_after_s=lambda _: 0.5)
    for number in range(2 * QUICK_MAX):
        setup.add(f"evt_{number:03}", f"acct_{number}")
    async with trio.open_nursery() as nursery:
        await setup.run(nursery)
        await trio.sleep(1.5)
        nursery.cancel_scope.cancel()
    assert setup.most_running["all"] == QUICK_MAX
    assert len(setup.outcomes) == 2 * QUICK_MAX


async def test_events_due_after_a_commit_are_delivered_at_once(autojump_clock: trio.testing.MockClock) -> None:
    setup = Setup()
    async with trio.open_nursery() as nursery:
        await setup.run(nursery)
        await trio.sleep(10)
        setup.add("evt_1")
        setup.worker_ref.tell(EventsDue("acct_1"))
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert [at for at, *_ in setup.sent] == [10]


async def test_due_events_are_claimed_again_when_a_full_account_has_a_place(
    autojump_clock: trio.testing.MockClock,
) -> None:
    setup = Setup(answer_after_s=lambda _: 5.0)
    async with trio.open_nursery() as nursery:
        await setup.run(nursery)
        await trio.sleep(1)
        assert len(setup.afters) == 1
        for number in range(PER_ACCOUNT_MAX - 1):
            setup.add(f"evt_{number}")
        setup.worker_ref.tell(EventsDue("acct_1"))
        await trio.sleep(1)
        assert (len(setup.afters), len(setup.sent)) == (2, PER_ACCOUNT_MAX - 1)
        setup.add("evt_last")
        setup.worker_ref.tell(EventsDue("acct_1"))
        await trio.sleep(1)
        assert (len(setup.afters), len(setup.sent)) == (3, PER_ACCOUNT_MAX)
        await trio.sleep(5)
        assert len(setup.afters) == 4
        nursery.cancel_scope.cancel()


async def test_the_outcome_of_assets_ready_is_written_by_the_task(
    autojump_clock: trio.testing.MockClock,
) -> None:
    answers = iter([DeliveryResponse(None, error="unreachable"), DeliveryResponse(200)])
    setup = Setup(answer=lambda _: next(answers))
    setup.add("evt_1", kind="task.assets_ready")
    async with trio.open_nursery() as nursery:
        await setup.run(nursery)
        await trio.sleep(2 * TICK_S)
        nursery.cancel_scope.cancel()
    [(request_id, message)] = setup.reported
    assert (request_id, message.delivered) == ("task_1", True)
    assert [type(row) for row in message.rows] == [OutboxAttemptRow, OutboxOutcomeRow]
    assert [row.status for row in setup.outcomes] == ["pending"]
    assert setup.attempts[0].error == "unreachable"


async def test_a_broken_event_is_a_failed_attempt_only(
    autojump_clock: trio.testing.MockClock,
) -> None:
    def render(event: DueEvent) -> bytes:
        if event.event_id == "evt_odd" and event.attempts == 1:
            raise ValueError("cannot be written")
        return b"{}"

    setup = Setup(render=render)
    setup.add("evt_odd")
    setup.add("evt_good")
    async with trio.open_nursery() as nursery:
        await setup.run(nursery)
        await trio.sleep(2 * TICK_S)
        nursery.cancel_scope.cancel()
    assert Counter((row.event_id, row.attempts, row.status) for row in setup.outcomes) == {
        ("evt_odd", 1, "pending"): 1,
        ("evt_good", 1, "delivered"): 1,
        ("evt_odd", 2, "delivered"): 1,
    }
    assert [row.error for row in setup.attempts if row.event_id == "evt_odd"] == ["internal fault", None]


async def test_a_stop_waits_for_quick_receivers_only(
    autojump_clock: trio.testing.MockClock,
) -> None:
    setup = Setup(answer_after_s=lambda url: 3600.0 if "slow" in url else 1.0)
    setup.add("evt_slow", "acct_slow")
    setup.add("evt_quick", "acct_quick")
    async with trio.open_nursery() as nursery:
        worker = await setup.run(nursery)
        await trio.sleep(0.5)
        await worker.stop()
    assert [row.event_id for row in setup.outcomes] == ["evt_quick"]
    assert trio.current_time() - setup.started_s < 3
    assert set(setup.due_at) == {"evt_slow"}
