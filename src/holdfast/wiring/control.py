"""The control actor of this process: what it describes, and what its keys are shown as."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from functools import partial
from socket import gethostname

from holdfast import __version__
from holdfast.actors.runtime.refs import WorkerRef
from holdfast.cluster.codec import ACCOUNTS, CONTROL, SIGN_INS, TASKS
from holdfast.cluster.members import Members
from holdfast.cluster.placed import Controls
from holdfast.ledger.values import format_time, place_carried_by, place_of, utc_now
from holdfast.supervision.control.actor import ControlActor, ControlledProcess, ControlRef
from holdfast.supervision.control.keys import ControlledGroup
from holdfast.supervision.control.messages import ProcessIdentity
from holdfast.supervision.directory import KeyedDirectory
from holdfast.supervision.supervisor import Supervisor
from holdfast.wiring.actors import masked_key
from holdfast.wiring.parts import Parts


def controls_of_all(ref: ControlRef, members: Members) -> Controls:
    """Return the control actors of all members; others may ask the one at ``ref``."""
    members.serve(CONTROL, ref)
    return Controls(members, ref, {ACCOUNTS: place_of, SIGN_INS: place_of, TASKS: place_carried_by})


def collect_dead_letters(parts: Parts) -> None:
    """Record messages that a worker's full mailbox or a full link drops; keyed actors record their own."""
    dead_letters = parts.dead_letters

    def dropped(path: str, key: str | None, message_type: str, trace_id: str | None = None) -> None:
        dead_letters.record("full", path=path, key=key, message_type=message_type, trace_id=trace_id)

    def watch(worker: WorkerRef) -> None:
        path = f"holdfast/workers/{worker.name}"
        worker.on_full = lambda letter: dropped(path, None, type(letter.message).__name__, letter.trace_id)

    for worker in parts.refs.all():
        watch(worker)
    parts.members.on_full = lambda group, key, message_type: dropped(f"link:{group}", key or None, message_type)


def control_child(
    parts: Parts, ref: ControlRef, *, tree: Callable[[], Supervisor], directories: Iterable[KeyedDirectory]
) -> Callable[[], ControlActor]:
    """Return the function that starts an incarnation of the control actor. ``tree`` is called at its start."""
    identity = ProcessIdentity(
        member_id=parts.members.me,
        host=gethostname(),
        pid=os.getpid(),
        worker=parts.worker,
        version=__version__,
        started_at=format_time(utc_now()),
    )
    groups = {
        each.name: ControlledGroup(each, parts.members.me, partial(masked_key, parts.settings, each.name))
        for each in directories
    }

    def start() -> ControlActor:
        process = ControlledProcess(
            identity=identity,
            tree=tree(),
            groups=groups,
            dead_letters=parts.dead_letters,
            refused=parts.refused,
            member_state=lambda: parts.members.state,
            is_database_open=lambda: parts.database.gate.is_open,
            conditions=parts.conditions,
            provider_states=parts.registry.provider_states,
            samples=parts.samples,
            overrides=parts.overrides,
            end_session=lambda mac: parts.seen_sessions.end(mac, parts.now()),
            drain=partial(signal.raise_signal, signal.SIGTERM),
        )
        return ControlActor(ref, process)

    return start
