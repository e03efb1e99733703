"""Which processes serve the database, and what one that has ended leaves to the others.

Each process writes down a lease in service time and renews it. What it has begun at a media provider (a submission
under way, a poll, the fetching of results) is nobody else's business until that lease has lapsed, or until its
successor on the same machine sees that it no longer runs. Then another process makes the tasks its own, all at
once: what waits for an answer that nobody can give any more is begun again or given up.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, text

from holdfast.ledger.ids import new_id
from holdfast.persistence.claims.tasks import OCCUPIES, PlacedTask
from holdfast.persistence.server.service_clock import ServiceClock

LEASE_S = 20.0
"""After this without a renewal a process counts as ended."""
BEAT_S = 4.0
CLAIM_S = 10
TAKEN_OVER_MAX = 1_000
"""How many tasks are taken over in one go."""

_RENEW = text(
    "insert into processes (process_id, machine, pid, started, lease_until, providers) "
    "values (:process_id, :machine, :pid, :started, :lease_until, :providers) "
    "on conflict (process_id) do update set lease_until = excluded.lease_until, providers = excluded.providers"
)
_END = text("update processes set lease_until = :ended_at where process_id = :process_id")
_OTHERS = text("select process_id, machine, pid, started, lease_until from processes where process_id <> :me")
_LOCK = text("select from processes where process_id = :gone for update skip locked")
_TAKE_OVER = text(
    "with left_behind as (select request_id from tasks where owner = :gone and wake_at is not null and dispatched "
    "limit :most for update skip locked) "
    "update tasks t set owner = :me, wake_at = :now + make_interval(secs => :claim_s) from left_behind l "
    "where t.request_id = l.request_id "
    f"returning t.request_id, t.provider, {OCCUPIES} as occupies"
)
_ENDED_AT = datetime.fromtimestamp(0, UTC)
_FORGET = text("delete from processes where process_id = :gone")


@dataclass(frozen=True, slots=True)
class Process:
    """This process, as others know it. ``machine`` and ``started`` are None where the system does not tell."""

    process_id: str
    machine: str | None
    pid: int
    started: str | None


def this_process() -> Process:
    """A new name for this process, and how the system knows it."""
    pid = os.getpid()
    return Process(new_id("proc"), _machine(), pid, _started(pid))


def beat(rows: Connection, process: Process, clock: ServiceClock, providers: Sequence[str]) -> None:
    """Measure service time, and renew the lease by it."""
    clock.measure(rows)
    renew_lease(rows, process, clock.now(), providers)


def renew_lease(rows: Connection, process: Process, now: datetime, providers: Sequence[str]) -> None:
    """Say for another while that this process runs, and which providers it can reach."""
    lease = {
        "process_id": process.process_id,
        "machine": process.machine,
        "pid": process.pid,
        "started": process.started,
        "lease_until": now + timedelta(seconds=LEASE_S),
        "providers": sorted(providers),
    }
    rows.execute(_RENEW, lease)


def end_lease(rows: Connection, process: Process) -> None:
    """Say that this process has ended: whoever looks next takes over what it has left."""
    rows.execute(_END, {"process_id": process.process_id, "ended_at": _ENDED_AT})


def take_over(rows: Connection, process: Process, now: datetime, *, judges_leases: bool) -> list[PlacedTask]:
    """Make this process the owner of the tasks that ended processes had dispatched; they are claimed for a while.

    ``judges_leases`` False: only processes are looked at that are seen to have ended on this machine. After the
    database was away everybody's lease has lapsed, and says nothing.
    """
    taken: list[PlacedTask] = []
    for other in rows.execute(_OTHERS, {"me": process.process_id}).all():
        has_lapsed = other.lease_until <= _ENDED_AT or (judges_leases and other.lease_until < now)
        if not has_lapsed and not has_ended(process, other):
            continue
        gone = {"gone": other.process_id}
        if rows.execute(_LOCK, gone).first() is None:
            continue
        parameters = {"me": process.process_id, "now": now, "claim_s": CLAIM_S, "most": TAKEN_OVER_MAX}
        found = rows.execute(_TAKE_OVER, gone | parameters).all()
        taken += map(PlacedTask._make, found)
        if len(found) < TAKEN_OVER_MAX:
            rows.execute(_FORGET, gone)
    return taken


def has_ended(process: Process, other: Any) -> bool:
    """Whether a process of this machine is seen not to run any more."""
    if process.machine is None or other.machine != process.machine or other.started is None:
        return False
    try:
        os.kill(other.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    started = _started(other.pid)
    return started is not None and started != other.started


def _machine() -> str | None:
    """One running system and its processes' numbers: those of another container mean nothing here."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot}:{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return None


def _started(pid: int) -> str | None:
    """When a process of this system began, so that a number used again is not taken for it; None: not known."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return None
    state, started = fields[0], fields[19]
    return "ended" if state in {"Z", "X"} else started
