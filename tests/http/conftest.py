"""The HTTP API with fake actors, with or without a database."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
import pytest
import sqlalchemy
import trio
from quart import Response

from holdfast.actors.account.messages import RecordKeyUse
from holdfast.actors.runtime.messages import Command
from holdfast.actors.runtime.refs import ASK_DEADLINE_S, TrioActorRef, WhileDown
from holdfast.actors.sign_in.messages import OriginAdmitted
from holdfast.actors.unfenced.operator_records import OperatorRecords
from holdfast.http.app import HoldfastApp, create_app
from holdfast.http.kit.credentials import TASKS_READ, TASKS_WRITE, KnownKey, MintedKey, mint_api_key
from holdfast.http.kit.dependencies import CardPayments, Dependencies, Readiness
from holdfast.http.server.connection import AsgiApp
from holdfast.http.server.connections import Connections
from holdfast.http.server.limits import ServerLimits
from holdfast.http.server.listener import Listener
from holdfast.ledger.catalog.catalog import load_catalog
from holdfast.ledger.catalog.quotes import quote_input
from holdfast.ledger.links import PublicUrls
from holdfast.ledger.orders.order import Order
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.provider_update import ProviderUpdate
from holdfast.ledger.tasks.task import Task, TaskRequest, accept_task
from holdfast.ledger.tasks.webhook_secrets import Rotation
from holdfast.persistence.records import tables
from holdfast.persistence.records.operator_tables import OperatorAction, OperatorSession
from holdfast.persistence.records.tasks import USAGE_ENTRIES, UsageEntry
from holdfast.persistence.server.database import Database
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.providers.mail import MailFault
from holdfast.providers.media.provider_check import CheckStep
from holdfast.providers.storage.local import LocalStore
from holdfast.reports.feed import ReportFeed
from holdfast.reports.report import Report, ReportsAfter
from holdfast.reports.reporter import Reporter
from holdfast.settings import Settings, load_settings
from holdfast.supervision.control.messages import MemberView
from holdfast.supervision.poison_replays import NOT_FOUND

from .order_stand_ins import FakeCard, FakeOrderRepairs, FakeUnmatchedEvents, OrderRules, make_order

R = TypeVar("R")
T = TypeVar("T")

NOW = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)
ACCOUNT = "acct_" + "1" * 32
OTHER_ACCOUNT = "acct_" + "2" * 32
SESSION = "ses_" + "1" * 32
KEY = "key_" + "1" * 32
TOKEN = "hst_" + "A" * 43
PUBLIC_URL = "https://holdfast.example"

SANDBOX_SECRET = "sandbox-secret"
CARD_SECRET = "card-webhook-secret"

READY = Readiness(database=True, tree=True, providers={"studio": "up"})

Answer = Callable[[str, Command[Any]], Awaitable[Any]]


@dataclass
class FakeDirectory:
    """Replies with ``answer`` (a value, an exception to raise, or a function) and records every message."""

    answer: Any = None
    asked: list[tuple[str, Command[Any]]] = field(default_factory=list)
    deadlines_s: list[float] = field(default_factory=list)
    while_down: list[WhileDown] = field(default_factory=list)
    tells: list[tuple[str, RecordKeyUse]] = field(default_factory=list)

    def ref(self, key: str) -> FakeRef:
        return FakeRef(self, key)

    async def ask(self, key: str, command: Command[R], deadline_s: float) -> R | Refusal:
        self.asked.append((key, command))
        self.deadlines_s.append(deadline_s)
        answer = await self.answer(key, command) if callable(self.answer) else self.answer
        if isinstance(answer, BaseException):
            raise answer
        assert answer is not None, f"this directory has no answer to {command!r}"
        return cast(R, answer)

    def tell(self, key: str, command: Command[R]) -> None:
        assert isinstance(command, RecordKeyUse), "the endpoints only ask, except for the use of keys"
        self.tells.append((key, command))


class FakeRef(TrioActorRef):
    """The address of an actor in a :class:`FakeDirectory`."""

    def __init__(self, directory: FakeDirectory, key: str) -> None:
        super().__init__(f"urn:test:{key}")
        self._directory = directory
        self._key = key

    def ask(  # type: ignore[override]  # as in TrioActorRef
        self, message: Command[R], *, deadline_s: float = ASK_DEADLINE_S, while_down: WhileDown = "queue"
    ) -> Awaitable[R | Refusal]:
        self._directory.while_down.append(while_down)
        return self._directory.ask(self._key, message, deadline_s)

    def tell(self, message: Command[object]) -> None:
        self._directory.tell(self._key, message)


class NoRows:
    """A database that fails on every read, for paths that must not read."""

    async def read(self, query: Callable[[sqlalchemy.Connection], T], /) -> T:
        raise AssertionError("this call must not read the database")

    scan = read


class AwayRows:
    """A database that is away."""

    async def read(self, query: Callable[[sqlalchemy.Connection], T], /) -> T:
        raise DatabaseAway("the server is gone", retry_after_s=2.0)


@dataclass
class CountingRows:
    """Real rows, and how often they were read."""

    database: Database
    reads: int = 0

    async def read(self, query: Callable[[sqlalchemy.Connection], T], /) -> T:
        self.reads += 1
        return await self.database.read(query)

    async def scan(self, query: Callable[[sqlalchemy.Connection], T], /) -> T:
        return await self.database.scan(query)


@dataclass
class FakeMailer:
    """Records the mails."""

    sent: list[tuple[str, str, int]] = field(default_factory=list)
    fault: MailFault | None = None

    async def send_code(self, email: str, code: str, expires_in_s: int) -> None:
        if self.fault is not None:
            raise self.fault
        self.sent.append((email, code, expires_in_s))


@dataclass
class FakeEventCommands:
    """Records the commands."""

    sent_again: list[tuple[str, str]] = field(default_factory=list)
    rotated: list[tuple[str, int]] = field(default_factory=list)

    async def resend(self, account_id: str, event_id: str) -> None:
        self.sent_again.append((account_id, event_id))

    async def rotate_secret(self, account_id: str, generation: int) -> Rotation:
        self.rotated.append((account_id, generation))
        return Rotation(generation, NOW)


@dataclass
class FakeOperatorWrites:
    """Records the writes."""

    actions: list[OperatorAction] = field(default_factory=list)
    sessions: list[OperatorSession] = field(default_factory=list)
    fault: DatabaseAway | None = None

    async def write_action(self, action: OperatorAction) -> None:
        if self.fault is not None:
            raise self.fault
        self.actions.append(action)

    async def add_session(self, session: OperatorSession) -> None:
        self.sessions.append(session)

    async def end_session(self, cookie_mac: bytes, at: datetime) -> None:
        self.sessions = [each for each in self.sessions if each.cookie_mac != cookie_mac]


@dataclass
class FakeReportRows:
    """A table of reports without any."""

    async def after(self, position: int, limit: int) -> ReportsAfter:
        return ReportsAfter([], position)

    async def newest_position(self) -> int:
        return 0


@dataclass
class FakeProviderChecks:
    """Checks that take the given steps; ``charging`` are the providers that charge."""

    def __init__(self) -> None:
        self.charging: dict[str, bool] = {"studio": False}
        self.steps = [CheckStep("connection", "ok", "connected", 0.01)]
        self.runs: list[tuple[str, str, dict[str, object], float]] = []
        self.recorded: list[tuple[str, ProviderUpdate | None, str | None]] = []

    def charges(self, provider: str) -> bool | None:
        return self.charging.get(provider)

    async def run(
        self, provider: str, upstream_model: str, job_input: Mapping[str, object], *, wait_s: float
    ) -> list[CheckStep]:
        self.runs.append((provider, upstream_model, dict(job_input), wait_s))
        return self.steps

    async def record_callback(self, check_id: str, *, update: ProviderUpdate | None, refused: str | None) -> None:
        self.recorded.append((check_id, update, refused))


@dataclass
class FakeHealth:
    """A health check with a given state."""

    found: Readiness = READY

    async def readiness(self) -> Readiness:
        return self.found


class FakePoison:
    """No poison messages."""

    async def replay(self, poison_id: str, *, deadline_s: float) -> Refusal:
        return NOT_FOUND

    async def discard(self, poison_id: str) -> Refusal:
        return NOT_FOUND


@dataclass
class FakeControls:
    """The control actors of one process without any."""

    me: str = "proc_1"
    asked: list[tuple[str, Command[Any]]] = field(default_factory=list)
    answer: Callable[[Command[Any]], Any] = lambda _command: Refusal(code="actor_not_found", message="Not here.")
    others: tuple[MemberView, ...] = ()

    def members(self) -> list[MemberView]:
        this = MemberView(member_id=self.me, is_this=True, state="ready", unreachable_for_s=None)
        return [this, *self.others]

    def owner_of(self, group: str, key: str) -> str:
        return self.me

    async def ask(self, member_id: str, command: Command[R], *, deadline_s: float) -> R | Refusal:
        self.asked.append((member_id, command))
        return cast("R | Refusal", self.answer(command))


def make_task(
    request_id: str = "task_" + "1" * 32, *, account_id: str = ACCOUNT, at: datetime = NOW, **fields: Any
) -> Task:
    """A task as it is first written; ``fields`` replace the row's own."""
    priced = quote_input(load_catalog(None), "studio/image-1", {"prompt": "a lighthouse at dusk"})
    assert not isinstance(priced, Refusal)
    task = accept_task(
        account_id,
        request_id,
        TaskRequest(
            input=priced.input,
            terms=priced.terms,
            quote_id="quo_" + "1" * 32,
            api_key_id=KEY,
            hold_id="hold_" + request_id[5:],
            hold_micro=priced.terms.hold_micro,
        ),
        at,
    )
    return msgspec.structs.replace(task, **fields)


