"""The expiry of outputs in the task actor: early ones, void decisions, and other processes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest
import trio
import trio.testing
from sqlalchemy import Connection, text

from holdfast.actors.task.messages import DecideReview, ExpireAssets, Host, Wake
from holdfast.actors.workers.asset_sweeper import Swept
from holdfast.persistence.journal.units import Unit, UnitResult
from holdfast.persistence.server.connections import await_in_call

from .asset_setup import RETENTION_S, Setup, picture, update


async def test_early_outputs_expire_with_the_rest(setup: Setup) -> None:
    first, second = picture(1), picture(2)
    request_id = await setup.conflict(first)
    setup.passes(RETENTION_S + 1)
    sweeper = setup.sweeper()
    assert await sweeper.sweep() == Swept(0, 0)
    await setup.tasks.ref(request_id).ask(DecideReview(approve=True))
    await setup.tasks.ref(request_id).ask(await setup.stored(1, second, round_number=2))
    done = await setup.row(request_id)
    until = setup.at + timedelta(seconds=RETENTION_S)
    assert (done.status, [item.expires_at for item in done.state.output]) == ("succeeded", [until] * 2)

    def expiries(rows: Connection) -> list[datetime]:
        return list(rows.execute(text("select expires_at from assets")).scalars())

    assert await setup.system.database.read(expiries) == [until] * 2
    setup.passes(RETENTION_S - 1)
    assert await sweeper.sweep() == Swept(0, 0)
    setup.passes(2)
    assert await sweeper.sweep() == Swept(1, 2)


async def test_an_end_based_on_a_void_step_is_void(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    request_id = await setup.storing(picture(1))
    # Another process moves the row; ours does not know it.
    await setup.rival.ref(request_id).ask(update(request_id, "evt_2", "failed"))
    last = await setup.stored(1, picture(2))
    writer = setup.system.journal._writer
    write, begun, go_on = writer.write, trio.Event(), trio.Event()

    def waits(units: Sequence[Unit]) -> list[UnitResult]:
        begun.set()
        await_in_call(go_on.wait)
        return write(units)

    monkeypatch.setattr(writer, "write", waits)
    # Ours moves it as well, to a version of the same number, and ends the task on top of that while this is
    # still on its way to the disk.
    setup.tasks.ref(request_id).tell(update(request_id, "evt_3", "succeeded", outputs=2))
    await begun.wait()
    setup.tasks.ref(request_id).tell(last)
    await trio.testing.wait_all_tasks_blocked()
    go_on.set()
    await setup.tasks.ref(request_id).ask(Wake())
    assert (await setup.row(request_id)).status == "review"


async def test_an_idle_wake_checks_for_changes_by_other_processes(setup: Setup) -> None:
    request_id = await setup.conflict(picture(1))
    await setup.rival.ref(request_id).ask(DecideReview(approve=True))
    setup.messages.received.clear()
    # The process that approved is gone, and its message to store the rest is lost.
    setup.passes(61)
    await setup.tasks.ref(request_id).ask(Wake())
    assert [type(command) for _, command in setup.messages.received] == [Host]


async def test_an_outdated_actor_reloads_before_it_replies(setup: Setup) -> None:
    request_id = await setup.task(picture(1), status="processing")
    await setup.tasks.ref(request_id).ask(ExpireAssets())
    await setup.change("update tasks set status = 'succeeded', version = version + 1")
    await setup.tasks.ref(request_id).ask(ExpireAssets())
    assert (await setup.row(request_id)).state.hosting.status == "expired"
    assert await setup.count("assets") == 0
