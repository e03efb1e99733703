"""Creates without an Idempotency-Key: one task, however often a client that numbers its attempts sends one.

Such a client sends a request again after a lost connection, a 5xx or a time-out, and says which attempt it is, from
0. Equal requests of one API key are a group. Each create stores its reply under a route of the group and a key of
its own, so equal requests that are no resends are as many tasks.

- A resend first begins an attempt at the account. From then on the account refuses each create of the group that
  does not know of this attempt, however long it was delayed: in a frozen process, a mailbox, a link. What was
  decided before is in the rows once the beginning is answered. The resend joins one of these tasks, or creates one,
  knowing of its own attempt alone.
- A client hangs up before it sends a request again. So who is refused because of another attempt, or finds a task
  that a later attempt has joined, waits for :data:`HANG_UP_S`. If its client has gone, its handler is cancelled
  meanwhile; if not, the other attempt was at another request, and it goes on knowing of that one.

There are never more tasks of a group than requests. Call a request served once an attempt at it has created or
joined a task. By induction there are at most as many tasks as served requests:

- A first attempt creates only while no resend of it has begun, so its request was not served before.
- A resend creates only if each task that it sees was taken by resends of other requests, at most one by each: a
  resend takes the task with the highest number below its own (:meth:`RequestAttempts.choose`), so those of other
  requests, whose numbers are lower, are left for these, whichever order they come in. For any number there are at
  most as many tasks with it or a higher one as requests whose last attempt here has it or a higher one. Between
  what it sees and its own decision only first attempts create, each one task for one request more: another resend
  would have to know of this one.

An attempt that was refused, or found the account or the database away, has taken no task, but for one that it
created without learning it, which its resend finds in the rows. If all tasks that a resend would take are those of
answers, and the attempt before was such a one, it acts as that one would have. It may be the resend of a request
whose answer was lost after it left this process, equal to the refused one: they differ in nothing that is sent.
Then the task that it takes or creates is the refused request's, whose own resend finds the other: as many tasks as
requests, and one more than was accepted only if that resend never comes.

This holds for any number of processes, and whatever they forget: one that knows less joins more. It needs one thing
of the network: the end of a connection comes at most :data:`HANG_UP_S` after a request that was late on it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final
from uuid import uuid4

import msgspec
import trio

from holdfast.actors.account.messages import BeginAttempt, RequestAttempt, TaskAccepted
from holdfast.actors.runtime.faults import AskFault
from holdfast.actors.runtime.messages import IdempotencyKey, Replayed
from holdfast.http.kit.calls import Call
from holdfast.http.schemas.tasks import CreateTaskRequest
from holdfast.http.services.tasks import accepted_task
from holdfast.ledger.api_keys import TASKS_WRITE
from holdfast.ledger.refusals import SUPERSEDED, Refusal
from holdfast.persistence.queries.replies import attempt_probe, began_at, find_reply, replies_of_route
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast_compat.attempts import RequestAttempts, Resend, group_of

CLIENT_TIMEOUT_S: Final = 600.0
"""After how long a client that does not say it gives up."""
BETWEEN_ATTEMPTS_S: Final = 120.0
"""The longest time between two attempts of one request."""
HANG_UP_S: Final = 1.0
"""By then it is read that a client has hung up, if that comes at all."""
RECENT: Final = timedelta(seconds=3 * (CLIENT_TIMEOUT_S + BETWEEN_ATTEMPTS_S))
"""How long after the beginning of an attempt one before it may still come: these clients make three."""

_REFUSED_FOR_NOW: Final = frozenset(
    {"rate_limit_exceeded", "concurrency_limit_exceeded", "stored_input_limit_reached", "overloaded"}
)


def note_refused(call: Call, attempt: int | None) -> None:
    """Note that this request was refused, so that its client may send it again without having a task.

    Of a client that does not number its attempts no resend would be recognized.
    """
    if attempt is not None:
        _note(call, Resend(_group(call), attempt))


def _note(call: Call, resend: Resend) -> None:
    call.deps.state(RequestAttempts).refuse(resend, call.request.id)


async def create_once(
    call: Call, wanted: CreateTaskRequest, attempt: int | None, client_timeout_s: float
) -> str | Refusal:
    """Create the task, or join that of an earlier attempt; return its id.

    ``attempt`` is the client's number of it, None if it does not number them; ``client_timeout_s`` is after how
    long it gives up. Refuses and raises as a create does.
    """
    after = RequestAttempt(_group(call))
    if attempt is None:
        return await _create(call, wanted, after.group)
    resend = Resend(after.group, attempt)
    while True:
        try:
            if not attempt:
                reply = await _create(call, wanted, after.group, after)
            else:
                async with call.deps.state(RequestAttempts).turn(after.group):
                    reply = await _join_or_create(call, wanted, resend, client_timeout_s)
        except (AskFault, DatabaseAway):
            # If the outcome of a create is unknown, its resend finds what was decided.
            _note(call, resend)
            raise
        if reply != SUPERSEDED:
            if isinstance(reply, Refusal) and reply.code in _REFUSED_FOR_NOW:
                _note(call, resend)
            return reply
        if not attempt:
            after, is_recent = await _newest_attempt(call, after.group)
            if not is_recent:
                continue
        await trio.sleep(HANG_UP_S)
        # What came while the process did not run is read before this goes on.
        await trio.lowlevel.checkpoint()


def _group(call: Call) -> str:
    """Return the route under which the replies to requests that are equal to this one are stored."""
    return f"resendable {group_of(call, call.fingerprint())}"


async def _create(
    call: Call, wanted: CreateTaskRequest, group: str, after: RequestAttempt | None = None
) -> str | Refusal:
    """Create the task. Refuses with :data:`SUPERSEDED` if a later attempt than ``after`` has begun."""
    key = IdempotencyKey(route=group, key=call.request.id, fingerprint=call.fingerprint())
    reply = await accepted_task(call, wanted, key, after=after)
    # The account may have been asked twice.
    decided = reply.reply if isinstance(reply, Replayed) else reply
    return decided if isinstance(decided, Refusal) else decided.request_id


async def _join_or_create(
    call: Call, wanted: CreateTaskRequest, resend: Resend, client_timeout_s: float
) -> str | Refusal:
    """Return the task of an earlier attempt, or create it.

    Refuses as :func:`_create` does, also if a later attempt is to be outwaited.
    """
    group, known, attempts = resend.group, call.known_key, call.deps.state(RequestAttempts)
    begun = RequestAttempt(group, uuid4().hex)
    refusal = await call.ask(
        call.deps.accounts.ref(known.account_id), BeginAttempt(begun, known.key_id, TASKS_WRITE)
    )
    if refusal is not None:
        return refusal
    longest_s = resend.number * (max(client_timeout_s, CLIENT_TIMEOUT_S) + BETWEEN_ATTEMPTS_S)
    oldest = call.deps.now() - timedelta(seconds=min(longest_s, call.deps.settings.idempotency_ttl_s))
    stored = await call.read(lambda rows: replies_of_route(rows, known.account_id, route=group, oldest=oldest))
    replies = {key: msgspec.json.decode(each, type=TaskAccepted | Refusal) for key, each in stored.items()}
    tasks = {key: each.request_id for key, each in replies.items() if isinstance(each, TaskAccepted)}
    if attempts.must_outwait(resend, tasks.values()):
        return SUPERSEDED
    chosen = attempts.choose(resend, tasks) or await _create(call, wanted, group, begun)
    if isinstance(chosen, str):
        attempts.join(chosen, resend.number)
    return chosen


async def _newest_attempt(call: Call, group: str) -> tuple[RequestAttempt, bool]:
    """Return the newest attempt at a request of a group, as the rows have it, and whether it is a recent one."""
    probe, now = attempt_probe(call.known_key.account_id, group), call.deps.now()
    oldest = now - timedelta(seconds=call.deps.settings.idempotency_ttl_s)
    stored = await call.read(lambda rows: find_reply(rows, probe, oldest=oldest))
    if stored is None:
        return RequestAttempt(group), True
    return RequestAttempt(group, stored.fingerprint.decode()), began_at(stored) > now - RECENT