@dataclass
class Stage:
    """The API with fake dependencies, and methods to call it."""

    app: HoldfastApp
    accounts: FakeDirectory
    sign_ins: FakeDirectory
    tasks: FakeDirectory
    mailer: FakeMailer
    store: LocalStore
    key: MintedKey
    reports: list[Report]
    reporter: Reporter
    now: datetime = NOW
    account_id: str = ACCOUNT
    other_account_id: str = OTHER_ACCOUNT
    session_id: str = SESSION
    key_id: str = KEY
    token: str = TOKEN
    public_url: str = PUBLIC_URL

    @property
    def deps(self) -> Dependencies:
        return self.app.deps

    def change(self, **parts: Any) -> None:
        """Replace dependencies."""
        self.app.deps = replace(self.app.deps, **parts)

    def configure(self, **values: Any) -> None:
        """Replace settings."""
        self.change(settings=self.deps.settings.model_copy(update=values))

    def know_key(self) -> None:
        """Let the key cache know the key, as if it had been used before."""
        self.deps.key_cache.put(self.key.sha256, KnownKey(ACCOUNT, KEY))

    async def call(self, method: str, path: str, **kwargs: Any) -> Response:
        """Call without a credential."""
        with trio.fail_after(60):
            return await self.app.test_client().open(path, method=method, **kwargs)

    async def as_key(
        self, method: str, path: str, *, headers: dict[str, str] | None = None, **kwargs: Any
    ) -> Response:
        """Call with the API key."""
        heads = {"Authorization": f"Bearer {self.key.secret}", **(headers or {})}
        return await self.call(method, path, headers=heads, **kwargs)

    async def as_session(
        self, method: str, path: str, *, headers: dict[str, str] | None = None, **kwargs: Any
    ) -> Response:
        """Call with the session token."""
        heads = {"Authorization": f"Bearer {TOKEN}", **(headers or {})}
        return await self.call(method, path, headers=heads, **kwargs)

    def task(
        self, request_id: str = "task_" + "1" * 32, *, account_id: str = ACCOUNT, at: datetime = NOW, **fields: Any
    ) -> Task:
        """A task as it is first written; ``fields`` replace the row's own."""
        return make_task(request_id, account_id=account_id, at=at, **fields)

    def use_order_rules(self) -> OrderRules:
        """Let the accounts apply the rules of orders."""
        rules = OrderRules(self.now)
        self.accounts.answer = rules
        return rules

    def configure_card(self, **parts: Any) -> tuple[FakeCard, FakeUnmatchedEvents]:
        """Take cards, with a provider and a store of unmatched events."""
        card, unmatched = FakeCard(), FakeUnmatchedEvents()
        card_payments = CardPayments(
            provider=card,
            webhook_secrets=(CARD_SECRET,),
            publishable_key="pk_test",
            livemode=None,
            unmatched=unmatched,
        )
        self.change(card=replace(card_payments, **parts))
        return card, unmatched

    def order(
        self,
        order_id: str = "ord_" + "1" * 32,
        *,
        account_id: str = ACCOUNT,
        at: datetime = NOW,
        **fields: Any,
    ) -> Order:
        """An order of 10.00 as it is first written; ``fields`` replace the request's own."""
        return make_order(order_id, account_id, at, **fields)

    @asynccontextmanager
    async def serving(self, **limits: Any) -> AsyncIterator[str]:
        """Serve the app by the server itself on loopback; its base address."""
        connections = Connections(
            ServerLimits(**{"finish_requests_s": 1.0, **limits}), on_stop=self.deps.reports.end_readers
        )
        with socket.create_server(("127.0.0.1", 0)) as listening:
            listener = Listener(listening, cast(AsgiApp, self.app), lambda: connections)
            async with trio.open_nursery() as nursery:
                await nursery.start(connections.run)
                await nursery.start(listener.run)
                yield f"http://127.0.0.1:{listening.getsockname()[1]}"
                await listener.stop()
                await connections.stop()

    async def refused(self, response: Response, status: int, code: str) -> dict[str, Any]:
        """Check that an answer is this refusal in the one error shape; its ``error`` object."""
        text = await response.get_data(as_text=True)
        assert (response.status_code, msgspec.json.decode(text)["error"]["code"]) == (status, code), text
        assert response.headers["Content-Type"] == "application/json"
        error: dict[str, Any] = msgspec.json.decode(text)["error"]
        assert {"message", "type", "code", "param", "request_id"} <= set(error)
        assert error["request_id"] == response.headers["X-Request-Id"]
        return error


