"""Write batches on one connection, one transaction each.

A batch takes two round trips. The first locks every fenced row in one global order (accounts, tasks, sign-ins,
each by key) and then, in a separate statement, whose snapshot is newer than the locks, looks up the
idempotency keys. The second writes the units that pass and a marker with the batch's id, and commits. Kinds with
many new rows are copied in between: COPY saves the server more than the extra round trip costs.

A batch that has waited for a lock until its time limit is tried again without the units whose rows are locked.
Those rows are remembered, and later batches with one of them wait for no lock, until it is found free.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import TypeAlias

import psycopg
from psycopg import errors

from holdfast.ledger.values import Now, new_id
from holdfast.persistence.journal.exchanges import PreparedStatements, Statement, StatementsOutdated, copy_all
from holdfast.persistence.journal.statements import Preconditions, draft_of, preconditions_of
from holdfast.persistence.journal.units import (
    AlreadyReplied,
    Broken,
    Committed,
    Fence,
    FenceKind,
    NotWritten,
    Stale,
    Unit,
    UnitResult,
)
from holdfast.persistence.records.rows import IdempotencyProbe, StoredReply
from holdfast.persistence.server.connections import KeptConnection
from holdfast.persistence.server.database_faults import (
    DatabaseAway,
    is_worth_retrying,
    reason_of,
    takes_no_writes,
    trouble_of,
)


def _find(table: str, key: str, is_watched: str = "false") -> str:
    # A join and not "= any": a plan made while the table was small would compare every row with every key.
    return f"select t.{key}, t.version, {is_watched} from unnest(%s::text[]) k join {table} t on t.{key} = k"


# Whether a task's account has webhooks is found with the lock, so that a batch without such tasks costs nothing
# more, and a webhook gets the event of every transition that is written after it was committed.
_FIND: dict[FenceKind, str] = {
    "account": _find("accounts", "id"),
    "task": _find("tasks", "request_id", "exists (select from webhooks w where w.account_id = t.account_id)"),
    "sign_in": _find("sign_ins", "key"),
}
_LOCK: dict[FenceKind, str] = {kind: f"{find} order by 1 for no key update of t" for kind, find in _FIND.items()}
_LOCK_FREE: dict[FenceKind, str] = {kind: f"{lock} skip locked" for kind, lock in _LOCK.items()}
_FIRST_SIGN_IN = (
    "insert into sign_ins (key, version, updated_at, state) "
    "select k, 0, now(), '{}'::json from unnest(%s::text[]) k order by k on conflict do nothing"
)
_PROBE = (
    "select r.account_id, r.route, r.key, r.fingerprint, r.reply from idempotency_records r "
    "join unnest(%s::text[], %s::text[], %s::text[]) as p(account_id, route, key) "
    "on r.account_id = p.account_id and r.route = p.route and r.key = p.key where r.created_at > %s"
)
_MARK = "insert into journal_batches (batch_id, unit_count, committed, at) values (%s, %s, true, now())"
"""The marker has the time of the database's clock, which is also the clock by which markers are deleted."""
_COMMIT = "commit"
_DISCARD_PLANS = "discard plans"
REPLAN_UNITS = 64
"""Plans are discarded after this many units on a connection, after twice as many, and so on.

A plan made while the table had few rows reads the whole table, and is reused when the table has grown.
"""

_RowKey: TypeAlias = tuple[FenceKind, str]

_VOID = -1
"""The version of a row whose newest decision is void; no unit expects it."""
_HELD = -2
"""The version of a row that another session has locked, or whose newest decision waits for such a row."""


class ConnectionLost(Exception):
    """The connection broke; nothing of the batch is durable but what the first units' results, ``results``, say."""

    def __init__(self, cause: BaseException, *, results: Sequence[UnitResult] = ()) -> None:
        super().__init__(reason_of(cause))
        self.results = results


class CommitUnanswered(Exception):
    """The connection broke after the batch was sent: only a look-up shows whether it is durable.

    ``if_durable`` and ``if_void`` are the units' results in each case.
    """

    def __init__(
        self, batch_id: str, cause: BaseException, *, if_durable: list[UnitResult], if_void: list[UnitResult]
    ) -> None:
        super().__init__(reason_of(cause))
        self.batch_id = batch_id
        self.if_durable = if_durable
        self.if_void = if_void


