"""The processes that serve the database, what each does for all, and how an ended one's tasks are taken over.

Each process has a lease in service time and renews it. Its work at media providers (submissions under way, polls,
downloads) is left to it until that lease has expired, or until another process on the same machine finds that it
does not run. Then another process becomes the owner of its tasks, all at once, and repeats or ends what waits for
a response that the ended process would have received.

Some work is done by one process for all (a singleton). The process that should do it claims its name, and the claim
counts while that process's lease does.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec
import psycopg
from psycopg.rows import namedtuple_row
from sqlalchemy import Connection, text

from holdfast.ledger.values import new_id
from holdfast.persistence.claims.tasks import DispatchedTask
from holdfast.persistence.records.reading import OCCUPIES
from holdfast.persistence.server.connections import connect, driver_of
from holdfast.persistence.server.database_faults import DatabaseAway, reason_of, trouble_of
from holdfast.persistence.server.service_clock import ServiceClock

LEASE_S = 20.0
"""After this long without a renewal a process counts as ended."""
BEAT_S = 4.0
CLAIM_S = 10
READ_MS = 3_000
TAKEN_OVER_MAX = 100
"""How many tasks of one ended process are taken over at a time."""

_RENEW = (
    "insert into processes (process_id, machine, pid, started, lease_until, providers, state, addresses, protocol) "
    "values (%(process_id)s, %(machine)s, %(pid)s, %(started)s, %(lease_until)s, %(providers)s, %(state)s, "
    "%(addresses)s, %(protocol)s) "
    "on conflict (process_id) do update set lease_until = excluded.lease_until, providers = excluded.providers, "
    "state = excluded.state, addresses = excluded.addresses, protocol = excluded.protocol"
)
_MEMBERS = (
    "select process_id, machine, state, addresses, protocol, providers from processes "
    "where process_id <> %(me)s and lease_until > %(now)s order by process_id"
)
_READY = (
    "select p.process_id, p.machine, p.state, p.addresses, p.protocol, p.providers "
    "from processes p cross join service_clock c "
    "where p.state = 'ready' and p.lease_until > clock_timestamp() + make_interval(secs => c.ahead_s)"
)
_RELEASE_NAMES = "delete from singletons where process_id = %(me)s and name <> all(%(wanted)s)"
_CLAIM_NAMES = (
    "insert into singletons (name, process_id) select unnest(cast(%(wanted)s as text[])), %(me)s "
    "on conflict do nothing"
)
_HOLDERS = (
    "select s.name, s.process_id, p.machine, p.pid, p.started, p.lease_until from singletons s "
    "left join processes p using (process_id) where s.name = any(%(wanted)s) or s.process_id = %(me)s "
    "order by s.name for update of s"
)
_MOVE_NAME = "update singletons set process_id = %(me)s where name = %(name)s"
_END = text("update processes set lease_until = :ended_at where process_id = :process_id")
_OTHERS = text("select process_id, machine, pid, started, lease_until from processes where process_id <> :me")
_LOCK = text("select from processes where process_id = :gone for update skip locked")
_TAKE_OVER = text(
    "with abandoned as (select request_id from tasks where owner = :gone and wake_at is not null and dispatched "
    "limit :most for update skip locked) "
    "update tasks t set owner = :me, wake_at = :now + make_interval(secs => :claim_s) from abandoned a "
    "where t.request_id = a.request_id "
    f"returning t.request_id, t.provider, {OCCUPIES} as occupies"
)
_ENDED_AT = datetime.fromtimestamp(0, UTC)
_DELETE = text("delete from processes where process_id = :gone")


class Process(msgspec.Struct, frozen=True):
    """This process, as its row describes it. ``machine`` and ``started`` are None where the system has no /proc."""

    member_id: str
    machine: str | None
    pid: int
    started: str | None


MemberState: TypeAlias = Literal["joining", "ready", "draining"]
"""Other members send asks to a ``ready`` one only. A ``draining`` one is about to end."""


class Membership(msgspec.Struct, frozen=True):
    """What other processes need to send asks to this one: see :mod:`holdfast.cluster`."""

    state: MemberState = "joining"
    addresses: tuple[str, ...] = ()
    protocol: int = 0


JOINING: Final = Membership()


class Member(NamedTuple):
    """Another process with a valid lease."""

    member_id: str
    machine: str | None
    membership: Membership
    providers: frozenset[str] = frozenset()


class Beat(NamedTuple):
    """What a heartbeat found: the other members, and the names of singletons that this process has claimed."""

    members: Sequence[Member]
    claimed: frozenset[str]


def this_process() -> Process:
    """Return a new id for this process, with the system's identification of it."""
    pid = os.getpid()
    return Process(new_id("proc"), _machine(), pid, _started(pid))


