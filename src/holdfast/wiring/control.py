"""The control actor of this process: what it describes, and what its keys are shown as."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from socket import gethostname

from holdfast import __version__
from holdfast.actors.workers.worker import WorkerRef
from holdfast.cluster.controls import Controls
from holdfast.cluster.groups import ACCOUNTS, CONTROL, SIGN_INS, TASKS
from holdfast.cluster.members import Members
from holdfast.ledger.clock import format_time, utc_now
from holdfast.ledger.places import place_carried_by, place_of
from holdfast.persistence.server.database import Database
from holdfast.settings.settings import Settings
from holdfast.supervision.control.actor import ControlActor, ControlledProcess, ControlRef
from holdfast.supervision.control.keys import ControlledGroup
from holdfast.supervision.control.messages import ProcessIdentity
from holdfast.supervision.dead_letters import DeadLetters
from holdfast.supervision.directory import KeyedDirectory
from holdfast.supervision.supervisor import Supervisor
from holdfast.telemetry.metrics.samples import SampleRing
from holdfast.telemetry.reports.conditions import Conditions
from holdfast.wiring.masked_keys import masked_key


def controls_of_all(ref: ControlRef, members: Members) -> Controls:
    """Return the control actors of all members; others may ask the one at ``ref``."""
    members.serve(CONTROL, ref)
    return Controls(members, ref, {ACCOUNTS: place_of, SIGN_INS: place_of, TASKS: place_carried_by})


def collect_dead_letters(dead_letters: DeadLetters, workers: Iterable[WorkerRef], members: Members) -> None:
    """Record messages that a worker's full mailbox or a full link drops; keyed actors record their own."""

    def dropped(path: str, key: str | None, message_type: str, trace_id: str | None = None) -> None:
        dead_letters.record("full", path=path, key=key, message_type=message_type, trace_id=trace_id)

    def watch(worker: WorkerRef) -> None:
        path = f"holdfast/workers/{worker.name}"
        worker.on_full = lambda letter: dropped(path, None, type(letter.message).__name__, letter.trace_id)

    for worker in workers:
        watch(worker)
    members.on_full = lambda group, key, message_type: dropped(f"link:{group}", key or None, message_type)


def control_child(
    settings: Settings,
    ref: ControlRef,
    *,
    tree: Callable[[], Supervisor],
    members: Members,
    database: Database,
    conditions: Conditions,
    directories: tuple[KeyedDirectory, ...],
    dead_letters: DeadLetters,
    samples: SampleRing,
    provider_states: Callable[[], Mapping[str, str]],
    worker: int | None,
) -> Callable[[], ControlActor]:
    """Return the function that starts an incarnation of the control actor. ``tree`` is called at its start."""
    identity = ProcessIdentity(
        member_id=members.me,
        host=gethostname(),
        pid=os.getpid(),
        worker=worker,
        version=__version__,
        started_at=format_time(utc_now()),
    )
    groups = {
        each.name: ControlledGroup(each, members.me, partial(masked_key, settings, each.name))
        for each in directories
    }

    def start() -> ControlActor:
        process = ControlledProcess(
            identity=identity,
            tree=tree(),
            groups=groups,
            dead_letters=dead_letters,
            member_state=lambda: members.state,
            is_database_open=lambda: database.gate.is_open,
            conditions=conditions,
            provider_states=provider_states,
            samples=samples,
            drain=partial(signal.raise_signal, signal.SIGTERM),
        )
        return ControlActor(ref, process)

    return start
