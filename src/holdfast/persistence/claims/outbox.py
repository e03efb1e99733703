"""Claims of due events: the claimer delivers the event, and the attempt is counted before it begins.

A claim postpones ``due_at`` under ``SKIP LOCKED`` as a failed attempt would, so several processes share the work,
and a delivery that is lost with its process counts as a failed one.

Accounts are looked through in turn, by one probe of the index for each, so that a claim costs the same however many
events of one account wait. Accounts that have new events are named by the caller, and not looked for. Those whose
receivers are silent are known to all processes, by the table ``silent_receivers``, and have a limit of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec
from sqlalchemy import Connection, text

from holdfast.ledger.tasks.events import PAUSES_S
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
        select a.account_id, e.event_id, e.due_at, a.busy,
               exists (select from silent_receivers s where s.account_id = a.account_id) as is_silent
        from unnest(cast(:accounts as text[]), cast(:busy as integer[])) as a(account_id, busy) cross join lateral (
            select o.event_id, o.due_at from outbox o where o.account_id = a.account_id and o.due_at <= :now
            order by o.due_at limit :per_account
        ) e
    ), numbered as (
        select *, row_number() over (partition by account_id order by due_at) as number from seen
    ), fair as (
        select account_id, event_id, is_silent,
               row_number() over (partition by is_silent order by busy + number, due_at) as turn
        from numbered where number <= :per_account - busy
    ), due as (
        select o.account_id, o.event_id, fair.is_silent from outbox o join fair using (account_id, event_id)
        where o.due_at <= :now and fair.turn <= case when fair.is_silent then :to_silent else :quick end
        for update of o skip locked
    )
    update outbox o
    set attempts = o.attempts + 1, tries = o.tries + 1,
        due_at = :now + make_interval(secs => greatest(:lease_s,
            (cast(:pauses_s as float8[]))[least(o.tries + 1, cardinality(cast(:pauses_s as float8[])))]))
    from due where o.account_id = due.account_id and o.event_id = due.event_id
    returning o.account_id, o.event_id, o.request_id, o.kind, o.url, o.created_at, o.attempts, o.round_at, o.tries,
              cast(o.snapshot as text) as snapshot, due.is_silent
    """
)
_LEARN_SILENT = text(
    "insert into silent_receivers (account_id, since) "
    "select account_id, :now from unnest(cast(:accounts as text[])) a (account_id) order by account_id "
    "on conflict do nothing"
)
_LEARN_ANSWERING = text(
    "with known as ("
    "  select account_id from silent_receivers where account_id = any(:accounts) for update skip locked) "
    "delete from silent_receivers s using known where s.account_id = known.account_id"
)
_ROTATIONS = text(
    "select s.account_id, s.generation, s.rotated_at from unnest(cast(:accounts as text[])) as a(account_id) "
    "cross join lateral (select * from webhook_secrets w where w.account_id = a.account_id "
    "order by w.generation desc limit :most) s"
)


class DueEvent(NamedTuple):
    """A claimed event: ``attempts`` numbers this delivery, the ``tries``-th of the round begun at ``round_at``.

    ``rotations`` are the newest rotations of its account's webhook secret; ``is_silent``: the last delivery to the
    account had no answer in time.
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
    is_silent: bool = False

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


class Capacity(NamedTuple):
    """How many deliveries may begin: to silent receivers, to others, and of one account, less those under way."""

    to_silent: int
    quick: int
    per_account: int
    busy: Mapping[str, int]


def claim_due(
    rows: Connection,
    now: datetime,
    *,
    after: str | None,
    named: Collection[str],
    capacity: Capacity,
    learned: Mapping[str, bool],
    lease_s: float,
) -> tuple[list[DueEvent], str | None]:
    """Claim due events as far as ``capacity`` allows: of the accounts in ``named``, and of accounts in turn.

    The turn begins with the account that follows ``after``; with None no others are looked at. Also returns the
    account after which the next claim continues, None when all had their turn. If not all events fit, an account
    with fewer deliveries under way goes first, and then the older event: long backlogs do not delay the first
    delivery to others. ``learned`` says of accounts whether their receivers are silent, which is stored first.
    ``lease_s`` is how long a delivery may take.
    """
    for is_silent, learn in ((True, _LEARN_SILENT), (False, _LEARN_ANSWERING)):
        if found := [account_id for account_id, each in learned.items() if each is is_silent]:
            rows.execute(learn, {"accounts": found, "now": now} if is_silent else {"accounts": found})
    probed: Sequence[Any] = ()
    if after is not None:
        page = {"after": after, "probed_max": ACCOUNTS_PROBED_MAX, "now": now}
        probed = rows.execute(_PROBED, page).all()
    wanted = {*named, *(row.account_id for row in probed if row.is_due)}
    accounts = [each for each in wanted if capacity.busy.get(each, 0) < capacity.per_account]
    claimed = rows.execute(
        _CLAIM,
        {
            "now": now,
            "accounts": accounts,
            "busy": [capacity.busy.get(account_id, 0) for account_id in accounts],
            "per_account": capacity.per_account,
            "to_silent": capacity.to_silent,
            "quick": capacity.quick,
            "lease_s": lease_s,
            "pauses_s": [float(pause_s) for pause_s in PAUSES_S],
        },
    ).all()
    rotations = rotations_of(rows, *{row.account_id for row in claimed})
    due = [DueEvent._make((*row[:-1], rotations.get(row.account_id, ()), row.is_silent)) for row in claimed]
    return due, probed[-1].account_id if len(probed) == ACCOUNTS_PROBED_MAX else None


def rotations_of(rows: Connection, *account_ids: str) -> dict[str, tuple[Rotation, ...]]:
    """Return the newest rotations of these accounts' secrets; accounts that never rotated are not included."""
    found: dict[str, tuple[Rotation, ...]] = {}
    if account_ids:
        for row in rows.execute(_ROTATIONS, {"accounts": list(account_ids), "most": SIGNING_MAX_COUNT}):
            rotation = Rotation(row.generation, row.rotated_at)
            found[row.account_id] = (*found.get(row.account_id, ()), rotation)
    return found