class BatchWriter:
    """Writes batches on one connection, which is replaced after it breaks. One batch is written at a time."""

    def __init__(self, connection: KeptConnection, *, now: Now, idempotency_ttl_s: int = 86_400) -> None:
        self._connection = connection
        self._now = now
        self._idempotency_ttl = timedelta(seconds=idempotency_ttl_s)
        self._held: set[_RowKey] = set()
        """Rows that were found locked by another session when they were last tried."""
        self._prepared: PreparedStatements | None = None
        self._units = 0
        self._replan_units = REPLAN_UNITS

    def write(self, units: Sequence[Unit]) -> list[UnitResult]:
        """Write the ``units`` that pass their checks, in order, and return each one's result.

        Raises :class:`ConnectionLost` or :class:`CommitUnanswered`. Every other database error becomes a result:
        ``NotWritten`` for one that may pass, and for one that a unit causes, ``Broken`` for that unit.
        """
        return self._write(units)

    def _write(
        self, units: Sequence[Unit], *, void: Collection[_RowKey] = (), waits_for_locks: bool = True
    ) -> list[UnitResult]:
        if self._held and waits_for_locks:
            waits_for_locks = self._held.isdisjoint(_rows_of(units))
        try:
            return self._transaction(units, void, waits_for_locks)
        except (ConnectionLost, CommitUnanswered):
            raise
        except StatementsOutdated:
            # All are prepared again, and a statement that was just prepared does not raise it.
            return self._write(units, void=void, waits_for_locks=waits_for_locks)
        except Exception as exc:
            if waits_for_locks and isinstance(exc, errors.LockNotAvailable):
                return self._write(units, void=void, waits_for_locks=False)
            if is_worth_retrying(exc):
                reason = f"{type(exc).__name__}: {reason_of(exc)}"
                return [NotWritten(reason, timed_out=trouble_of(exc) == "slow")] * len(units)
            # Not only psycopg's errors: the client's encoder rejects text that has no UTF-8 form.
            if len(units) == 1:
                return [Broken(exc)]
            return self._write_one_by_one(units)

    def _write_one_by_one(self, units: Sequence[Unit]) -> list[UnitResult]:
        """Write each unit in its own transaction, so that only the one the database rejects is broken.

        A unit that was decided on top of a void one is void too, although the rows alone might let it pass.
        """
        results: list[UnitResult] = []
        void: set[_RowKey] = set()
        for unit in units:
            try:
                results += self._write([unit], void=void)
                if type(results[-1]) is not Committed:
                    void.update((fence.kind, fence.key) for fence in unit.fences)
            except CommitUnanswered as lost:
                rest: list[UnitResult] = [NotWritten("the connection was lost before this unit was sent")] * (
                    len(units) - len(results) - 1
                )
                raise CommitUnanswered(
                    lost.batch_id,
                    lost,
                    if_durable=[*results, *lost.if_durable, *rest],
                    if_void=[*results, *lost.if_void, *rest],
                ) from lost
            except ConnectionLost as lost:
                raise ConnectionLost(lost, results=results) from lost
        return results

    def look_up(self, batch_id: str) -> bool:
        """Return whether a batch whose COMMIT got no response is durable; if it is not, it never will be.

        Inserting the batch's own marker waits for a commit still under way on the server, and prevents one that
        has not started. Raises :class:`ConnectionLost` while the database is away.
        """
        try:
            connection = self._connected().connection
            inserted = connection.execute(
                "insert into journal_batches (batch_id, unit_count, committed, at) values (%s, 0, false, now()) "
                "on conflict do nothing returning batch_id",
                (batch_id,),
            ).fetchone()
            found = connection.execute(
                "select committed from journal_batches where batch_id = %s", (batch_id,)
            ).fetchone()
            connection.commit()
        except psycopg.Error as exc:
            self._connection.discard()
            raise ConnectionLost(exc) from exc
        return inserted is None and found is not None and bool(found[0])

    def close(self) -> None:
        """Close the connection."""
        self._connection.discard()

    # ------------------------------------------------------------------------------------------ one transaction

    def _transaction(
        self, units: Sequence[Unit], void: Collection[_RowKey], waits_for_locks: bool
    ) -> list[UnitResult]:
        prepared = self._connected()
        connection = prepared.connection
        try:
            versions, replies, watched = self._check_preconditions(
                prepared, preconditions_of(units), waits_for_locks
            )
            if not waits_for_locks:
                held = {row for row, version in versions.items() if version == _HELD}
                self._held = self._held.difference(_rows_of(units)) | held
            versions.update(dict.fromkeys(void, _VOID))
            results = _results_of(units, versions, replies)
            passed = [unit for unit, result in zip(units, results, strict=True) if type(result) is Committed]
            draft = draft_of(passed, watched)
            if not (draft.copies or draft.statements):
                connection.rollback()
                return results
        except Exception as exc:
            self._recover(exc)
            raise
        batch_id = new_id("batch")
        try:
            copy_all(connection, draft.copies)
            statements: list[Statement] = [*draft.statements, (_MARK, (batch_id, str(len(passed))))]
            if self._has_grown(len(passed)):
                statements.append((_DISCARD_PLANS, ()))
            prepared.run([*statements, (_COMMIT, ())])
        except Exception as exc:
            try:
                self._recover(exc)
            except ConnectionLost as lost:
                rolled_back = NotWritten("the commit did not happen")
                if_void = [rolled_back if type(result) is Committed else result for result in results]
                raise CommitUnanswered(batch_id, exc, if_durable=results, if_void=if_void) from lost
            raise
        return results

    def _check_preconditions(
        self, prepared: PreparedStatements, preconditions: Preconditions, waits_for_locks: bool
    ) -> tuple[dict[_RowKey, int], dict[IdempotencyProbe, StoredReply], set[str]]:
        """Lock the fenced rows and look up the idempotency keys; return the versions, and the replies found.

        Unless it ``waits_for_locks``, rows that another session has locked get the version :data:`_HELD`. Also
        returns the tasks whose accounts have webhooks.
        """
        if not (preconditions.locks or preconditions.probes):
            return {}, {}, set()
        statements: list[Statement] = []
        if preconditions.first_sign_ins is not None:
            statements.append((_FIRST_SIGN_IN, (preconditions.first_sign_ins,)))
        locks = _LOCK if waits_for_locks else _LOCK_FREE
        kinds = [kind for kind in locks if kind in preconditions.locks]
        statements += [(locks[kind], (preconditions.locks[kind],)) for kind in kinds]
        if not waits_for_locks:
            statements += [(_FIND[kind], (preconditions.locks[kind],)) for kind in kinds]
        if preconditions.probes:
            since = self._now() - self._idempotency_ttl
            statements.append((_PROBE, (*preconditions.probes, since.isoformat())))
        found = iter(prepared.run(statements))
        if preconditions.first_sign_ins is not None:
            next(found)
        locked = dict(zip(kinds, found, strict=False))
        versions: dict[_RowKey, int] = {}
        if not waits_for_locks:
            versions = {(kind, key): _HELD for kind, rows in zip(kinds, found, strict=False) for key, *_ in rows}
        watched = set[str]()
        for kind, rows in locked.items():
            for key, version, is_watched in rows:
                versions[kind, key] = version
                if is_watched:
                    watched.add(key)
        replies = {
            IdempotencyProbe(account_id, route, key): StoredReply(fingerprint, reply)
            for account_id, route, key, fingerprint, reply in next(found, ())
        }
        return versions, replies, watched

    def _has_grown(self, units: int) -> bool:
        """Count the units of this connection; return whether they have doubled since plans were last discarded."""
        self._units += units
        if self._units < self._replan_units:
            return False
        self._replan_units = self._units * 2
        return True

    # --------------------------------------------------------------------------------------------- connection

    def _connected(self) -> PreparedStatements:
        try:
            connection = self._connection.get()
        except DatabaseAway as away:
            raise ConnectionLost(away) from away
        if self._prepared is None or self._prepared.connection is not connection:
            self._prepared = PreparedStatements(connection)
            self._units, self._replan_units = 0, REPLAN_UNITS
        return self._prepared

    def _recover(self, exc: Exception) -> None:
        """Roll back if the connection still works; otherwise raise :class:`ConnectionLost`."""
        connection = self._connection.current
        if connection is not None and not (connection.broken or connection.closed or takes_no_writes(exc)):
            try:
                connection.rollback()
            except psycopg.Error:
                pass
            else:
                return
        self._connection.discard()
        raise ConnectionLost(exc) from exc


