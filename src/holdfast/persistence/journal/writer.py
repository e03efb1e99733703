"""The journal's hand on the database: one connection, one transaction a batch. Runs in a worker thread.

A batch takes two round trips. The first locks every fenced row in one global order (accounts, tasks, sign-ins,
each by key) and then, in a statement of its own so that its snapshot is younger than the locks, looks up the
idempotency keys. What fits is then written, marked with the batch's id, and committed in the second. In between go
the kinds that have many new rows, by COPY: that spares the server more than the trip costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, TypeAlias

import psycopg

from holdfast.ledger.clock import Now
from holdfast.ledger.ids import new_id
from holdfast.persistence.journal.copying import copy_all
from holdfast.persistence.journal.drafts import Prepared, Question, draft_of, question_of
from holdfast.persistence.journal.units import (
    AlreadyAnswered,
    Broken,
    Committed,
    FenceKind,
    NotWritten,
    Stale,
    Unit,
    Verdict,
)
from holdfast.persistence.records.accounts import IdempotencyProbe, RememberedAnswer
from holdfast.persistence.server.database_faults import (
    DatabaseAway,
    is_worth_retrying,
    reason_of,
    takes_no_writes,
    trouble_of,
)


def _lock(table: str, key: str) -> str:
    # A join and not "= any": a plan made while the table was small would compare every row with every key.
    return (
        f"select t.{key}, t.version from unnest(%s::text[]) k join {table} t on t.{key} = k "
        f"order by t.{key} for no key update of t"
    )


_LOCK: dict[FenceKind, str] = {
    "account": _lock("accounts", "id"),
    "task": _lock("tasks", "request_id"),
    "sign_in": _lock("sign_ins", "key"),
}
_FIRST_SIGN_IN = (
    "insert into sign_ins (key, version, updated_at, state) "
    "select k, 0, now(), '{}'::json from unnest(%s::text[]) k order by k on conflict do nothing"
)
_PROBE = (
    "select r.account_id, r.route, r.key, r.fingerprint, r.reply from idempotency_records r "
    "join unnest(%s::text[], %s::text[], %s::text[]) as p(account_id, route, key) "
    "on r.account_id = p.account_id and r.route = p.route and r.key = p.key where r.created_at > %s"
)
_MARK = "insert into journal_batches (batch_id, units, committed, at) values (%s, %s, true, now())"
"""By the database's clock, by which marks are removed again."""
_FORGET_PLANS = "discard plans"
REPLAN_UNITS = 64
"""Plans are made anew after so many units on a connection, after twice as many, and so on.

A plan made while a table was known to hold a row or two reads all of it, and stays so while the table grows.
"""

_RowKey: TypeAlias = tuple[FenceKind, str]

_FALLEN = -1
"""The version, expected by nobody, of a row whose newest decision has fallen."""


