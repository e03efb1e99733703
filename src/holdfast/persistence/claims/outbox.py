"""Claims of due events: the claimer delivers the event, and the attempt is counted before it begins.

A claim postpones ``due_at`` under ``SKIP LOCKED`` as a failed attempt would, so several processes share the work,
and a delivery that is lost with its process counts as a failed one.

Accounts are looked through in turn, by one probe of the index for each, so that a claim costs the same however many
events of one account wait.
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

ACCOUNTS_PROBED_MAX: Final = 500
"""How many accounts with events that are not delivered yet one claim probes; the next continues after them."""
FIRST: Final = ""
"""Sorts before every account id."""


class _TracedRequest(msgspec.Struct, frozen=True):
    traceparent: str | None = None


class _Traced(msgspec.Struct, frozen=True):
    """The part of a task's snapshot that names its trace."""

    request: _TracedRequest = _TracedRequest()


_TASK = msgspec.json.Decoder(Task)
_TRACED = msgspec.json.Decoder(_Traced)

_PROBED = text(
    """
    with recursive probed as (
        (select account_id, due_at, 1 as number from outbox
         where due_at is not null and account_id > :after order by account_id, due_at limit 1)
        union all
        select n.account_id, n.due_at, p.number + 1
        from probed p cross join lateral (
            select o.account_id, o.due_at from outbox o
            where o.due_at is not null and o.account_id > p.account_id order by o.account_id, o.due_at limit 1
        ) n
        where p.number < :probed_max
    )
    select account_id, due_at <= :now as is_due from probed order by number
    """
)
_CLAIM = text(
    """
    with seen as (
        select a.account_id, e.event_id, e.due_at, a.busy
        from unnest(cast(:accounts as text[]), cast(:busy as integer[])) as a(account_id, busy) cross join lateral (
            select o.event_id, o.due_at from outbox o where o.account_id = a.account_id and o.due_at <= :now
            order by o.due_at limit :per_account
        ) e
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
    after: str,
    most: int,
    per_account_max: int,
    busy: Mapping[str, int],
    lease_s: float,
) -> tuple[list[DueEvent], str]:
    """Claim up to ``most`` due events, of accounts in turn.

    The turn begins with the account that follows ``after``; also returns the account after which the next claim
    continues, which is :data:`FIRST` when all had their turn. An account has at most ``per_account_max`` deliveries
    at a time. If not all fit, an account with fewer deliveries under way goes first, and then the older event:
    accounts whose receivers hang do not delay the first delivery of the others. ``busy`` counts the deliveries
    under way; ``lease_s`` is how long a delivery may take.
    """
    probed = rows.execute(_PROBED, {"after": after, "probed_max": ACCOUNTS_PROBED_MAX, "now": now}).all()
    accounts = [row.account_id for row in probed if row.is_due and busy.get(row.account_id, 0) < per_account_max]
    claimed = rows.execute(
        _CLAIM,
        {
            "now": now,
            "accounts": accounts,
            "busy": [busy.get(account_id, 0) for account_id in accounts],
            "per_account": per_account_max,
            "most": most,
            "lease_s": lease_s,
            "pauses_s": [float(pause_s) for pause_s in PAUSES_S],
        },
    ).all()
    rotations = rotations_of(rows, *{row.account_id for row in claimed})
    due = [DueEvent._make((*row, rotations.get(row.account_id, ()))) for row in claimed]
    return due, probed[-1].account_id if len(probed) == ACCOUNTS_PROBED_MAX else FIRST


def rotations_of(rows: Connection, *account_ids: str) -> dict[str, tuple[Rotation, ...]]:
    """Return the newest rotations of these accounts' secrets; accounts that never rotated are not included."""
    found: dict[str, tuple[Rotation, ...]] = {}
    if account_ids:
        for row in rows.execute(_ROTATIONS, {"accounts": list(account_ids), "most": SIGNING_MAX_COUNT}):
            rotation = Rotation(row.generation, row.rotated_at)
            found[row.account_id] = (*found.get(row.account_id, ()), rotation)
    return found
