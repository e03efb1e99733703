"""Faults of the primary's machine, after which Patroni fails over; the harness only repairs the machine."""

from __future__ import annotations

import contextlib
import random
import signal
from collections.abc import Callable, Iterator
from typing import TypeAlias

import psycopg
import trio

from .database_faults import LOG_FILES, fill
from .deployment import Deployment
from .patroni import Machine, PatroniCluster

LONGEST_S = 6.0
"""How long a machine stays broken at most after another has taken over."""


Breakage: TypeAlias = Callable[[PatroniCluster, Machine], contextlib.AbstractContextManager[None]]


async def kill(deployment: Deployment, rng: random.Random) -> None:
    """``kill -9`` of everything on the primary's machine; it starts again later."""
    await _fail_over(deployment, rng, _killed)


async def freeze(deployment: Deployment, rng: random.Random) -> None:
    """Everything on the primary's machine is paused until another has taken over, and then goes on."""
    await _fail_over(deployment, rng, _frozen)


async def cut(deployment: Deployment, rng: random.Random) -> None:
    """The primary's machine is cut off from all others."""
    await _fail_over(deployment, rng, _cut)


async def part(deployment: Deployment, rng: random.Random) -> None:
    """The primary's machine is cut off from the other machines, but not from the service."""
    await _fail_over(deployment, rng, _parted)


async def fill_disk(deployment: Deployment, rng: random.Random) -> None:
    """The file system of the primary is full."""
    await _fail_over(deployment, rng, _full)


async def _fail_over(deployment: Deployment, rng: random.Random, breakage: Breakage) -> None:
    cluster = deployment.cluster
    assert cluster is not None
    old = await trio.to_thread.run_sync(cluster.await_calm)
    broken = breakage(cluster, old)
    begun = trio.current_time()
    await trio.to_thread.run_sync(broken.__enter__)
    try:
        await trio.to_thread.run_sync(cluster.await_successor, old)
        deployment.recovery_s = await deployment.first_writes(begun)
        await trio.sleep(rng.uniform(0, LONGEST_S))
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(broken.__exit__, None, None, None)
    await trio.to_thread.run_sync(cluster.await_calm)


@contextlib.contextmanager
def _killed(cluster: PatroniCluster, machine: Machine) -> Iterator[None]:
    machine.signal(signal.SIGKILL)
    yield
    cluster.boot(machine)


@contextlib.contextmanager
def _frozen(_: PatroniCluster, machine: Machine) -> Iterator[None]:
    machine.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        machine.signal(signal.SIGCONT)


@contextlib.contextmanager
def _cut(_: PatroniCluster, machine: Machine) -> Iterator[None]:
    machine.set_link("down")
    try:
        yield
    finally:
        machine.set_link("up")


@contextlib.contextmanager
def _parted(cluster: PatroniCluster, machine: Machine) -> Iterator[None]:
    machine.set_routes("add", cluster.others(machine))
    try:
        yield
    finally:
        machine.set_routes("del", cluster.others(machine))


@contextlib.contextmanager
def _full(cluster: PatroniCluster, machine: Machine) -> Iterator[None]:
    ballast = machine.disk / "ballast"
    fill(ballast)
    # A log that needs a new file now finds no room for it; the server has some in store.
    with contextlib.suppress(psycopg.Error), psycopg.connect(cluster.url, autocommit=True) as connection:
        connection.execute("set statement_timeout = '5s'")
        for _ in range(LOG_FILES):
            connection.execute("select pg_logical_emit_message(false, '', 'full')")
            connection.execute("select pg_switch_wal()")
    fill(ballast)
    try:
        yield
    finally:
        ballast.unlink()
