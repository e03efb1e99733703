"""Write batches on one connection, one transaction each.

A batch takes two round trips. The first locks every fenced row in one global order (accounts, tasks, sign-ins,
each by key) and then, in a separate statement, whose snapshot is newer than the locks, looks up the
idempotency keys. The second writes the units that pass and a marker with the batch's id, and commits. Kinds with
many new rows are copied in between: COPY saves the server more than the extra round trip costs.

A batch that has waited for a lock until its time limit is tried again without the units whose rows are locked.
Those rows are remembered, and later batches with one of them wait for no lock, until it is found free.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeAlias

import psycopg
from psycopg import errors, pq
from psycopg.errors import error_from_result
from psycopg.waiting import Ready, Wait

from holdfast.ledger.values import Now, new_id
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

# Run several COPYs in one request. The server goes from one to the next without another request, which saves a
# round trip for each, and a dozen acquisitions of the interpreter lock. psycopg's own ``copy`` runs one at a time.

CHUNK_BYTES = 1 << 20


def copy_all(connection: psycopg.Connection[Any], copies: Sequence[tuple[str, str]]) -> None:
    """Run ``copies`` (SQL and text of each) in the open transaction, or in one begun here.

    Raises the server's first error, which ends the transaction, or UnicodeEncodeError before anything is sent.
    """
    if not copies:
        return
    pgconn = connection.pgconn
    begins = ["begin"] if pgconn.transaction_status == pq.TransactionStatus.IDLE else []
    request = "; ".join([*begins, *(sql for sql, _ in copies)]).encode()
    # Encoded first: text that cannot be encoded must not leave the server waiting for it.
    texts = [text.encode() for _, text in copies]
    connection.wait(_copied(pgconn, request, texts))


def _copied(pgconn: pq.abc.PGconn, request: bytes, texts: Sequence[bytes]) -> Generator[Wait, Ready | int, None]:
    pgconn.send_query(request)
    yield from flushed(pgconn)
    waiting = iter(texts)
    error: pq.abc.PGresult | None = None
    while (result := (yield from _next_result(pgconn))) is not None:
        if result.status == pq.ExecStatus.COPY_IN:
            yield from _sent(pgconn, next(waiting))
        elif result.status != pq.ExecStatus.COMMAND_OK and error is None:
            error = result
    if error is not None:
        raise error_from_result(error)


def _sent(pgconn: pq.abc.PGconn, text: bytes) -> Generator[Wait, Ready | int, None]:
    for start in range(0, len(text), CHUNK_BYTES):
        while pgconn.put_copy_data(text[start : start + CHUNK_BYTES]) == 0:
            yield Wait.W
        yield from flushed(pgconn)
    while pgconn.put_copy_end(None) == 0:
        yield Wait.W
    yield from flushed(pgconn)


def flushed(pgconn: pq.abc.PGconn) -> Generator[Wait, Ready | int, None]:
    """Wait until everything queued has been sent."""
    while pgconn.flush():
        # Read too: a server that rejects the data reports it and stops reading.
        if (yield Wait.RW) & Ready.R:
            pgconn.consume_input()


def _next_result(pgconn: pq.abc.PGconn) -> Generator[Wait, Ready | int, pq.abc.PGresult | None]:
    while pgconn.is_busy():
        yield Wait.R
        pgconn.consume_input()
    return pgconn.get_result()


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
            connection = self._connected()
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
        connection = self._connected()
        try:
            versions, replies, watched = self._check_preconditions(
                connection, preconditions_of(units), waits_for_locks
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
            with connection.pipeline():
                for sql, parameters in draft.statements:
                    connection.execute(sql, parameters)
                connection.execute(_MARK, (batch_id, len(passed)))
                if self._has_grown(len(passed)):
                    connection.execute(_DISCARD_PLANS)
                # psycopg stops flushing when its last command is queued, and then waits for a response only: what
                # the socket's buffer did not take of large statements would never be sent.
                connection.wait(flushed(connection.pgconn))
                connection.commit()
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
        self, connection: psycopg.Connection[Any], preconditions: Preconditions, waits_for_locks: bool
    ) -> tuple[dict[_RowKey, int], dict[IdempotencyProbe, StoredReply], set[str]]:
        """Lock the fenced rows and look up the idempotency keys; return the versions, and the replies found.

        Unless it ``waits_for_locks``, rows that another session has locked get the version :data:`_HELD`. Also
        returns the tasks whose accounts have webhooks.
        """
        if not (preconditions.locks or preconditions.probes):
            return {}, {}, set()
        found = None
        locks: dict[FenceKind, psycopg.Cursor[Any]] = {}
        existing: dict[FenceKind, psycopg.Cursor[Any]] = {}
        with connection.pipeline():
            if preconditions.first_sign_ins is not None:
                connection.execute(_FIRST_SIGN_IN, (preconditions.first_sign_ins,))
            for kind, sql in (_LOCK if waits_for_locks else _LOCK_FREE).items():
                if kind in preconditions.locks:
                    locks[kind] = connection.execute(sql, (preconditions.locks[kind],))
            if not waits_for_locks:
                existing = {kind: connection.execute(_FIND[kind], (preconditions.locks[kind],)) for kind in locks}
            if preconditions.probes:
                found = connection.execute(_PROBE, (*preconditions.probes, self._now() - self._idempotency_ttl))
        versions: dict[_RowKey, int] = {}
        for kind, cursor in existing.items():
            versions.update(((kind, key), _HELD) for key, *_ in cursor.fetchall())
        watched = set[str]()
        for kind, cursor in locks.items():
            for key, version, is_watched in cursor.fetchall():
                versions[kind, key] = version
                if is_watched:
                    watched.add(key)
        replies = {}
        if found is not None:
            for account_id, route, key, fingerprint, reply in found.fetchall():
                probe = IdempotencyProbe(account_id, route, key)
                replies[probe] = StoredReply(bytes(fingerprint), bytes(reply))
        return versions, replies, watched

    def _has_grown(self, units: int) -> bool:
        """Count the units of this connection; return whether they have doubled since plans were last discarded."""
        self._units += units
        if self._units < self._replan_units:
            return False
        self._replan_units = self._units * 2
        return True

    # --------------------------------------------------------------------------------------------- connection

    def _connected(self) -> psycopg.Connection[Any]:
        last = self._connection.current
        try:
            connection = self._connection.get()
        except DatabaseAway as away:
            raise ConnectionLost(away) from away
        if connection is not last:
            self._units, self._replan_units = 0, REPLAN_UNITS
        return connection

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
