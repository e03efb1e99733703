"""Claims of due events: the claimer delivers the event, and the attempt is counted before it begins.

A claim postpones ``due_at`` under ``SKIP LOCKED`` as a failed attempt would, so several processes share the work,
and a delivery that is lost with its process counts as a failed one.

Receivers are looked through in turn, by one probe of the index for each, so that a claim costs the same however
many events of one receiver wait. A receiver is a webhook of an account, the account for the ``webhook_url`` of its
tasks, or ``mail:`` and the account for its mail. Those that have new events are named by the caller, and not looked
for. Silent ones are known to all processes, and have a limit of their own; so has mail. A webhook costs nothing to
invent, so it counts as silent until its address has answered a delivery in time; and an account has so many
deliveries of each of these kinds at most, whatever receivers it has.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

import msgspec
from sqlalchemy import Connection, text

from holdfast.ledger.alerts.account_events import AnyEventKind
from holdfast.ledger.tasks.events import PAUSES_S
from holdfast.ledger.tasks.task import Task
from holdfast.ledger.tasks.webhook_secrets import SIGNING_MAX_COUNT, Rotation
from holdfast.persistence.records.event_rows import MAILTO

RECEIVERS_PROBED_MAX: Final = 500
"""How many receivers with events that are not delivered yet one claim probes; the next continues after them."""
FIRST: Final = ""
"""Sorts before every receiver."""
MAIL_LEASE_S: Final = 60.0
"""How long one attempt by mail may take."""
ENDED_MAX: Final = 1000
"""How many events of a webhook are ended together."""


Share = Literal["mail", "silent", "quick"]


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
        (select receiver, due_at, 1 as number from outbox
         where due_at is not null and receiver > :after order by receiver, due_at limit 1)
        union all
        select n.receiver, n.due_at, p.number + 1
        from probed p cross join lateral (
            select o.receiver, o.due_at from outbox o
            where o.due_at is not null and o.receiver > p.receiver order by o.receiver, o.due_at limit 1
        ) n
        where p.number < :probed_max
    )
    select receiver, due_at <= :now as is_due from probed order by number
    """
)
_CLAIM = text(
    """
    with seen as (
        select a.receiver, e.account_id, e.event_id, e.due_at, a.busy,
               case when starts_with(a.receiver, 'mail:') then 'mail'
                    when exists (select from silent_receivers s where s.receiver = a.receiver)
                      or exists (select from webhooks w where w.webhook_id = a.receiver and w.is_silent)
                    then 'silent' else 'quick' end as share
        from unnest(cast(:receivers as text[]), cast(:busy as integer[])) as a(receiver, busy) cross join lateral (
            select o.account_id, o.event_id, o.due_at from outbox o
            where o.receiver = a.receiver and o.due_at <= :now order by o.due_at limit :per_receiver
        ) e
    ), numbered as (
        select *, row_number() over (partition by receiver order by due_at) as number from seen
    ), of_accounts as (
        select account_id, event_id, share, due_at, coalesce(b.account_busy, 0) as account_busy,
               row_number() over (partition by account_id, share order by busy + number, due_at) as number
        from numbered left join
            unnest(cast(:accounts as text[]), cast(:shares as text[]), cast(:accounts_busy as integer[]))
            as b(account_id, share, account_busy) using (account_id, share)
        where number <= :per_receiver - busy
    ), fair as (
        select account_id, event_id, share,
               row_number() over (partition by share order by account_busy + number, due_at) as turn
        from of_accounts where number <= :per_account - account_busy
    ), due as (
        select o.account_id, o.event_id, o.webhook_id, fair.share = 'silent' as is_silent
        from outbox o join fair using (account_id, event_id)
        where o.due_at <= :now and fair.turn <=
            case fair.share when 'mail' then :to_mail when 'silent' then :to_silent else :quick end
        for update of o skip locked
    )
    update outbox o
    set attempts = o.attempts + 1, tries = o.tries + 1, url = coalesce(w.url, o.url),
        due_at = :now + make_interval(secs => greatest(
            case when starts_with(o.receiver, 'mail:') then :mail_lease_s else :lease_s end,
            (cast(:pauses_s as float8[]))[least(o.tries + 1, cardinality(cast(:pauses_s as float8[])))]))
    from due left join webhooks w on w.account_id = due.account_id and w.webhook_id = due.webhook_id
    where o.account_id = due.account_id and o.event_id = due.event_id
    returning o.account_id, o.event_id, o.receiver, o.request_id, o.kind, o.url, o.created_at, o.attempts,
              o.round_at, o.tries, cast(o.snapshot as text) as snapshot, due.is_silent, o.webhook_id,
              case when o.webhook_id is null or w.enabled then null
                   when w.enabled is null then 'the webhook was deleted' else 'the webhook is disabled' end as ended
    """
)
_LEARN_SILENT = text(
    "insert into silent_receivers (receiver, since) "
    "select receiver, :now from unnest(cast(:receivers as text[])) a (receiver) order by receiver "
    "on conflict do nothing"
)
_LEARN_OF_WEBHOOKS = text(
    "with known as ("
    "  select account_id, webhook_id from webhooks where webhook_id = any(:receivers) for update skip locked) "
    "update webhooks w set is_silent = :is_silent from known "
    "where w.account_id = known.account_id and w.webhook_id = known.webhook_id"
)
_LEARN_ANSWERING = text(
    "with known as ("
    "  select receiver from silent_receivers where receiver = any(:receivers) for update skip locked) "
    "delete from silent_receivers s using known where s.receiver = known.receiver"
)
_END = text(
    """
    with due as (
        select account_id, event_id from outbox where receiver = :webhook_id and due_at is not null
        limit :most for update skip locked
    )
    update outbox o
    set status = 'given_up', due_at = null, done_at = :now, round_at = :now, reason = :reason
    from due where o.account_id = due.account_id and o.event_id = due.event_id
    """
)
_ROTATIONS = text(
    "select s.account_id, s.generation, s.rotated_at from unnest(cast(:accounts as text[])) as a(account_id) "
    "cross join lateral (select * from webhook_secrets w where w.account_id = a.account_id "
    "order by w.generation desc limit :most) s"
)


