"""The faults: each breaks something under load, repairs it, and returns once everything works again."""

from __future__ import annotations

import contextlib
import random
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import psycopg
import trio

from . import database_faults as database
from . import machine_faults as machines
from . import worker_faults as workers
from .deployment import Deployment, DeploymentKind
from .hostile import attack
from .postgres import waits_for_its_client

Run: TypeAlias = Callable[[Deployment, random.Random], Awaitable[None]]
Group = Literal["service", "database", "surroundings"]

FREEZES_MAX = 40
FREEZE_LOOK_S = 0.3
CLOCK_MOVES_S = (-7200, -600, -5, 5, 600, 7200)


@dataclass(frozen=True)
class Fault:
    """A kind of fault: on which deployments it can happen, and its function.

    ``lets_tasks_fail``: tasks may run into their deadlines, or out of tries to store results. ``lets_exit``: the
    service may end with an exit code of 1 for its process manager to start it again.
    """

    name: str
    group: Group
    kinds: tuple[DeploymentKind, ...]
    run: Run
    lets_tasks_fail: bool = False
    lets_exit: bool = False


async def kill_service(deployment: Deployment, rng: random.Random) -> None:
    """``kill -9`` of one process, or of a parent, sometimes again during its start."""
    service = rng.choice(deployment.services)
    service.kill()
    while rng.random() < 0.4:
        await trio.sleep(rng.uniform(0.1, 1.8))
        service.kill()


async def restart_service(deployment: Deployment, rng: random.Random) -> None:
    """An orderly stop, sometimes with a second signal or a kill during it."""
    service = rng.choice(deployment.services)
    process = service.process
    if process is None or not service.signal(signal.SIGTERM):
        return
    if rng.random() < 0.4:
        await trio.sleep(rng.uniform(0, 0.3))
        process.send_signal(rng.choice((signal.SIGTERM, signal.SIGKILL)))
    await trio.to_thread.run_sync(process.wait, 60)


async def freeze_in_commit(deployment: Deployment, rng: random.Random) -> None:
    """A process or worker is paused while a transaction of it is open, and continues on rows that have moved on."""
    service = rng.choice(deployment.services)
    pids = service.workers() or ([] if service.process is None else [service.process.pid])
    if not pids:
        return
    pid = rng.choice(pids)
    try:
        for _ in range(FREEZES_MAX):
            service.send_to_worker(pid, signal.SIGSTOP)
            await trio.sleep(FREEZE_LOOK_S)
            with contextlib.suppress(psycopg.Error, OSError):
                if await trio.to_thread.run_sync(waits_for_its_client, deployment.database_url()):
                    await trio.sleep(rng.uniform(1, 12))
                    return
            service.send_to_worker(pid, signal.SIGCONT)
            await trio.sleep(rng.uniform(0, 0.05))
    finally:
        service.send_to_worker(pid, signal.SIGCONT)


async def disturb_media(deployment: Deployment, rng: random.Random) -> None:
    """The media provider is silent, repeats its messages, is late, or truncates responses."""
    media = deployment.media
    media.set_mode(rng.choice(("silent", "doubled", "late", "cut")))
    try:
        await trio.sleep(rng.uniform(0.5, 2))
    finally:
        media.set_mode("prompt")


async def disturb_card(deployment: Deployment, rng: random.Random) -> None:
    """The card provider loses, duplicates, delays or reorders webhooks, or does not respond."""
    card = deployment.card
    kind = rng.choice(("drop", "hold", "duplicate", "delay", "reorder", "refuse", "lose_answer", "slow", "error"))
    try:
        match kind:
            case "drop":
                await card.misdeliver(drop=True)
            case "hold":
                await card.misdeliver(hold=True)
            case "duplicate":
                await card.misdeliver(duplicate=3)
            case "delay":
                await card.misdeliver(delay_s=1.5)
            case "reorder":
                await card.misdeliver(reorder=True)
            case _:
                await card.fail("*", kind, delay_s=4.0)
        await trio.sleep(rng.uniform(0.5, 2))
    finally:
        with trio.CancelScope(shield=True):
            await card.recover()
            await card.release(rng.getrandbits(31))