@dataclass
class Api(Stage):
    """The API on a real database with two accounts, one of them with a session and a key."""

    database: Database = field(kw_only=True)
    rows: CountingRows = field(kw_only=True)

    async def write(self, statement: sqlalchemy.Executable) -> None:
        """Change rows, as the journal would."""

        def run(rows: sqlalchemy.Connection) -> None:
            rows.execute(statement)

        await self.database.work(run)

    async def add_account(self, account_id: str, *, balance_micro: int = 0, held_micro: int = 0) -> None:
        await self.write(
            tables.accounts.insert().values(
                id=account_id,
                email=f"{account_id}@example.com",
                role="User",
                brand_id="holdfast",
                created_at=NOW,
                version=1,
                operation_count=0,
                balance_micro=balance_micro,
                held_micro=held_micro,
                chain_head=bytes(32),
            )
        )

    async def add_session(self, account_id: str, session_id: str, token: str, **columns: Any) -> None:
        values = {"created_at": NOW, "expires_at": NOW + timedelta(hours=24), "revoked_at": None, **columns}
        await self.write(
            tables.sessions.insert().values(
                account_id=account_id,
                session_id=session_id,
                token_sha256=hashlib.sha256(token.encode()).digest(),
                **values,
            )
        )

    async def add_key(
        self, account_id: str, key_id: str, *, scopes: tuple[str, ...] = (TASKS_READ, TASKS_WRITE), **columns: Any
    ) -> MintedKey:
        minted = mint_api_key(account_id, live=False)
        await self.write(
            tables.api_keys.insert().values(
                account_id=account_id,
                key_id=key_id,
                secret_sha256=minted.sha256,
                prefix=minted.prefix,
                name="a key",
                scopes=list(scopes),
                created_at=columns.pop("created_at", NOW),
                **columns,
            )
        )
        return minted

    async def add_task(self, task: Task) -> None:
        values = {name: getattr(task, name) for name in task.__struct_fields__}
        values["request"] = msgspec.to_builtins(task.request)
        values["state"] = msgspec.to_builtins(task.state)
        await self.write(tables.tasks.insert().values(**values))
        await self.add_usage(self.usage_of(task))

    def use_order_rules(self) -> OrderRules:
        """Let the accounts apply the rules of orders and write the rows."""
        rules = super().use_order_rules()
        rules.write = self.add_order
        return rules

    async def add_order(self, order: Order) -> None:
        """Write an order, replacing the one with its id."""
        state, request = order.state, order.request
        await self.write(tables.orders.delete().where(tables.orders.c.order_id == order.order_id))
        await self.write(
            tables.orders.insert().values(
                account_id=order.account_id,
                order_id=order.order_id,
                version=order.version,
                provider=request.provider,
                status=order.status,
                reconcile_status=order.statuses.reconcile_status,
                provider_payment_id=state.payment_id,
                provider_charge_id=state.charge_id,
                created_at=request.created_at,
                updated_at=order.updated_at,
                expires_at=request.expires_at,
                wake_at=order.wake_at,
                request=msgspec.to_builtins(request),
                state=msgspec.to_builtins(state),
            )
        )

    def usage_of(self, task: Task) -> UsageEntry:
        """Return the usage entry that is written with a task."""
        [cells] = USAGE_ENTRIES.rows([task])
        return UsageEntry(**dict(zip(USAGE_ENTRIES.columns, cells, strict=True)))

    async def add_usage(self, entry: UsageEntry) -> None:
        values = {name: getattr(entry, name) for name in entry.__struct_fields__}
        values["status_history"] = msgspec.to_builtins(entry.status_history)
        await self.write(tables.usage_entries.insert().values(**values))


