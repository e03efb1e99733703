"""The HTTP API with fake actors, with or without a database."""

from __future__ import annotations

import copy
import functools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import msgspec
import pytest

from holdfast.actors.sign_in.messages import OriginAdmitted
from holdfast.http.app import SERVED, HoldfastApp
from holdfast.http.kit.credentials import mint_api_key
from holdfast.http.kit.dependencies import Access, Dependencies, Payments
from holdfast.http.kit.operating import Operating
from holdfast.http.kit.sending import Sending
from holdfast.http.kit.upload_shares import Storage
from holdfast.http.kit.waiting_calls import Following, WaitingCalls
from holdfast.ledger.links import PublicUrls
from holdfast.persistence.claims.contents import ContentClaims
from holdfast.persistence.journal.changes import Changes
from holdfast.persistence.operators.overrides import Overrides, find_overrides
from holdfast.persistence.server.connections import KeptConnection
from holdfast.persistence.server.database import Database
from holdfast.persistence.server.lookups import GroupedLookups
from holdfast.providers.storage.local import LocalStore
from holdfast.settings.settings import Settings, load_settings
from holdfast.telemetry.refused_requests import RefusedRequests
from holdfast.telemetry.reports.conditions import Conditions
from holdfast.telemetry.reports.feed import ReportFeed
from holdfast.telemetry.reports.report import Report
from holdfast.telemetry.reports.reporter import Reporter

from .api import Api
from .cell_stages import two_cells
from .fake_actors import FakeDirectory
from .fake_parts import (
    READY,
    FakeControls,
    FakeEventCommands,
    FakeMailer,
    FakePoison,
    FakeProviderChecks,
    FakeRegistry,
    no_connection,
    write_no_record,
)
from .fake_rows import CountingRows, FakeReportRows, NoRows
from .identities import ACCOUNT, KEY, NOW, OTHER_ACCOUNT, PUBLIC_URL, SANDBOX_SECRET, SESSION, TOKEN
from .order_stand_ins import FakeOrderChecks, FakeUnmatchedEvents
from .page_reader import SAME_ORIGIN, PageReader
from .stage import Stage, default_catalog, in_process


@functools.cache
def _app() -> HoldfastApp:
    """Return an application to copy: adding its routes takes longer than most tests."""
    return HoldfastApp(cast(Dependencies, None), SERVED)


async def render_metrics() -> bytes:
    return b"# counters\n"


@pytest.fixture(scope="session")
def development_settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Development settings that know nothing of the real environment."""
    return load_settings(
        {
            "HOLDFAST_DATA_DIR": str(tmp_path_factory.mktemp("data")),
            "HOLDFAST_ENV": "development",
            "HOLDFAST_SANDBOX_SECRET": SANDBOX_SECRET,
        }
    )


@pytest.fixture
def settings(development_settings: Settings, tmp_path: Path) -> Settings:
    """The same with a folder of the test: reading them takes longer than many tests."""
    return msgspec.structs.replace(development_settings, data_dir=tmp_path)


@pytest.fixture
def stage(settings: Settings, tmp_path: Path) -> Stage:
    """The API without a database: every read fails."""
    accounts, sign_ins, tasks = FakeDirectory(), FakeDirectory(OriginAdmitted()), FakeDirectory()
    reports: list[Report] = []
    mailer, store = FakeMailer(), LocalStore(tmp_path / "files")
    reporter = Reporter()
    reporter.listen(reports.append)
    access = Access(lookups=GroupedLookups(NoRows().read))
    deps = Dependencies(
        settings=settings,
        database=NoRows(),
        accounts=accounts,
        sign_ins=sign_ins,
        tasks=tasks,
        registry=FakeRegistry(
            default_catalog(), {"studio": ("studio-callback-secret",), None: ("common-callback-secret",)}
        ),
        write_record=write_no_record,
        urls=PublicUrls(
            base=PUBLIC_URL, link_keys=settings.derived_keys("asset links"), link_ttl_s=settings.asset_link_ttl_s
        ),
        now=lambda: NOW,
        wall=lambda: NOW,
        conditions=Conditions(Reporter()),
        access=access,
        following=Following(
            changes=Changes(),
            waiting=WaitingCalls(per_account_max=500, all_max=2048),
            stream_lookups=GroupedLookups(NoRows().read),
        ),
        sending=Sending(mailer=mailer, events=FakeEventCommands()),
        storage=Storage(store=store, claims=ContentClaims(KeptConnection(no_connection))),
        payments=Payments(card=None, unmatched_events=FakeUnmatchedEvents(), order_checks=FakeOrderChecks()),
        operating=Operating(
            report=reporter.report,
            reports=ReportFeed(reporter, FakeReportRows()),
            refused=RefusedRequests(Conditions(Reporter())),
            overrides=Overrides(NoRows().overrides, lambda: NOW),
            readiness=lambda: READY,
            metrics_text=render_metrics,
            controls=FakeControls(end_session=lambda mac: access.seen_sessions.end(mac, NOW)),
            poison=FakePoison(),
            provider_checks=FakeProviderChecks(),
        ),
    )
    minted = mint_api_key("acct_1", live=False)
    app = copy.copy(_app())
    app.deps = deps
    return Stage(
        http=in_process(app),
        key=minted.secret,
        app=app,
        accounts=accounts,
        sign_ins=sign_ins,
        tasks=tasks,
        mailer=mailer,
        store=store,
        minted=minted,
        reports=reports,
        reporter=reporter,
    )


@pytest.fixture
async def api(stage: Stage, database: Database) -> Api:
    """The API on a real database, with fake actors."""
    rows = CountingRows(database)
    claims = ContentClaims(database.keep_writer())
    overrides = Overrides(lambda: database.look(find_overrides), lambda: NOW)
    stage.change(database=rows, write_record=database.record, claims=claims, overrides=overrides)
    api = Api(**vars(stage), database=database, rows=rows)
    await api.add_account(ACCOUNT, balance_micro=10_000_000, held_micro=240_000)
    await api.add_account(OTHER_ACCOUNT)
    await api.add_session(ACCOUNT, SESSION, TOKEN)
    api.minted = await api.add_key(ACCOUNT, KEY)
    api.key = api.minted.secret
    return api


@pytest.fixture
async def browser(api: Api) -> PageReader:
    """The browser of an operator who has signed in."""
    browser = PageReader(api, SAME_ORIGIN)
    await browser.sign_in()
    return browser


@pytest.fixture
async def two(stage: Stage) -> AsyncIterator[tuple[Stage, Stage]]:
    """Two cells, which reach each other by HTTP."""
    async with two_cells(stage) as found:
        yield found