class DueEvent(NamedTuple):
    """A claimed event: ``attempts`` numbers this delivery, the ``tries``-th of the round begun at ``round_at``.

    ``receiver`` is whose deliveries wait for each other. ``request_id`` is its task, None for an event of the
    account itself; ``webhook_id`` is None for a task's own ``webhook_url`` and for mail. ``rotations`` are the
    newest rotations of its account's webhook secret; ``is_silent``: the last delivery to the receiver had no answer
    in time, or there was none yet. ``ended``: why it is not sent any more.
    """

    account_id: str
    event_id: str
    receiver: str
    request_id: str | None
    kind: AnyEventKind
    url: str
    created_at: datetime
    attempts: int
    round_at: datetime
    tries: int
    snapshot: str
    rotations: tuple[Rotation, ...]
    is_silent: bool = False
    webhook_id: str | None = None
    ended: str | None = None

    @property
    def is_mail(self) -> bool:
        """Whether it is sent to the account's owner by mail."""
        return self.url.startswith(MAILTO)

    @property
    def share(self) -> Share:
        """Which deliveries it is one of."""
        return "mail" if self.is_mail else "silent" if self.is_silent else "quick"

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
    """How many deliveries may begin: by mail, to silent receivers and to others.

    Besides, how many one receiver may have, and one account of each of these kinds, and what they have already.
    """

    to_mail: int
    to_silent: int
    quick: int
    per_receiver: int
    busy: Mapping[str, int]
    per_account: int
    accounts_busy: Mapping[tuple[str, Share], int]


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
    """Claim due events as far as ``capacity`` allows: of the receivers in ``named``, and of receivers in turn.

    The turn begins with the receiver that follows ``after``; with None no others are looked at. Also returns the
    receiver after which the next claim continues, None when all had their turn. If not all events fit, an account
    with fewer deliveries under way goes first, of its receivers the one with fewer, and then the older event: long
    backlogs do not delay the first delivery to others. ``learned`` says of receivers whether they are silent, which
    is stored first.
    ``lease_s`` is how long a delivery may take.
    """
    for is_silent in (True, False):
        found = [receiver for receiver, each in learned.items() if each is is_silent]
        if webhooks := [each for each in found if each.startswith("wh_")]:
            rows.execute(_LEARN_OF_WEBHOOKS, {"receivers": webhooks, "is_silent": is_silent})
        if others := [each for each in found if not each.startswith("wh_")]:
            learn = _LEARN_SILENT.bindparams(now=now) if is_silent else _LEARN_ANSWERING
            rows.execute(learn, {"receivers": others})
    probed: Sequence[Any] = ()
    if after is not None:
        page = {"after": after, "probed_max": RECEIVERS_PROBED_MAX, "now": now}
        probed = rows.execute(_PROBED, page).all()
    wanted = {*named, *(row.receiver for row in probed if row.is_due)}
    receivers = [each for each in wanted if capacity.busy.get(each, 0) < capacity.per_receiver]
    claimed = rows.execute(
        _CLAIM,
        {
            "now": now,
            "receivers": receivers,
            "busy": [capacity.busy.get(receiver, 0) for receiver in receivers],
            "per_receiver": capacity.per_receiver,
            "per_account": capacity.per_account,
            "accounts": [account_id for account_id, _ in capacity.accounts_busy],
            "shares": [share for _, share in capacity.accounts_busy],
            "accounts_busy": list(capacity.accounts_busy.values()),
            "to_mail": capacity.to_mail,
            "to_silent": capacity.to_silent,
            "quick": capacity.quick,
            "lease_s": lease_s,
            "mail_lease_s": MAIL_LEASE_S,
            "pauses_s": [float(pause_s) for pause_s in PAUSES_S],
        },
    ).all()
    rotations = rotations_of(rows, *{row.account_id for row in claimed})
    due = [DueEvent._make((*row[:-3], rotations.get(row.account_id, ()), *row[-3:])) for row in claimed]
    return due, probed[-1].receiver if len(probed) == RECEIVERS_PROBED_MAX else None


def end_events(rows: Connection, webhook_id: str, now: datetime, *, reason: str) -> bool:
    """Give up events that wait for a webhook, at most :data:`ENDED_MAX`; return whether there may be more.

    A delivery that is under way is still made, without effect on its event.
    """
    given = {"webhook_id": webhook_id, "now": now, "reason": reason, "most": ENDED_MAX}
    return rows.execute(_END, given).rowcount == ENDED_MAX


def rotations_of(rows: Connection, *account_ids: str) -> dict[str, tuple[Rotation, ...]]:
    """Return the newest rotations of these accounts' secrets; accounts that never rotated are not included."""
    found: dict[str, tuple[Rotation, ...]] = {}
    if account_ids:
        for row in rows.execute(_ROTATIONS, {"accounts": list(account_ids), "most": SIGNING_MAX_COUNT}):
            rotation = Rotation(row.generation, row.rotated_at)
            found[row.account_id] = (*found.get(row.account_id, ()), rotation)
    return found