def _rows_of(units: Iterable[Unit]) -> Iterator[_RowKey]:
    """Return the keys of the rows that ``units`` are fenced by."""
    return ((fence.kind, fence.key) for unit in units for fence in unit.fences)


def _results_of(
    units: Iterable[Unit],
    versions: dict[_RowKey, int],
    replies: dict[IdempotencyProbe, StoredReply],
) -> list[UnitResult]:
    """Check each unit's fences against the versions that the units before it leave.

    A void unit voids all later ones of the batch that share a row with it: they were decided on top of it.
    Comparing versions alone would not find them. When another process has moved a row from 5 to 6, our unit that
    expects 5 is void, and our next one, decided on our own 6, would match theirs. A missing row has no version.
    A unit whose row another session has locked is not written, nor are the later ones that share a row with it.
    """
    results: list[UnitResult] = []
    probed: set[IdempotencyProbe] = set()
    for unit in units:
        left = _VOID
        outdated: tuple[Fence, ...] = ()
        for fence in unit.fences:
            if versions.get((fence.kind, fence.key)) != fence.expected:
                outdated += (fence,)
        replied = _replied(unit, replies) if replies else None
        if replied is not None:
            # Also of a unit void for another reason, so that all replays of a batch are known by its one reload.
            results.append(replied)
        elif any(versions.get((fence.kind, fence.key)) == _HELD for fence in outdated):
            left = _HELD
            results.append(NotWritten("another session has locked its row"))
        elif outdated:
            results.append(Stale(outdated))
        elif unit.probe in probed:
            results.append(NotWritten("its idempotency key is used earlier in this batch"))
        else:
            if unit.advances:
                if unit.probe is not None:
                    probed.add(unit.probe)
                for fence in unit.fences:
                    versions[fence.kind, fence.key] = fence.expected + 1
            results.append(Committed())
            continue
        for fence in unit.fences:
            versions[fence.kind, fence.key] = left
    return results


def _replied(unit: Unit, replies: dict[IdempotencyProbe, StoredReply]) -> AlreadyReplied | None:
    """Return the stored reply that voids a unit, if one does."""
    if unit.probe is not None and unit.probe in replies:
        return AlreadyReplied(unit.probe, replies[unit.probe])
    if unit.unless is not None:
        stored = replies.get(unit.unless.probe)
        if stored is not None and stored.fingerprint != unit.unless.known:
            return AlreadyReplied(unit.unless.probe, stored)
    return None
