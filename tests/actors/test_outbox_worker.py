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

import pytest
import trio
import trio.testing
from tests.recorded_refs import RecordedRef

from holdfast.actors.runtime.refs import WorkerRef
from holdfast.actors.task.messages import EventsDue, RecordAnnouncement
from holdfast.actors.workers.outbox import MAIL_MAX, PER_ACCOUNT_MAX, PER_RECEIVER_MAX, QUICK_MAX, OutboxWorker
from holdfast.ledger.alerts.account_events import AnyEventKind
from holdfast.ledger.tasks.events import PAUSES_S, DeliveryResponse, pause_after
from holdfast.ledger.tasks.webhook_secrets import webhook_secret
from holdfast.persistence.claims.outbox import FIRST, Capacity, DueEvent, Share
from holdfast.persistence.journal.journal import Journal
from holdfast.persistence.journal.units import Committed, Unit, UnitResult
from holdfast.persistence.records.event_rows import MAIL_URL
from holdfast.persistence.records.rows import (
    OutboxAttemptRow,
    OutboxOutcomeRow,
)
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
    secrets_keys: tuple[bytes, ...] = (KEY,)
    mailed: list[str] = field(default_factory=list)
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

    def add(self, event_id: str, account_id: str = "acct_1", kind: AnyEventKind = "task.failed") -> None:
        """Add an event that is due now, for the account's own receiver."""
        at = self.now()
        url = f"https://{account_id}.test/"
        self.events[event_id] = DueEvent(
            account_id, event_id, account_id, "task_1", kind, url, at, 0, at, 0, "{}", ()
        )
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
        for receiver, is_silent in learned.items():
            (self.silent.add if is_silent else self.silent.discard)(receiver)
        taken: list[DueEvent] = []
        many = Counter(capacity.busy)
        of_accounts = Counter(capacity.accounts_busy)
        free: dict[Share, int] = {"mail": capacity.to_mail, "silent": capacity.to_silent, "quick": capacity.quick}
        for event_id, due_at in sorted(self.due_at.items(), key=lambda item: item[1]):
            event = self.events[event_id]
            is_silent = event.receiver in self.silent
            if after is None and event.receiver not in named:
                continue
            share = event._replace(is_silent=is_silent).share
            of_account = (event.account_id, share)
            is_full = many[event.receiver] >= PER_RECEIVER_MAX or of_accounts[of_account] >= PER_ACCOUNT_MAX
            if due_at <= now and free[share] and not is_full:
                many[event.receiver] += 1
                of_accounts[of_account] += 1
                free[share] -= 1
                claimed = event._replace(attempts=event.attempts + 1, tries=event.tries + 1, is_silent=is_silent)
                self.events[event_id] = claimed
                self.due_at[event_id] = now + timedelta(seconds=max(20, pause_after(claimed.tries)))
                taken.append(claimed)
        return taken, self.following.pop(0) if self.following else None

    async def write(self, unit: Unit) -> UnitResult:
        """Write a unit, as the journal would."""
        await trio.lowlevel.checkpoint()
        *attempts, outcome = unit.rows
        assert isinstance(outcome, OutboxOutcomeRow)
        self.attempts += [each for each in attempts if isinstance(each, OutboxAttemptRow)]
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
        assert url.endswith(f"{account_id}.test/") or url == "https://dead.test/hooks"
        self.sent.append((trio.current_time() - self.started_s, url, dict(headers), body))
        self.running[url] += 1
        self.most_running[url] = max(self.running[url], self.most_running[url])
        self.most_running["all"] = max(self.running.total(), self.most_running["all"])
        try:
            await trio.sleep(self.answer_after_s(url))
        finally:
            self.running[url] -= 1
        return self.answer(url)

    async def send_mail(self, event: DueEvent) -> DeliveryResponse:
        self.mailed.append(event.event_id)
        await trio.sleep(self.answer_after_s(event.url))
        return self.answer(event.url)

    async def run(
        self, nursery: trio.Nursery, *, tick_s: float = TICK_S, give_up_s: float = THREE_DAYS_S
    ) -> OutboxWorker:
        """Start a worker."""
        worker = OutboxWorker(
            self.worker_ref,
            claim=self.claim,
            journal=cast(Journal, self),
            tasks=self,
            render=self.render,
            send=self.send,
            send_mail=self.send_mail,
            secrets_keys=self.secrets_keys,
            give_up_s=give_up_s,
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


@pytest.mark.slow
async def test_a_dead_receiver_is_tried_ten_times_and_then_given_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    setup, tick_s = Setup(answer=lambda _: DeliveryResponse(503)), 5 * TICK_S
    setup.add("evt_1")
    async with trio.open_nursery() as nursery:
        # Three days are very many ticks.
        await setup.run(nursery, tick_s=tick_s)
        await trio.sleep(THREE_DAYS_S + 3600)
        nursery.cancel_scope.cancel()

    times = [at for at, *_ in setup.sent]
    assert len(times) == 10
    assert times[0] == 0
    gaps = [later - sooner for sooner, later in pairwise(times)]
    for gap, pause_s in zip(gaps[:-1], PAUSES_S, strict=False):
        assert pause_s <= gap <= 1.25 * pause_s + tick_s
    assert THREE_DAYS_S <= times[-1] <= THREE_DAYS_S + tick_s
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


async def test_events_are_signed_with_the_secrets_of_the_previous_server_key_too(
    autojump_clock: trio.testing.MockClock,
) -> None:
    setup = Setup(secrets_keys=(b"n" * 32, KEY))
    setup.add("evt_1")
    async with trio.open_nursery() as nursery:
        await setup.run(nursery)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()

    [(at, _, headers, body)] = setup.sent
    sent_at = NOON + timedelta(seconds=at)
    for key, verdict in ((b"n" * 32, "valid"), (KEY, "valid"), (b"o" * 32, "invalid")):
        assert verify_standard(headers, body, [webhook_secret(key, "acct_1", 0)], now=sent_at) == verdict


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
        await trio.sleep(15 * (50 / PER_RECEIVER_MAX) + 20)
        nursery.cancel_scope.cancel()
    assert setup.most_running["https://acct_slow.test/"] == PER_RECEIVER_MAX
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
        for number in range(PER_RECEIVER_MAX - 1):
            setup.add(f"evt_{number}")
        setup.worker_ref.tell(EventsDue("acct_1"))
        await trio.sleep(1)
        assert (len(setup.afters), len(setup.sent)) == (2, PER_RECEIVER_MAX - 1)
        setup.add("evt_last")
        setup.worker_ref.tell(EventsDue("acct_1"))
        await trio.sleep(1)
        assert (len(setup.afters), len(setup.sent)) == (3, PER_RECEIVER_MAX)
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


async def test_a_hanging_webhook_delays_no_other_of_its_account(autojump_clock: trio.testing.MockClock) -> None:
    setup = Setup(answer_after_s=lambda url: 15.0 if "hangs" in url else 0.1)
    for number in range(30):
        for webhook_id, host in (("wh_1", "hangs"), ("wh_2", "calm")):
            setup.add(f"evt_{host}_{number:02}")
            event = setup.events[f"evt_{host}_{number:02}"]
            url = f"https://{host}.acct_1.test/"
            setup.events[event.event_id] = event._replace(webhook_id=webhook_id, receiver=webhook_id, url=url)
    setup.add("evt_own")
    async with trio.open_nursery() as nursery:
        await setup.run(nursery)
        await trio.sleep(1)
        ended = [row.event_id for row in setup.outcomes]
        assert "evt_own" in ended
        assert sum(event_id.startswith("evt_calm") for event_id in ended) == 30
        assert setup.most_running["https://hangs.acct_1.test/"] == PER_RECEIVER_MAX
        nursery.cancel_scope.cancel()


async def test_an_event_of_a_webhook_that_is_gone_is_given_up_untried(
    autojump_clock: trio.testing.MockClock,
) -> None:
    setup = Setup()
    setup.add("evt_1", kind="task.assets_ready")
    gone = setup.events["evt_1"]._replace(webhook_id="wh_1", ended="the webhook was deleted")
    setup.events["evt_1"] = gone
    async with trio.open_nursery() as nursery:
        await setup.run(nursery)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert (setup.sent, setup.attempts, setup.reported) == ([], [], [])
    [outcome] = setup.outcomes
    assert (outcome.status, outcome.reason, outcome.due_at) == ("given_up", "the webhook was deleted", None)


async def test_a_task_records_the_outcome_for_its_own_webhook_only(autojump_clock: trio.testing.MockClock) -> None:
    setup = Setup()
    setup.add("evt_own", kind="task.assets_ready")
    setup.add("evt_other", kind="task.assets_ready")
    setup.events["evt_other"] = setup.events["evt_other"]._replace(webhook_id="wh_1", receiver="wh_1")
    async with trio.open_nursery() as nursery:
        await setup.run(nursery)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert [key for key, _ in setup.reported] == ["task_1"]
    assert [row.event_id for row in setup.outcomes] == ["evt_other"]


@pytest.mark.parametrize("is_final", [False, True])
async def test_a_mail_is_tried_again_unless_its_address_is_refused(
    autojump_clock: trio.testing.MockClock, is_final: bool
) -> None:
    refused = DeliveryResponse(None, error="the mail server refused", is_final=is_final)
    setup = Setup(answer=lambda _: refused if len(setup.mailed) < 2 else DeliveryResponse(250))
    setup.add("evt_1", kind="balance.below")
    setup.events["evt_1"] = setup.events["evt_1"]._replace(url=MAIL_URL, request_id=None, receiver="mail:acct_1")
    async with trio.open_nursery() as nursery:
        await setup.run(nursery)
        await trio.sleep(1000)
        nursery.cancel_scope.cancel()
    assert setup.sent == []
    assert setup.mailed == ["evt_1"] * (1 if is_final else 2)
    assert [(row.status, row.reason) for row in setup.outcomes] == (
        [("given_up", "the mail server refused")] if is_final else [("pending", None), ("delivered", None)]
    )
    assert [row.status_code for row in setup.attempts] == ([None] if is_final else [None, 250])


async def test_a_mail_that_cannot_be_made_is_given_up_in_the_end(autojump_clock: trio.testing.MockClock) -> None:
    def fail(_: str) -> DeliveryResponse:
        raise AssertionError("no mail is sent about this")

    setup = Setup(answer=fail)
    setup.add("evt_1", kind="account.disabled")
    setup.events["evt_1"] = setup.events["evt_1"]._replace(url=MAIL_URL, request_id=None, receiver="mail:acct_1")
    async with trio.open_nursery() as nursery:
        await setup.run(nursery, give_up_s=3600)
        await trio.sleep(2 * 3600)
        nursery.cancel_scope.cancel()
    assert setup.outcomes[-1].status == "given_up"
    assert {row.error for row in setup.attempts} == {"internal fault"}
    assert setup.due_at == {}


async def test_mail_that_waits_for_its_server_delays_no_webhook(autojump_clock: trio.testing.MockClock) -> None:
    """Only so many wait at once, none takes the place of a webhook, and each end lets the next one begin."""
    setup = Setup(answer_after_s=lambda url: 30.0 if url == MAIL_URL else 0.0)
    for number in range(3 * MAIL_MAX):
        receiver = f"mail:acct_{number}"
        setup.add(f"evt_{number}", f"acct_{number}")
        setup.events[f"evt_{number}"] = setup.events[f"evt_{number}"]._replace(url=MAIL_URL, receiver=receiver)
    async with trio.open_nursery() as nursery:
        await setup.run(nursery)
        await trio.sleep(29)
        assert len(setup.mailed) == MAIL_MAX
        setup.add("evt_calm", "acct_calm")
        setup.worker_ref.tell(EventsDue("acct_calm"))
        await trio.sleep(0.5)
        assert [url for _, url, *_ in setup.sent] == ["https://acct_calm.test/"]
        await trio.sleep(61)
        nursery.cancel_scope.cancel()
    assert len(setup.mailed) == len(set(setup.mailed)) == 3 * MAIL_MAX
    # That the server takes long says nothing of the owner.
    assert setup.silent == set()


async def test_an_account_with_many_receivers_has_few_deliveries_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    setup = Setup(answer_after_s=lambda _: 3.0)
    for number in range(3 * PER_ACCOUNT_MAX):
        setup.add(f"evt_{number:02}", "acct_many")
        setup.events[f"evt_{number:02}"] = setup.events[f"evt_{number:02}"]._replace(
            webhook_id=f"wh_{number}", receiver=f"wh_{number}"
        )
    async with trio.open_nursery() as nursery:
        await setup.run(nursery)
        # The next ones begin with the end of the first, and not with the next tick.
        await trio.sleep(3 * 3.0 + 0.5)
        nursery.cancel_scope.cancel()
    assert setup.most_running["all"] == PER_ACCOUNT_MAX
    assert Counter(row.status for row in setup.outcomes) == {"delivered": 3 * PER_ACCOUNT_MAX}
