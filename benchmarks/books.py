"""Books of any size, written as the service would have written them: its decisions, its rows, its batch writer.

Every account receives credit and runs tasks to their capture; :func:`build` spreads the accounts over processes.
Only time is compressed: each account's history ends now and began :data:`HISTORY_DAYS` before.
"""

from __future__ import annotations

import multiprocessing
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import psycopg

from holdfast.http.kit.credentials import digest, mint_api_key
from holdfast.ledger.api_keys import KeyTerms
from holdfast.ledger.catalog.pricing import PricedInput
from holdfast.ledger.credit.account import AccountState, decide_capture, decide_credit, decide_hold
from holdfast.ledger.credit.operations import Operation
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.decisions import on_wake
from holdfast.ledger.tasks.dispatch import on_submitted
from holdfast.ledger.tasks.hosting import on_hosted
from holdfast.ledger.tasks.provider_update import Output, ProviderUpdate
from holdfast.ledger.tasks.provider_updates import on_update
from holdfast.ledger.tasks.task import OutputItem, Task, TaskRequest, accept_task
from holdfast.ledger.tasks.transitions import Context, ProviderTraits, Step
from holdfast.ledger.values import new_id, new_id_of_account, place_digits, place_of, utc_now
from holdfast.persistence.journal.units import Committed, Unit
from holdfast.persistence.journal.writer import BatchWriter
from holdfast.persistence.records.key_rows import ApiKeyRecord, ApiKeyRow
from holdfast.persistence.records.resulting_rows import new_asset_rows, usage_counted_row
from holdfast.persistence.records.rows import (
    AccountHead,
    AccountRow,
    NewTaskRow,
    Row,
    SessionRow,
    TaskEventRow,
)
from holdfast.persistence.server.connections import KeptConnection, connect_writer

OPERATIONS_PER_ACCOUNT = 100
CREDITS_PER_TASK = 8
"""Operations in a group: these credits, a hold and its capture."""
GROUP = CREDITS_PER_TASK + 2
LARGEST_SHARE = 0.1
"""The share of all operations that belongs to one account."""
HISTORY_DAYS = 30
ROWS_PER_BATCH = 20_000
STATEMENT_MS = 600_000
SHA256 = "ab" * 32
CREDIT_MICRO = 1_000_000
TRAITS = ProviderTraits(idempotent_submit=True, polls=True, cancels=True)
EVENT = b'{"event_id":"evt_benchmark","status":"succeeded","outputs":[{"index":0,"content_type":"image/png"}]}'


@dataclass(frozen=True, slots=True)
class Key:
    """An account's API key, and the token of a session of it."""

    secret: str
    token: str


@dataclass(frozen=True, slots=True)
class Share:
    """What one process writes: accounts of these numbers of operations, the first with this many open tasks."""

    url: str
    work: PricedInput
    operations: tuple[int, ...]
    open_tasks: int = 0


def build(url: str, work: PricedInput, operations: int, *, processes: int) -> list[Key]:
    """Write about ``operations`` operations; return the accounts' keys, the largest account's first."""
    largest = max(GROUP, int(operations * LARGEST_SHARE))
    accounts = max(1, (operations - largest) // OPERATIONS_PER_ACCOUNT)
    sizes = [OPERATIONS_PER_ACCOUNT] * accounts
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "insert into contents (sha256, content_type, claimed_until) values (%s, 'image/png', now()) "
            "on conflict do nothing",
            (SHA256,),
        )
    shares = [
        Share(url, work, (*((largest,) if number == 0 else ()), *sizes[number::processes]))
        for number in range(processes)
    ]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        keys = [key for found in pool.map(write_share, shares) for key in found]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("vacuum analyze")
        connection.execute("checkpoint")
    return keys


def write_share(share: Share) -> list[Key]:
    """Write the accounts of one share."""
    connection = KeptConnection(lambda: connect_writer(share.url, statement_timeout_ms=STATEMENT_MS))
    writer = BatchWriter(connection, now=utc_now)
    keys: list[Key] = []
    rows: list[Row] = []

    def flush() -> None:
        for result in writer.write([Unit(rows=tuple(rows))]):
            assert isinstance(result, Committed), result
        rows.clear()

    for number, size in enumerate(share.operations):
        account = Account(share.work, utc_now() - timedelta(days=HISTORY_DAYS))
        keys.append(account.key)
        groups = size // GROUP
        pause = timedelta(days=HISTORY_DAYS) / (groups + 1)
        rows += account.opening()
        for _ in range(groups):
            rows += account.group(pause)
            if len(rows) >= ROWS_PER_BATCH:
                flush()
        if number == 0:
            for _ in range(share.open_tasks):
                rows += account.open_task()
        rows.append(account.head())
    flush()
    writer.close()
    return keys


