"""The API in this process, with fake dependencies."""

from __future__ import annotations

import functools
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields, replace
from datetime import datetime
from http.cookiejar import DefaultCookiePolicy
from typing import Any, cast

import httpx2
import msgspec
import trio
from tests.clients import Caller
from tests.made_requests import make_request

from holdfast.http.app import HoldfastApp
from holdfast.http.kit.credentials import KnownKey, MintedKey
from holdfast.http.kit.dependencies import Access, Dependencies, Payments
from holdfast.http.kit.operating import Operating
from holdfast.http.kit.responses import server_response
from holdfast.http.kit.sending import Sending
from holdfast.http.kit.upload_shares import Storage
from holdfast.http.kit.waiting_calls import Following
from holdfast.http.server.connection import AsgiApp
from holdfast.http.server.connections import Connections
from holdfast.http.server.limits import ServerLimits
from holdfast.http.server.listener import Listener
from holdfast.ledger.api_keys import SCOPES
from holdfast.ledger.catalog.catalog import load_catalog
from holdfast.ledger.catalog.models import Catalog
from holdfast.ledger.catalog.pricing import quote_input
from holdfast.ledger.orders.order import Order
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.task import Task, accept_task
from holdfast.persistence.server.lookups import GroupedLookups
from holdfast.providers.card.base import CardPayments
from holdfast.providers.media.kinds import kind_rules
from holdfast.providers.storage.local import LocalStore
from holdfast.telemetry.reports.report import Report
from holdfast.telemetry.reports.reporter import Reporter

from .fake_actors import FakeDirectory
from .fake_parts import FakeMailer, FakeRegistry
from .identities import ACCOUNT, CARD_SECRET, KEY, NOW, OTHER_ACCOUNT, PUBLIC_URL, SESSION, TOKEN
from .order_stand_ins import FakeCard, FakeUnmatchedEvents, OrderRules, make_order

GROUPS = (Access, Following, Operating, Payments, Sending, Storage)
"""The groups of dependencies; no two have a field of the same name."""


@functools.cache
def default_catalog() -> Catalog:
    """Return the catalog that is shipped."""
    return load_catalog(None, kind_rules())


def make_task(
    request_id: str = "task_" + "1" * 32, *, account_id: str = ACCOUNT, at: datetime = NOW, **fields: Any
) -> Task:
    """A task as it is first written; ``fields`` replace the row's own."""
    priced = quote_input(default_catalog(), "studio/image-1", {"prompt": "a lighthouse at dusk"})
    assert not isinstance(priced, Refusal)
    task = accept_task(
        account_id,
        request_id,
        make_request(
            priced.terms,
            input=priced.input,
            quote_id="quo_" + "1" * 32,
            api_key_id=KEY,
            hold_id="hold_" + request_id[5:],
        ),
        at,
    )
    return msgspec.structs.replace(task, **fields)


class Whole(httpx2.AsyncByteStream):
    """A body in one part. An application may leave it unread."""

    def __init__(self, content: bytes) -> None:
        self._parts = [content]

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if not self._parts:
            raise StopAsyncIteration
        return self._parts.pop()


class InProcess(httpx2.ASGITransport):
    """Requests to an application in this process, from the address that ``extensions`` name as ``client``."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.client = cast(Any, request.extensions.get("client"))
        if "Content-Length" in request.headers:
            request.stream = Whole(await request.aread())
        with trio.fail_after(60):
            return await super().handle_async_request(request)


def in_process(app: HoldfastApp) -> httpx2.AsyncClient:
    """Return a client of an application in this process, which keeps no cookies and asks for no compression."""
    http = httpx2.AsyncClient(
        transport=InProcess(cast(Any, app)), base_url="http://localhost", headers={"Accept-Encoding": "identity"}
    )
    http.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=()))
    return http


@dataclass(kw_only=True)
class Stage(Caller):
    """A customer of the API in this process, whose dependencies are fakes."""

    app: HoldfastApp
    accounts: FakeDirectory
    sign_ins: FakeDirectory
    tasks: FakeDirectory
    mailer: FakeMailer
    store: LocalStore
    minted: MintedKey
    reports: list[Report]
    reporter: Reporter
    now: datetime = NOW
    account_id: str = ACCOUNT
    other_account_id: str = OTHER_ACCOUNT
    session_id: str = SESSION
    session: str = TOKEN
    key_id: str = KEY
    public_url: str = PUBLIC_URL

    @property
    def deps(self) -> Dependencies:
        return self.app.deps

    def change(self, **parts: Any) -> None:
        """Replace dependencies, in whichever group they are; the lookups read the database."""
        deps = self.app.deps
        if "database" in parts:
            for name in ("lookups", "stream_lookups"):
                parts.setdefault(name, GroupedLookups(parts["database"].read))
        for name, group in [(each.name, getattr(deps, each.name)) for each in fields(deps)]:
            if isinstance(group, GROUPS):
                own = {each.name: parts.pop(each.name) for each in fields(group) if each.name in parts}
                parts[name] = replace(group, **own)
        self.app.deps = replace(deps, **parts)

    def sell(self, catalog: Catalog, *past: Catalog) -> None:
        """Let a catalog be the current one, and earlier ones be known."""
        known = {each.version: each for each in (catalog, *past)}
        self.change(registry=replace(cast(FakeRegistry, self.deps.registry), catalog=catalog, past=known))

    def sign_callbacks(self, secrets: Mapping[str | None, Sequence[str]]) -> None:
        """Let these be the secrets of the providers."""
        self.change(registry=replace(cast(FakeRegistry, self.deps.registry), secrets=secrets))

    def configure(self, **values: Any) -> None:
        """Replace settings."""
        self.change(settings=msgspec.structs.replace(self.deps.settings, **values))

    def know_key(self) -> None:
        """Let the key cache know the key, as if it had been used before."""
        self.deps.access.key_cache.put(self.minted.sha256, KnownKey(ACCOUNT, KEY, frozenset(SCOPES)))

    task = staticmethod(make_task)

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
        )
        self.change(card=replace(card_payments, **parts), unmatched_events=unmatched)
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

        def end_waits() -> None:
            self.deps.operating.reports.end_readers()
            self.deps.following.changes.end()

        connections = Connections(
            ServerLimits(**{"finish_requests_s": 1.0, **limits}),
            on_stop=end_waits,
            refuse=functools.partial(server_response, self.deps.operating.refused),
        )
        with socket.create_server(("127.0.0.1", 0)) as listening:
            listener = Listener(listening, cast(AsgiApp, self.app), lambda: connections)
            async with trio.open_nursery() as nursery:
                await nursery.start(connections.run)
                await nursery.start(listener.run)
                yield f"http://127.0.0.1:{listening.getsockname()[1]}"
                await listener.stop()
                await connections.stop()