async def render_metrics() -> bytes:
    return b"# counters\n"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Development settings that know nothing of the real environment."""
    return load_settings({"HOLDFAST_DATA_DIR": str(tmp_path), "HOLDFAST_ENV": "development"})


@pytest.fixture
def stage(settings: Settings, tmp_path: Path) -> Stage:
    """The API without a database: every read fails."""
    catalog = load_catalog(None)
    secrets = {"studio": ("studio-callback-secret",), None: ("common-callback-secret",)}
    accounts, sign_ins, tasks = FakeDirectory(), FakeDirectory(OriginAdmitted()), FakeDirectory()
    reports: list[Report] = []
    mailer, store = FakeMailer(), LocalStore(tmp_path / "files")
    reporter = Reporter()
    reporter.listen(reports.append)
    deps = Dependencies(
        settings=settings,
        database=NoRows(),
        accounts=accounts,
        sign_ins=sign_ins,
        tasks=tasks,
        catalog=lambda: catalog,
        asset_store=store,
        mailer=mailer,
        callback_secrets=lambda name: secrets.get(name, ()),
        sandbox_secrets=(SANDBOX_SECRET,),
        card=None,
        events=FakeEventCommands(),
        operators=FakeOperatorWrites(),
        order_repairs=FakeOrderRepairs(),
        report=reporter.report,
        reports=ReportFeed(reporter, FakeReportRows()),
        health=FakeHealth(),
        controls=FakeControls(),
        poison=FakePoison(),
        provider_checks=FakeProviderChecks(),
        metrics_text=render_metrics,
        urls=PublicUrls(
            base=PUBLIC_URL, link_key=settings.derived_key("asset links"), link_ttl_s=settings.asset_link_ttl_s
        ),
        now=lambda: NOW,
    )
    key = mint_api_key("acct_1", live=False)
    return Stage(create_app(deps), accounts, sign_ins, tasks, mailer, store, key, reports, reporter)


@pytest.fixture
async def api(stage: Stage, database: Database) -> Api:
    """The API on a real database, with fake actors."""
    rows = CountingRows(database)
    stage.change(database=rows, operators=OperatorRecords(database))
    api = Api(
        stage.app,
        stage.accounts,
        stage.sign_ins,
        stage.tasks,
        stage.mailer,
        stage.store,
        stage.key,
        stage.reports,
        stage.reporter,
        database=database,
        rows=rows,
    )
    await api.add_account(ACCOUNT, balance_micro=10_000_000, held_micro=240_000)
    await api.add_account(OTHER_ACCOUNT)
    await api.add_session(ACCOUNT, SESSION, TOKEN)
    api.key = await api.add_key(ACCOUNT, KEY)
    return api