def beat(
    rows: Connection,
    process: Process,
    clock: ServiceClock,
    *,
    providers: Sequence[str],
    membership: Membership,
    wanted: Collection[str],
) -> Beat:
    """Measure service time, renew the lease by it, read the members, and claim the singletons in ``wanted``."""
    clock.measure(rows)
    now, driver = clock.now(), driver_of(rows)
    try:
        # An idle process does little else, so what needs no answer in between has one wait.
        with driver.pipeline():
            renew_lease(rows, process, now, providers, membership)
            members = driver.execute(_MEMBERS, {"me": process.member_id, "now": now})
            holders = _find_holders(rows, process, wanted)
        claimed = _claim(rows, process, now, wanted, holders.fetchall())
        return Beat([_member(row) for row in members], claimed)
    except psycopg.Error as exc:
        # Private, but what it does has no other name: of a lost connection it tells the pool.
        rows._handle_dbapi_exception(exc, None, None, None, None)


def read_ready_members(url: str) -> list[Member]:
    """Read the members that are ready, on a connection of its own. Blocks, for a few seconds at most.

    Raises :class:`DatabaseAway`.
    """
    try:
        with closing(connect(url, statement_timeout_ms=READ_MS)) as connection:
            return [_member(row) for row in connection.execute(_READY)]
    except psycopg.Error as exc:
        if trouble_of(exc) is None:
            raise
        raise DatabaseAway(reason_of(exc)) from exc


def _member(row: Iterable[Any]) -> Member:
    member_id, machine, state, addresses, protocol, providers = row
    return Member(member_id, machine, Membership(state, tuple(addresses), protocol), frozenset(providers))


def renew_lease(
    rows: Connection,
    process: Process,
    now: datetime,
    providers: Sequence[str],
    membership: Membership = JOINING,
) -> None:
    """Extend this process's lease by :data:`LEASE_S`, and record what other processes need to know of it."""
    lease = {
        "process_id": process.member_id,
        "machine": process.machine,
        "pid": process.pid,
        "started": process.started,
        "lease_until": now + timedelta(seconds=LEASE_S),
        "providers": sorted(providers),
        "state": membership.state,
        "addresses": list(membership.addresses),
        "protocol": membership.protocol,
    }
    driver_of(rows).execute(_RENEW, lease)


def end_lease(rows: Connection, process: Process) -> None:
    """Record that this process has ended; the next process that checks takes over its tasks."""
    rows.execute(_END, {"process_id": process.member_id, "ended_at": _ENDED_AT})


def claim_singletons(rows: Connection, process: Process, now: datetime, wanted: Collection[str]) -> frozenset[str]:
    """Claim the ``wanted`` names, release all others, and return those that it has.

    A name is claimed from its holder only once that has ended or lost its lease. If all have been
    claimed before, one statement finds that.
    """
    return _claim(rows, process, now, wanted, _find_holders(rows, process, wanted).fetchall())


def _find_holders(rows: Connection, process: Process, wanted: Collection[str]) -> psycopg.Cursor[Any]:
    """Return the names that are wanted or that it has, with the processes that have them."""
    cursor = driver_of(rows).cursor(row_factory=namedtuple_row)
    return cursor.execute(_HOLDERS, {"me": process.member_id, "wanted": sorted(wanted)})


def _claim(
    rows: Connection, process: Process, now: datetime, wanted: Collection[str], found: Sequence[Any]
) -> frozenset[str]:
    names = {"me": process.member_id, "wanted": sorted(wanted)}
    driver = driver_of(rows)
    if {row.name for row in found} != set(wanted):
        driver.execute(_RELEASE_NAMES, names)
        driver.execute(_CLAIM_NAMES, names)
        found = _find_holders(rows, process, wanted).fetchall()
    claimed: set[str] = set()
    for row in found:
        if row.process_id == process.member_id:
            claimed.add(row.name)
        elif row.lease_until is None or row.lease_until <= now or has_ended(process, row):
            driver.execute(_MOVE_NAME, {"me": process.member_id, "name": row.name})
            claimed.add(row.name)
    return frozenset(claimed)


def take_over(
    rows: Connection, process: Process, now: datetime, *, leases_are_reliable: bool
) -> list[DispatchedTask]:
    """Make this process the owner of the tasks that ended processes had dispatched, and claim them.

    Without ``leases_are_reliable``, as after an outage of the database, expired leases prove nothing; then only
    processes of this machine that have ended are taken over.
    """
    taken: list[DispatchedTask] = []
    for other in rows.execute(_OTHERS, {"me": process.member_id}).all():
        has_expired = other.lease_until <= _ENDED_AT or (leases_are_reliable and other.lease_until < now)
        if not has_expired and not has_ended(process, other):
            continue
        gone = {"gone": other.process_id}
        if rows.execute(_LOCK, gone).first() is None:
            continue
        parameters = {"me": process.member_id, "now": now, "claim_s": CLAIM_S, "most": TAKEN_OVER_MAX}
        found = rows.execute(_TAKE_OVER, gone | parameters).all()
        taken += map(DispatchedTask._make, found)
        if len(found) < TAKEN_OVER_MAX:
            rows.execute(_DELETE, gone)
    return taken


def has_ended(process: Process, other: Any) -> bool:
    """Whether the other process ran on this machine and has ended."""
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
    """Identify the running system and its process namespace: pids of another container mean nothing here."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot}:{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return None


def _started(pid: int) -> str | None:
    """Return when a process of this system started, to detect reused pids; None if it is unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return None
    state, started = fields[0], fields[19]
    return "ended" if state in {"Z", "X"} else started
