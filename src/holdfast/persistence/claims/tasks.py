"""Claims of due tasks, so that no two processes work on one.

A claim postpones ``wake_at`` under ``SKIP LOCKED``: if the claimer dies, the task is found again at that time. All
times are service time, given by the caller, so that no wall clock decides what is due.

Slots at a provider are assigned by account: one to each account with waiting tasks in turn, and inside an account
in the order in which its tasks became due. The next account is found through the index of waiting tasks, by one
probe for each account, however many tasks wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from sqlalchemy import Connection, TextClause, text

from holdfast.ledger.tasks.dispatch import Silence, Unanswered
from holdfast.persistence.records.reading import OCCUPIES
from holdfast.persistence.server.repeated_queries import RepeatedQuery

LEASE_S = 10
ACCOUNTS_PROBED_MAX = 200
"""How many accounts one claim probes. One whose tasks are all postponed costs a probe and gets no slot."""
DEADLINE_MARGIN_S = 2
"""A task is claimed this long after its caller's deadline. The process that works on it wakes it within about a
second; and one that waits, woken too early by another view of the time, would take a slot that is not free.
"""
OVERDUE_MARGIN_S = 5
"""A task is claimed this long after its deadline: woken before it, it would take a slot that is not free."""

_PROBED = (
    "with recursive probed as ("
    "  (select account_id, 1 as number from tasks where provider = :provider and wake_at is not null "
    "   and not dispatched and account_id > :after and account_id <= :until order by account_id limit 1)"
    "  union all"
    "  select n.account_id, p.number + 1 from probed p cross join lateral ("
    "    select t.account_id from tasks t where t.provider = :provider and t.wake_at is not null "
    "    and not t.dispatched and t.account_id > p.account_id and t.account_id <= :until "
    "    order by t.account_id limit 1) n"
    "  where p.number < :probed_max) "
)
_ACCOUNTS = RepeatedQuery(
    text(
        # The recursion goes no further than this limit asks for.
        f"{_PROBED} select p.account_id from probed p where exists (select from tasks t "
        "where t.provider = :provider and not t.dispatched and t.account_id = p.account_id and t.wake_at <= :now "
        "and t.model <> all(cast(:paused as text[]))) limit :most"
    )
)
_LAST_PROBED = text(f"{_PROBED} select account_id from probed where number = :probed_max")
_CLAIM_WAITING = RepeatedQuery(
    text(
        "with due as (select w.request_id, a.position, w.wake_at from "
        "unnest(cast(:accounts as text[])) with ordinality a (account_id, position) cross join lateral ("
        "  select t.request_id, t.wake_at from tasks t where t.provider = :provider and not t.dispatched "
        "  and t.account_id = a.account_id and t.wake_at <= :now and t.model <> all(cast(:paused as text[])) "
        "  order by t.wake_at limit :share for update skip locked) w limit :slots) "
        "update tasks t set wake_at = :now + make_interval(secs => :lease_s) from due "
        "where t.request_id = due.request_id "
        "returning t.request_id, t.account_id, due.position, due.wake_at as due_at"
    )
)
_WAITING = "t.wake_at is not null and not t.dispatched"
_DISPATCHED_TO_OWNER = "t.wake_at is not null and t.dispatched and t.owner"
_CLAIM_FOLLOW_UPS = text(
    "with recursive owners as ("
    f"  (select t.owner from tasks t where {_DISPATCHED_TO_OWNER} is not null order by t.owner limit 1)"
    "  union all"
    "  select n.owner from owners o cross join lateral ("
    f"    select t.owner from tasks t where {_DISPATCHED_TO_OWNER} > o.owner order by t.owner limit 1) n"
    "), due as (select d.request_id, o.owner from owners o cross join lateral ("
    f"    select t.request_id from tasks t where {_DISPATCHED_TO_OWNER} = o.owner and t.wake_at <= :now "
    "    order by t.wake_at limit :most for update skip locked) d"
    "  where o.owner = :me or not exists (select from processes p where p.process_id = o.owner) limit :most) "
    "update tasks t set wake_at = :now + make_interval(secs => :lease_s), owner = :me from due "
    "where t.request_id = due.request_id returning t.request_id, due.owner as owner_before"
)
_CLAIM_OVERDUE = text(
    "with due as ("
    f"  select t.request_id from tasks t where {_WAITING} and t.wake_at <= :now "
    "  and t.overall_deadline_at <= :now - make_interval(secs => :margin_s) "
    "  order by t.overall_deadline_at limit :most for update skip locked) "
    "update tasks t set wake_at = :now + make_interval(secs => :lease_s) from due "
    "where t.request_id = due.request_id returning t.request_id"
)
_PAST_CALLERS_DEADLINE = (
    "t.overall_deadline_at <= :now - make_interval(secs => :margin_s) and t.request ->> 'deadline_s' is not null"
)
_CLAIM_PAST_DEADLINE = text(
    "with recursive owners as ("
    f"  (select t.owner from tasks t where {_DISPATCHED_TO_OWNER} is not null order by t.owner limit 1)"
    "  union all"
    "  select n.owner from owners o cross join lateral ("
    f"    select t.owner from tasks t where {_DISPATCHED_TO_OWNER} > o.owner order by t.owner limit 1) n"
    "), waiting as ("
    f"  select t.request_id from tasks t where {_WAITING} and t.wake_at <= :now and {_PAST_CALLERS_DEADLINE} "
    "  order by t.overall_deadline_at limit :most for update skip locked"
    "), left_alone as (select d.request_id from owners o cross join lateral ("
    f"    select t.request_id from tasks t where {_DISPATCHED_TO_OWNER} = o.owner "
    f"    and t.wake_at <= :now - make_interval(secs => :margin_s) and {_PAST_CALLERS_DEADLINE} "
    "    order by t.wake_at limit :most for update skip locked) d limit :most"
    "), due as (select request_id from waiting union all select request_id from left_alone) "
    "update tasks t set wake_at = :now + make_interval(secs => :lease_s) from due "
    "where t.request_id = due.request_id returning t.request_id"
)
_WAITING_FOR_PROVIDER = f"{_WAITING} and t.provider = :provider"
_CLAIM_OF_SILENT = (
    # Tasks with the same limits have waited too long in the order of their creation.
    "with recursive limits as ("
    f"  (select t.dispatch_s, t.run_s from tasks t where {_WAITING_FOR_PROVIDER} "
    "   order by t.dispatch_s, t.run_s limit 1)"
    "  union all"
    "  select n.dispatch_s, n.run_s from limits l cross join lateral ("
    f"    select t.dispatch_s, t.run_s from tasks t where {_WAITING_FOR_PROVIDER} "
    "    and (t.dispatch_s, t.run_s) > (l.dispatch_s, l.run_s) order by t.dispatch_s, t.run_s limit 1) n"
    "), due as (select d.request_id from limits l cross join lateral ("
    f"  select t.request_id from tasks t where {_WAITING_FOR_PROVIDER} "
    "  and t.dispatch_s = l.dispatch_s and t.run_s = l.run_s "
    "  and t.created_at <= :now - make_interval(secs => l.{limit}) and t.wake_at <= :now "
    "  and coalesce(cast(t.state ->> 'attempt' as integer), 0) = 0 "
    "  order by t.created_at limit :most for update skip locked) d where l.{limit} <= :silent_s limit :most) "
    "update tasks t set wake_at = :now + make_interval(secs => :lease_s) from due "
    "where t.request_id = due.request_id returning t.request_id"
)
_CLAIMS_OF_SILENT: dict[Unanswered, TextClause] = {
    "submissions": text(_CLAIM_OF_SILENT.replace("{limit}", "dispatch_s")),
    "updates": text(_CLAIM_OF_SILENT.replace("{limit}", "run_s")),
}
"""By what the provider does not answer, which says how long a task waits for it."""
_PROVIDERS_WAITED_FOR = text(
    "with recursive found as ("
    "  (select provider from tasks where wake_at is not null and not dispatched order by provider limit 1)"
    "  union all"
    "  select n.provider from found f cross join lateral (select t.provider from tasks t "
    "    where t.wake_at is not null and not t.dispatched and t.provider > f.provider "
    "    order by t.provider limit 1) n"
    ") select provider from found"
)
_CLAIM_OF_PROVIDER = text(
    "with waiting as (select request_id from tasks where provider = :provider and not dispatched "
    "and wake_at <= :now limit :most for update skip locked) "
    "update tasks t set wake_at = :now + make_interval(secs => :lease_s) from waiting w "
    "where t.request_id = w.request_id returning t.request_id"
)
_REACHED_ELSEWHERE = text(
    "select exists (select from processes where process_id <> :me and lease_until > :now "
    "and :provider = any(providers))"
)
_DISPATCHED = text(
    f"select request_id, provider, {OCCUPIES} as occupies from tasks t where wake_at is not null and dispatched"
)
_EXPIRED_INPUTS = text(
    "select input_until, request_id from tasks where input_until <= :at "
    "and (input_until, request_id) > (:after_at, :after_id) order by input_until, request_id limit :most"
)
_STILL_OCCUPYING = text(
    "select request_id from tasks t where request_id = any(:held) and wake_at is not null and dispatched "
    f"and {OCCUPIES}"
)

FIRST = ""
"""Sorts before every account id."""
_LAST = "zz"
"""Sorts after every account id, in every collation."""


class DispatchedTask(NamedTuple):
    """A dispatched task. ``occupies``: its job may still be running at the provider."""

    request_id: str
    provider: str
    occupies: bool


class Expired(NamedTuple):
    """A task of which something expired at this time."""

    at: datetime
    request_id: str


FIRST_EXPIRED = Expired(datetime.min.replace(tzinfo=UTC), "")
"""Comes before all that has expired."""


class FollowUp(NamedTuple):
    """A claimed task that is dispatched and due; ``owner_before`` is the process that owned it until now."""

    request_id: str
    owner_before: str


def claim_waiting(
    rows: Connection, provider: str, *, slots: int, after: str, now: datetime, paused: Sequence[str] = ()
) -> tuple[list[str], str]:
    """Claim up to ``slots`` waiting tasks of a provider, of accounts in turn, none of a ``paused`` model.

    The turn begins with the account that follows ``after``. Returns the tasks, round by round with one of each
    account, and the account that was served last, or if there was none the last one that was probed.
    """
    claimed: list[str] = []
    while len(claimed) < slots:
        left = slots - len(claimed)
        due, last = _accounts_in_turn(rows, provider, after, left, now=now, paused=paused)
        if not due:
            after = last
            break
        # With more slots than accounts, each account gets the same share; the rest goes to the next round.
        share = max(1, left // len(due))
        found = _CLAIM_WAITING.rows(
            rows,
            {
                "accounts": due,
                "provider": provider,
                "share": share,
                "slots": left,
                "now": now,
                "lease_s": LEASE_S,
                "paused": list(paused),
            },
        )
        if not found:
            break
        claimed += [row.request_id for row in sorted(found, key=lambda row: (row.due_at, row.request_id))]
        after = due[max(row.position for row in found) - 1]
        if max(Counter(row.position for row in found).values()) < share:
            # No account had as many as it could get, so none has more.
            break
    return claimed, after


def _accounts_in_turn(
    rows: Connection, provider: str, after: str, most: int, *, now: datetime, paused: Sequence[str]
) -> tuple[list[str], str]:
    """Return accounts with a task that is due: those after ``after`` first, then from the beginning up to it.

    With them is the last one that was probed, if others follow it: while a model is paused more accounts than are
    probed may have tasks of it alone, and those behind them come in a later claim. Otherwise it is ``after``.
    """
    due: list[str] = []
    for first, last in ((after, _LAST), (FIRST, after)):
        if len(due) < most and first != last:
            probe = {
                "provider": provider,
                "after": first,
                "until": last,
                "probed_max": max(ACCOUNTS_PROBED_MAX, most),
                "most": most - len(due),
                "now": now,
                "paused": list(paused),
            }
            due += [row.account_id for row in _ACCOUNTS.rows(rows, probe)]
            probed = rows.scalar(_LAST_PROBED, probe) if paused and len(due) < most else None
            if probed is not None:
                return due, probed
    return due, after


def claim_follow_ups(rows: Connection, *, me: str, most: int, now: datetime) -> list[FollowUp]:
    """Claim dispatched tasks that are due: this process's own, and those whose owner has no row in ``processes``.

    Those of a process with a row are taken over once it has ended, and then the row is deleted.
    """
    claim = {"me": me, "most": most, "now": now, "lease_s": LEASE_S}
    return [FollowUp._make(row) for row in rows.execute(_CLAIM_FOLLOW_UPS, claim)]


def claim_overdue(rows: Connection, *, most: int, now: datetime) -> list[str]:
    """Claim waiting tasks whose overall deadline has passed."""
    claim = {"margin_s": OVERDUE_MARGIN_S, "most": most, "lease_s": LEASE_S, "now": now}
    return list(rows.execute(_CLAIM_OVERDUE, claim).scalars())


def claim_past_deadline(rows: Connection, *, most: int, now: datetime) -> list[str]:
    """Claim tasks whose caller's deadline has passed: those that wait, and those whose process leaves them alone.

    At most ``most`` of each kind.
    """
    claim = {"margin_s": DEADLINE_MARGIN_S, "most": most, "lease_s": LEASE_S, "now": now}
    return list(rows.execute(_CLAIM_PAST_DEADLINE, claim).scalars())


def providers_waited_for(rows: Connection) -> list[str]:
    """Return the providers that tasks wait for, in the catalog or not."""
    return list(rows.execute(_PROVIDERS_WAITED_FOR).scalars())


def claim_of_removed(rows: Connection, provider: str, *, me: str, most: int, now: datetime) -> list[str]:
    """Claim tasks that wait for a provider this process has removed; none if another process can reach it."""
    if rows.execute(_REACHED_ELSEWHERE, {"provider": provider, "me": me, "now": now}).scalar_one():
        return []
    claim = {"provider": provider, "most": most, "now": now, "lease_s": LEASE_S}
    return list(rows.execute(_CLAIM_OF_PROVIDER, claim).scalars())


def claim_of_silent(rows: Connection, provider: str, silence: Silence, *, most: int, now: datetime) -> list[str]:
    """Claim tasks that have waited for a silent provider as long as their terms allow."""
    claim = {"provider": provider, "silent_s": silence.seconds, "most": most, "now": now, "lease_s": LEASE_S}
    return list(rows.execute(_CLAIMS_OF_SILENT[silence.of], claim).scalars())


def dispatched_tasks(rows: Connection) -> list[DispatchedTask]:
    """Return all dispatched tasks that have not ended."""
    return [DispatchedTask._make(row) for row in rows.execute(_DISPATCHED)]


def still_occupying(rows: Connection, request_ids: Sequence[str]) -> set[str]:
    """Return those of the tasks whose jobs may still be running at their provider."""
    return set(rows.execute(_STILL_OCCUPYING, {"held": list(request_ids)}).scalars())


def tasks_with_expired_input(rows: Connection, at: datetime, *, after: Expired, most: int) -> list[Expired]:
    """Return ended tasks whose large input has expired, in that order, those that follow ``after``."""
    page = {"at": at, "after_at": after.at, "after_id": after.request_id, "most": most}
    return [Expired._make(row) for row in rows.execute(_EXPIRED_INPUTS, page)]
