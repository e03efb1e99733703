"""Faults of the workers below a parent: kills, rolls, and frozen processes."""

from __future__ import annotations

import random
import signal

import trio

from .deployment import Deployment

ROLL_S_MAX = 150.0
POLL_S = 0.05
FROZEN_S = 33.0
"""A little longer than a parent waits for a sign of life."""


async def kill_workers(deployment: Deployment, rng: random.Random) -> None:
    """``kill -9`` of a worker, sometimes of several, or of its successor during its start."""
    [parent] = deployment.services
    while True:
        workers = parent.workers()
        if workers:
            parent.send_to_worker(rng.choice(workers), signal.SIGKILL)
        if rng.random() < 0.6:
            return
        await trio.sleep(rng.uniform(0, 1.8))


async def roll(deployment: Deployment, rng: random.Random) -> None:
    """A roll, sometimes two in a row, sometimes with a kill of a worker or of the parent during it."""
    [parent] = deployment.services
    process, ended = parent.process, parent.count_logged("roll complete", "roll abandoned")
    if process is None or not parent.workers():
        return
    process.send_signal(signal.SIGUSR2)
    kind = rng.choice(("plain", "plain", "twice", "worker", "parent"))
    if kind != "plain":
        await trio.sleep(rng.uniform(0, 2))
    if kind == "twice":
        process.send_signal(signal.SIGUSR2)
    elif kind == "worker" and (workers := parent.workers()):
        parent.send_to_worker(rng.choice(workers), signal.SIGKILL)
    elif kind == "parent":
        parent.kill()
        return
    # Another fault of the same round may end the parent.
    with trio.fail_after(ROLL_S_MAX):
        while parent.process is process and process.poll() is None:
            if parent.count_logged("roll complete", "roll abandoned") > ended:
                return
            await trio.sleep(POLL_S)


async def freeze_worker(deployment: Deployment, rng: random.Random) -> None:
    """A worker is paused for a while, sometimes until its parent replaces it."""
    [parent] = deployment.services
    workers = parent.workers()
    if not workers:
        return
    worker = rng.choice(workers)
    parent.send_to_worker(worker, signal.SIGSTOP)
    try:
        await trio.sleep(rng.choice((rng.uniform(0.2, 1), rng.uniform(1, 8), rng.uniform(5, 12), FROZEN_S)))
    finally:
        parent.send_to_worker(worker, signal.SIGCONT)
