"""Claims of due events: the claimer delivers the event, and the attempt is counted before it begins.

A claim postpones ``due_at`` under ``SKIP LOCKED`` as a failed attempt would, so several processes share the work,
and a delivery that is lost with its process counts as a failed one.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final, NamedTuple

import msgspec
from sqlalchemy import Connection, text

from holdfast.ledger.tasks.deliveries import PAUSES_S
from holdfast.ledger.tasks.task import EventKind, Task
from holdfast.ledger.tasks.webhook_secrets import SIGNING_MAX_COUNT, Rotation

SEEN_MAX_ROWS: Final = 500
"""How many of the oldest due events one claim considers."""
NEWEST_MAX_ROWS: Final = 100
"""How many of the newest: accounts with thousands due must not hide one with a single event."""


class _TracedRequest(msgspec.Struct, frozen=True):
    traceparent: str | None = None


class _Traced(msgspec.Struct, frozen=True):
    """The part of a task's snapshot that names its trace."""

    request: _TracedRequest = _TracedRequest()


_TASK = msgspec.json.Decoder(Task)
_TRACED = msgspec.json.Decoder(_Traced)

_CLAIM = text(
    """
    with under_way as (
        select * from unnest(cast(:accounts as text[]), cast(:many as integer[])) as b(account_id, many)
    ), seen as (
        (select o.account_id, o.event_id, o.due_at, coalesce(b.many, 0) as busy
         from outbox o left join under_way b using (account_id)
         where o.due_at <= :now and coalesce(b.many, 0) < :per_account order by o.due_at limit :oldest)
        union
        (select o.account_id, o.event_id, o.due_at, coalesce(b.many, 0) as busy
         from outbox o left join under_way b using (account_id)
         where o.due_at <= :now and coalesce(b.many, 0) < :per_account order by o.due_at desc limit :newest)
    ), fair as (
        select account_id, event_id
        from (select *, row_number() over (partition by account_id order by due_at) as place from seen) placed
        where place <= :per_account - busy
        order by busy + place, due_at limit :most
    ), due as (
        select o.account_id, o.event_id from outbox o join fair using (account_id, event_id)
        where o.due_at <= :now for update of o skip locked
    )
    update outbox o
    set attempts = o.attempts + 1, tries = o.tries + 1,
        due_at = :now + make_interval(secs => greatest(:lease_s,
            (cast(:pauses_s as float8[]))[least(o.tries + 1, cardinality(cast(:pauses_s as float8[])))]))
    from due where o.account_id = due.account_id and o.event_id = due.event_id
    returning o.account_id, o.event_id, o.request_id, o.kind, o.url, o.created_at, o.attempts, o.round_at, o.tries,
              cast(o.snapshot as text) as snapshot
    """
)
_ROTATIONS = text(
    "select s.account_id, s.generation, s.rotated_at from unnest(cast(:accounts as text[])) as a(account_id) "
    "cross join lateral (select * from webhook_secrets w where w.account_id = a.account_id "
    "order by w.generation desc limit :most) s"
)


class DueEvent(NamedTuple):
    """A claimed event: ``attempts`` numbers this delivery, the ``tries``-th of the round begun at ``round_at``.

    ``rotations`` are the newest rotations of its account's webhook secret.
    """

    account_id: str
    event_id: str
    request_id: str
    kind: EventKind
    url: str
    created_at: datetime
    attempts: int
    round_at: datetime
    tries: int
    snapshot: str
    rotations: tuple[Rotation, ...]

    @property
    def task(self) -> Task:
        """The task as it was. Raises :class:`msgspec.ValidationError` if this release cannot decode it."""
        return _TASK.decode(self.snapshot)

    @property
    def traceparent(self) -> str | None:
        """The trace of the request that created the task; None if the snapshot has none or cannot be decoded."""
        try:
            return _TRACED.decode(self.snapshot).request.traceparent
        except msgspec.MsgspecError:
            return None


def claim_due(
    rows: Connection,
    now: datetime,
    *,
    most: int,
    per_account_max: int,
    busy: Mapping[str, int],
    lease_s: float,
) -> list[DueEvent]:
    """Claim up to ``most`` due events. An account has at most ``per_account_max`` deliveries at a time.

    If not all fit, an account with fewer deliveries under way goes first, and then the older event: accounts whose
    receivers hang and whose backlogs are long do not delay the first delivery of the others.
    ``busy`` counts the deliveries under way; ``lease_s`` is how long a delivery may take.
    """
    claimed = rows.execute(
        _CLAIM,
        {
            "now": now,
            "accounts": list(busy),
            "many": list(busy.values()),
            "per_account": per_account_max,
            "oldest": SEEN_MAX_ROWS,
            "newest": NEWEST_MAX_ROWS,
            "most": most,
            "lease_s": lease_s,
            "pauses_s": [float(pause_s) for pause_s in PAUSES_S],
        },
    ).all()
    rotations = rotations_of(rows, *{row.account_id for row in claimed})
    return [DueEvent._make((*row, rotations.get(row.account_id, ()))) for row in claimed]


def rotations_of(rows: Connection, *account_ids: str) -> dict[str, tuple[Rotation, ...]]:
    """Return the newest rotations of these accounts' secrets; accounts that never rotated are not included."""
    found: dict[str, tuple[Rotation, ...]] = {}
    if account_ids:
        for row in rows.execute(_ROTATIONS, {"accounts": list(account_ids), "most": SIGNING_MAX_COUNT}):
            rotation = Rotation(row.generation, row.rotated_at)
            found[row.account_id] = (*found.get(row.account_id, ()), rotation)
    return found