class Account:
    """One account's history as the rows of its units, in order. ``opened_at`` is its first moment."""

    def __init__(self, work: PricedInput, opened_at: datetime) -> None:
        self._work = work
        self._now = opened_at
        self._state = AccountState(new_id("acct"))
        minted = mint_api_key(self._state.account_id, live=False)
        self.key = Key(minted.secret, _session_token(self._state.account_id))
        self._minted = minted
        self._key_id = new_id("key")

    def opening(self) -> Iterator[Row]:
        """Open the account, with an API key and a session."""
        account_id, at = self._state.account_id, self._now
        yield AccountRow(AccountHead(account_id), f"{account_id}@example.com", "User", "b", at)
        scopes = ("tasks:read", "tasks:write")
        record = ApiKeyRecord(account_id, self._key_id, self._minted.prefix, KeyTerms("benchmark", scopes), at)
        yield ApiKeyRow(record, self._minted.sha256)
        until = utc_now() + timedelta(days=1)
        yield SessionRow(account_id, new_id("ses"), digest(self.key.token), at, until)

    def group(self, pause: timedelta) -> Iterator[Row]:
        """Receive credit and run one task to its capture; ``pause`` later than the group before."""
        self._now += pause
        for _ in range(CREDITS_PER_TASK):
            yield self._credit()
        hold, task = self._create()
        yield hold
        done, operation, event = self._finish(task)
        yield operation
        yield NewTaskRow(done)
        yield usage_counted_row(done)
        yield event
        yield from new_asset_rows(task, done)

    def open_task(self) -> Iterator[Row]:
        """Create a task now that its provider has accepted, and whose process has ended since."""
        self._now = utc_now()
        yield self._credit()
        hold, task = self._create()
        yield hold
        yield NewTaskRow(self._accepted(task), owner="proc_ended")

    def head(self) -> AccountHead:
        """Return the account's head after everything so far."""
        state = self._state
        return AccountHead(
            state.account_id,
            state.number,
            state.number,
            state.balance_micro,
            state.held_micro,
            state.chain_head,
            state.lots.encoded(),
        )

    def _credit(self) -> Operation:
        operation_id = new_id("op")
        return self._apply(
            decide_credit(
                self._state,
                operation_id=operation_id,
                amount_micro=CREDIT_MICRO,
                source="sandbox",
                reference=operation_id,
                reason="sandbox recharge",
                at=self._now,
            )
        )

    def _create(self) -> tuple[Operation, Task]:
        terms, hold_id = self._work.terms, new_id("hold")
        request_id = new_id_of_account("task", self._state.account_id)
        request = TaskRequest(
            input=self._work.input,
            terms=terms,
            quote_id="quo_benchmark",
            api_key_id=self._key_id,
            hold_id=hold_id,
            hold_micro=terms.hold_micro,
        )
        operation = decide_hold(
            self._state,
            operation_id=new_id("op"),
            hold_id=hold_id,
            amount_micro=terms.hold_micro,
            reference=request_id,
            at=self._now,
        )
        return self._apply(operation), accept_task(self._state.account_id, request_id, request, self._now)

    def _accepted(self, task: Task) -> Task:
        submitting = _task_after(on_wake(task, Context(self._now, ""), traits=TRAITS))
        return _task_after(on_submitted(submitting, 1, f"{task.request_id}.1", self._now))

    def _finish(self, task: Task) -> tuple[Task, Operation, TaskEventRow]:
        now = self._now + timedelta(seconds=2)
        event_id = new_id("evt")
        update = ProviderUpdate(
            source="callback",
            provider=task.provider,
            event_id=event_id,
            request_id=task.request_id,
            attempt=1,
            status="succeeded",
            outputs=(Output(index=0, url="https://provider.example/1.png", content_type="image/png"),),
        )
        hosting = _task_after(on_update(self._accepted(task), update, Context(now, "")))
        item = OutputItem(
            index=0,
            asset_id=new_id("asset"),
            sha256=SHA256,
            bytes=180,
            content_type="image/png",
            width=8,
            height=8,
            expires_at=now + timedelta(days=2 * HISTORY_DAYS),
        )
        step = on_hosted(hosting, 1, hosting.state.hosting.round, (item,), Context(now, new_id("op")))
        settle = step.settle
        assert settle is not None
        operation = decide_capture(
            self._state,
            operation_id=settle.operation_id,
            hold_id=settle.hold_id,
            charge_micro=settle.charge_micro,
            reference=task.request_id,
            reason=settle.reason,
            at=settle.at,
        )
        event = TaskEventRow(task.account_id, task.request_id, task.provider, event_id, now, "applied", EVENT)
        return _task_after(step), self._apply(operation), event

    def _apply(self, operation: Operation | Refusal) -> Operation:
        assert isinstance(operation, Operation), operation
        self._state.apply(operation)
        return operation


def _session_token(account_id: str) -> str:
    return "hst_" + place_digits(place_of(account_id)) + secrets.token_urlsafe(30)


def _task_after(step: Step) -> Task:
    assert step.task is not None, step
    return step.task
