"""Results of deliveries to hosts that many accounts share, as the outbox worker reports of them."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from holdfast.actors.task.messages import DeliveryEnded
from holdfast.actors.workers.outbox import FAILING_MAX, FORGOTTEN_S, HOSTS_MAX, DeliveryResults
from holdfast.telemetry.reports.conditions import Conditions
from holdfast.telemetry.reports.reporter import Reporter

HOST = "hooks.chat.test"


class Deliveries:
    """Deliveries to receivers of one host, each of an account of its own."""

    def __init__(self) -> None:
        self.reporter = Reporter()
        self.conditions = Conditions(self.reporter)
        self.results = DeliveryResults(self.conditions)

    def end(self, number: int, *, fails: bool = False, host: str = HOST) -> None:
        reason = "status 404" if fails else None
        self.results.take(DeliveryEnded(host, f"wh_{number}", f"acct_{number}", f"evt_{number}", reason))

    @property
    def reports(self) -> list[tuple[str, str | None, str | None]]:
        """The kind, key and account of each report, the oldest first."""
        return [(each.kind, each.key, each.account_id) for each in reversed(self.reporter.recent())]


async def test_one_that_fails_beside_others_of_its_host_has_one_outage(autojump_clock: MockClock) -> None:
    """Whatever happens meanwhile at the same host, it ends with a delivery to this one."""
    deliveries = Deliveries()
    for second in range(75):
        deliveries.end(second % 12, fails=second % 12 == 0)
        deliveries.end(0, fails=True)
        await trio.sleep(1)
    assert deliveries.reports == [("outage", f"{HOST} wh_0", "acct_0")]
    deliveries.end(0)
    assert deliveries.reports[1:] == [("recovery", f"{HOST} wh_0", "acct_0")]


async def test_a_host_that_takes_nothing_has_one_outage(autojump_clock: MockClock) -> None:
    deliveries = Deliveries()
    for number in range(12):
        deliveries.end(number)
    for _ in range(4):
        for number in range(12):
            await trio.sleep(1)
            deliveries.end(number, fails=True)
    assert deliveries.reports == [("outage", HOST, None)]
    # One is delivered to: for the host it is over, and the others have to fail again for themselves.
    deliveries.end(1)
    assert [kind for kind, *_ in deliveries.reports] == ["outage", "recovery"]
    for _ in range(3):
        await trio.sleep(1)
        deliveries.end(2, fails=True)
        deliveries.end(3)
    assert deliveries.reports[2:] == [("outage", f"{HOST} wh_2", "acct_2")]


async def test_one_that_is_alone_at_its_host_is_not_well_when_another_is(autojump_clock: MockClock) -> None:
    deliveries = Deliveries()
    for _ in range(3):
        deliveries.end(0, fails=True)
    deliveries.end(1)
    deliveries.end(0, fails=True)
    assert deliveries.reports == [("outage", f"{HOST} wh_0", "acct_0")]
    # Its outage goes on through one of the whole host.
    for _ in range(3):
        await trio.sleep(1)
        deliveries.end(0, fails=True)
        deliveries.end(1, fails=True)
    deliveries.end(1)
    assert [each.subject for each in deliveries.conditions.lasting()] == [f"{HOST} wh_0"]


async def test_what_failed_long_ago_makes_no_outage_of_a_host(autojump_clock: MockClock) -> None:
    deliveries = Deliveries()
    deliveries.end(0, fails=True)
    await trio.sleep(FORGOTTEN_S)
    for _ in range(3):
        deliveries.end(1, fails=True)
    assert deliveries.reports == [("outage", f"{HOST} wh_1", "acct_1")]


async def test_no_success_is_claimed_of_what_is_not_tried_any_more(autojump_clock: MockClock) -> None:
    deliveries = Deliveries()
    for _ in range(3):
        deliveries.end(0, fails=True)
    await trio.sleep(FORGOTTEN_S)
    deliveries.conditions.check()
    assert deliveries.reporter.recent(1)[0].reason == "no delivery has failed for an hour"


async def test_what_is_known_of_hosts_is_bounded(autojump_clock: MockClock) -> None:
    deliveries = Deliveries()
    for number in range(HOSTS_MAX + 10):
        deliveries.end(0, host=f"host{number}.test")
    for number in range(FAILING_MAX + 10):
        deliveries.end(number, fails=True)
    hosts = deliveries.results._hosts
    assert (len(hosts), len(hosts[HOST].failing)) == (HOSTS_MAX, FAILING_MAX)
    assert f"wh_{FAILING_MAX + 9}" in hosts[HOST].failing