class ConnectionLost(Exception):
    """The connection broke before anything was sent to be written; nothing of the batch is there."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")


class CommitUnanswered(Exception):
    """The connection broke after the batch was sent: only a look-up can tell whether it is durable.

    ``if_durable`` and ``if_void`` are the units' verdicts in either case.
    """

    def __init__(
        self, batch_id: str, cause: BaseException, *, if_durable: list[Verdict], if_void: list[Verdict]
    ) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.batch_id = batch_id
        self.if_durable = if_durable
        self.if_void = if_void


class BatchWriter:
    """Writes batches on one connection, made anew after it breaks. Not shared between threads."""

    def __init__(
        self, connect: Callable[[], psycopg.Connection[Any]], *, now: Now, idempotency_ttl_s: int = 86_400
    ) -> None:
        self._connect = connect
        self._now = now
        self._idempotency_ttl = timedelta(seconds=idempotency_ttl_s)
        self._connection: psycopg.Connection[Any] | None = None
        self._units = 0
        self._replan_units = REPLAN_UNITS

    def write(self, units: Sequence[Unit], prepared: Prepared | None = None) -> list[Verdict]:
        """Write what fits of ``units``, in order, and return each one's verdict.

        ``prepared`` is what :func:`prepare` made of them; without it that is done here.
        Raises :class:`ConnectionLost` or :class:`CommitUnanswered`; every other database error is settled here:
        passing ones by ``NotWritten``, and one that a particular unit provokes by writing unit by unit.
        """
        return self._write(units, prepared, fallen=set())

    def _write(
        self, units: Sequence[Unit], prepared: Prepared | None = None, *, fallen: set[_RowKey]
    ) -> list[Verdict]:
        try:
            return self._transaction(units, prepared, fallen)
        except (ConnectionLost, CommitUnanswered):
            raise
        except Exception as exc:
            if is_worth_retrying(exc):
                reason = f"{type(exc).__name__}: {reason_of(exc)}"
                return [NotWritten(reason, timed_out=trouble_of(exc) == "slow")] * len(units)
            # Not psycopg's alone: a text that has no UTF-8 form is refused by the client's own encoder.
            if len(units) == 1:
                return [Broken(exc)]
            return self._write_one_by_one(units)

    def _write_one_by_one(self, units: Sequence[Unit]) -> list[Verdict]:
        """Find the unit the database refuses: a transaction each, so that its neighbours do not fall with it.

        What was decided on top of a unit that falls must fall too, although the rows alone might let it pass.
        """
        verdicts: list[Verdict] = []
        fallen: set[_RowKey] = set()
        for unit in units:
            try:
                verdicts += self._write([unit], fallen=fallen)
                if type(verdicts[-1]) is not Committed:
                    fallen.update((fence.kind, fence.key) for fence in unit.fences)
            except CommitUnanswered as lost:
                rest: list[Verdict] = [NotWritten("the connection was lost before this unit's turn")] * (
                    len(units) - len(verdicts) - 1
                )
                raise CommitUnanswered(
                    lost.batch_id,
                    lost,
                    if_durable=[*verdicts, *lost.if_durable, *rest],
                    if_void=[*verdicts, *lost.if_void, *rest],
                ) from lost
            except ConnectionLost:
                return verdicts + [NotWritten("the connection was lost")] * (len(units) - len(verdicts))
        return verdicts

    def look_up(self, batch_id: str) -> bool:
        """Say whether a batch whose answer was lost is durable, and make sure it never becomes so if it is not.

        Planting the batch's own key waits for a commit still under way on the server, and bars one that has
        not started. Raises :class:`ConnectionLost` while the database is away.
        """
        try:
            connection = self._connected()
            planted = connection.execute(
                "insert into journal_batches (batch_id, units, committed, at) values (%s, 0, false, now()) "
                "on conflict do nothing returning batch_id",
                (batch_id,),
            ).fetchone()
            found = connection.execute(
                "select committed from journal_batches where batch_id = %s", (batch_id,)
            ).fetchone()
            connection.commit()
        except psycopg.Error as exc:
            self._discard()
            raise ConnectionLost(exc) from exc
        return planted is None and found is not None and bool(found[0])

    def close(self) -> None:
        """Give the connection back."""
        self._discard()

    # ------------------------------------------------------------------------------------------ one transaction

    def _transaction(self, units: Sequence[Unit], prepared: Prepared | None, fallen: set[_RowKey]) -> list[Verdict]:
        connection = self._connected()
        try:
            question, draft = prepared or (question_of(units), None)
            versions, answers = self._ask(connection, question)
            versions.update(dict.fromkeys(fallen, _FALLEN))
            verdicts = _judge(units, versions, answers)
            passed = [unit for unit, verdict in zip(units, verdicts, strict=True) if type(verdict) is Committed]
            if draft is None or len(passed) < len(units):
                draft = draft_of(passed)
            if draft.is_empty:
                connection.rollback()
                return verdicts
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
                    connection.execute(_FORGET_PLANS)
                connection.commit()
        except Exception as exc:
            try:
                self._recover(exc)
            except ConnectionLost as lost:
                void = NotWritten("the commit did not happen")
                if_void = [void if type(verdict) is Committed else verdict for verdict in verdicts]
                raise CommitUnanswered(batch_id, exc, if_durable=verdicts, if_void=if_void) from lost
            raise
        return verdicts

    def _ask(
        self, connection: psycopg.Connection[Any], question: Question
    ) -> tuple[dict[_RowKey, int], dict[IdempotencyProbe, RememberedAnswer]]:
        """Lock the fenced rows and look up the idempotency keys: versions, and answers that keys have had."""
        if question.is_empty:
            return {}, {}
        found = None
        with connection.pipeline():
            if question.first_sign_ins is not None:
                connection.execute(_FIRST_SIGN_IN, (question.first_sign_ins,))
            locks = {
                kind: connection.execute(sql, (question.locks[kind],))
                for kind, sql in _LOCK.items()
                if kind in question.locks
            }
            if question.probes:
                found = connection.execute(_PROBE, (*question.probes, self._now() - self._idempotency_ttl))
        versions = {(kind, key): version for kind, cursor in locks.items() for key, version in cursor.fetchall()}
        answers = {}
        if found is not None:
            for account_id, route, key, fingerprint, reply in found.fetchall():
                probe = IdempotencyProbe(account_id, route, key)
                answers[probe] = RememberedAnswer(bytes(fingerprint), bytes(reply))
        return versions, answers

    def _has_grown(self, units: int) -> bool:
        """Count what is written on this connection; whether it is twice what it was when plans were last made."""
        self._units += units
        if self._units < self._replan_units:
            return False
        self._replan_units = self._units * 2
        return True

    # --------------------------------------------------------------------------------------------- connection

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            try:
                self._connection = self._connect()
                self._units, self._replan_units = 0, REPLAN_UNITS
            except DatabaseAway as away:
                raise ConnectionLost(away) from away
        return self._connection

    def _is_broken(self, exc: Exception) -> bool:
        return (
            self._connection is None or self._connection.broken or self._connection.closed or takes_no_writes(exc)
        )

    def _recover(self, exc: Exception) -> None:
        """Roll back where the connection still stands; raise :class:`ConnectionLost` where it does not."""
        if not self._is_broken(exc):
            assert self._connection is not None
            try:
                self._connection.rollback()
            except psycopg.Error:
                pass
            else:
                return
        self._discard()
        raise ConnectionLost(exc) from exc

    def _discard(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _judge(
    units: Iterable[Unit],
    versions: dict[_RowKey, int],
    answers: dict[IdempotencyProbe, RememberedAnswer],
) -> list[Verdict]:
    """Each unit in turn: does it stand on the versions as the units before it leave them?

    A unit that falls takes with it all later ones of the batch that share a row with it: they were decided on
    top of it. Comparing versions would not do. When another process has moved a row from 5 to 6, our unit that
    expects 5 falls, and the next one, decided on our own void 6, would meet theirs and pass.
    A row that is not there stands at no version.
    """
    verdicts: list[Verdict] = []
    probed: set[IdempotencyProbe] = set()
    for unit in units:
        moved = tuple(fence for fence in unit.fences if versions.get((fence.kind, fence.key)) != fence.expected)
        if moved:
            verdicts.append(Stale(moved))
        elif unit.probe is not None and unit.probe in answers:
            verdicts.append(AlreadyAnswered(answers[unit.probe]))
        elif unit.probe in probed:
            verdicts.append(NotWritten("its idempotency key is used earlier in this batch"))
        else:
            if unit.probe is not None:
                probed.add(unit.probe)
            if unit.moves:
                for fence in unit.fences:
                    versions[fence.kind, fence.key] = fence.expected + 1
            verdicts.append(Committed())
            continue
        for fence in unit.fences:
            versions[fence.kind, fence.key] = _FALLEN
    return verdicts