async def move_clock(deployment: Deployment, rng: random.Random) -> None:
    """The clock jumps, and mostly jumps back."""
    deployment.move_clock(rng.choice(CLOCK_MOVES_S))
    # The service looks once in a second whether its clock was moved.
    await trio.sleep(rng.uniform(1.1, 2.5))
    if rng.random() < 0.7:
        deployment.move_clock(0)


async def exhaust_files(deployment: Deployment, rng: random.Random) -> None:
    """Idle connections up to the service's limit of open files."""
    streams: list[trio.SocketStream] = []
    try:
        with trio.move_on_after(rng.uniform(0.5, 2)):
            service = rng.choice(deployment.services)
            for _ in range(2 * (service.files_max or 0)):
                with trio.move_on_after(0.2):
                    streams.append(await trio.open_tcp_stream("127.0.0.1", service.port))
            await trio.sleep_forever()
    except OSError:
        pass
    finally:
        for stream in streams:
            await trio.aclose_forcefully(stream)


EVERYWHERE: tuple[DeploymentKind, ...] = ("embedded", "server", "processes", "workers", "pair")
OWN_SERVER: tuple[DeploymentKind, ...] = ("server", "processes")

FAULTS: Mapping[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault("kill", "service", (*EVERYWHERE, "disk", "files", "clock"), kill_service),
        Fault("restart", "service", EVERYWHERE, restart_service),
        Fault("power", "service", ("embedded", "workers"), database.kill_everything),
        Fault("postmaster", "database", EVERYWHERE, database.kill_postmaster),
        Fault("backend", "database", EVERYWHERE, database.kill_backend),
        Fault("stop", "database", OWN_SERVER, database.stop_and_start),
        Fault("freeze", "database", EVERYWHERE, database.freeze),
        Fault("failover", "database", ("pair",), database.fail_over),
        Fault("machine-kill", "database", ("patroni",), machines.kill),
        Fault("machine-freeze", "database", ("patroni",), machines.freeze),
        Fault("machine-cut", "database", ("patroni",), machines.cut),
        Fault("machine-part", "database", ("patroni",), machines.part),
        Fault("machine-disk", "database", ("patroni",), machines.fill_disk),
        Fault("cut", "database", EVERYWHERE, database.terminate_connections),
        Fault("proxy", "database", OWN_SERVER, database.disturb_connections),
        Fault("lock", "database", EVERYWHERE, database.hold_lock),
        Fault("disk", "database", ("disk",), database.fill_disk, lets_tasks_fail=True, lets_exit=True),
        Fault("files", "surroundings", ("files",), exhaust_files),
        Fault("clock", "surroundings", ("clock",), move_clock, lets_tasks_fail=True),
        Fault("commit", "service", ("processes", "workers"), freeze_in_commit),
        Fault("media", "surroundings", EVERYWHERE, disturb_media),
        Fault("card", "surroundings", EVERYWHERE, disturb_card),
        Fault("hostile", "surroundings", EVERYWHERE, attack),
        Fault("processes", "service", ("processes",), kill_service),
        Fault("worker", "service", ("workers",), workers.kill_workers),
        Fault("roll", "service", ("workers",), workers.roll),
        Fault("pause", "service", ("workers",), workers.freeze_worker),
    )
}


def both(first: Fault, second: Fault) -> Fault:
    """Two faults that overlap."""

    async def run(deployment: Deployment, rng: random.Random) -> None:
        seeds = rng.getrandbits(64), rng.getrandbits(64)

        async def later(fault: Fault, own: random.Random) -> None:
            await trio.sleep(own.uniform(0, 1))
            await fault.run(deployment, own)

        async with trio.open_nursery() as nursery:
            for fault, seed in zip((first, second), seeds, strict=True):
                nursery.start_soon(partial(later, fault, random.Random(seed)))
        await database.mend(deployment)

    kinds = tuple(kind for kind in first.kinds if kind in second.kinds)
    return Fault(
        f"{first.name}+{second.name}",
        "database" if "database" in (first.group, second.group) else first.group,
        kinds,
        run,
        first.lets_tasks_fail or second.lets_tasks_fail,
        first.lets_exit or second.lets_exit,
    )
