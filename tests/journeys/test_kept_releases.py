"""The database of each earlier release is migrated, correct, and worked on: record_release.py made it."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
import trio
from tests.clients import Customer, Totals, loopback_client, ok
from tests.fresh_databases import drop_tables

from holdfast.persistence.audit.audit import run_audit
from holdfast.persistence.server.connections import connected
from holdfast.persistence.server.embedded import EmbeddedPostgres
from holdfast.persistence.server.migrate import migrate
from holdfast.persistence.server.revisions import is_migrated

from .card_provider import CardProviderProcess
from .conftest import NewService
from .record_release import EDIT, RELEASES, SETTINGS, programs, write_catalog
from .scripted_provider import IMAGE, PICTURE, Script, ScriptedProvider, prediction
from .task_scenarios import TaskRun

KEEP_TIME = (
    "update service_clock set ahead_s = extract(epoch from service_at - clock_timestamp()), "
    "database_at = clock_timestamp()"
)
"""Service time goes on where it stopped, as if the database's clock had been set meanwhile."""
SERVE = """
import sys
from holdfast.__main__ import main
from holdfast.persistence.server.service_clock import ServiceClock
ServiceClock._refuse_differing = lambda *_: None
sys.argv = ["holdfast", "serve"]
main()
"""
"""The service without its check of the clocks, whose difference no setting allows after some months."""


@pytest.fixture(params=sorted(RELEASES.iterdir()), ids=lambda file: file.name.removesuffix(".tar.gz"))
def kept(request: pytest.FixtureRequest, postgres: EmbeddedPostgres, tmp_path: Path) -> Path:
    """What was kept of a release, whose database is that of ``postgres``."""
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    drop_tables(postgres.url)
    command = [str(programs(postgres) / "psql"), "--quiet", "--no-psqlrc", "--set=ON_ERROR_STOP=1", postgres.url]
    subprocess.run([*command, f"--file={tmp_path / 'ledger.sql'}"], check=True, stdout=subprocess.DEVNULL)
    return tmp_path


def test_the_database_is_migrated_and_audited(kept: Path, postgres: EmbeddedPostgres) -> None:
    migrate(postgres.url)
    assert is_migrated(postgres.url)
    with connected(postgres.url) as rows:
        assert run_audit(rows) == {}


@pytest.mark.slow
async def test_its_customers_work_on(
    kept: Path,
    postgres: EmbeddedPostgres,
    new_service: NewService,
    scripted: ScriptedProvider,
    card_provider: CardProviderProcess,
) -> None:
    facts: dict[str, Any] = json.loads((kept / "facts.json").read_text())
    with psycopg.connect(postgres.url) as rows:
        rows.execute(KEEP_TIME)
    catalog = str(write_catalog(scripted, kept))
    given = {"DATABASE_URL": postgres.url, "CATALOG": catalog, **SETTINGS}
    service = new_service(**given, **card_provider.settings())
    service.program = SERVE
    service.data_dir.mkdir(mode=0o700)
    shutil.copytree(kept / "assets", service.data_dir / "assets")
    for name, (task, _) in facts["tasks"].items():
        scripted.scenarios[f"{task}.1"], scripted.scripts[name] = name, Script(get=prediction("starting"))
    await trio.to_thread.run_sync(service.start)
    async with loopback_client(base_url=service.url, timeout=60) as http:
        ada = Customer(http, facts["account_id"], facts["session"], facts["api_key"], email=facts["email"])

        # What they had is there, by their credentials and links.
        runs = {
            name: TaskRun(name, service, scripted, ada, task, updates_sent=1)
            for name, (task, _) in facts["tasks"].items()
        }
        assert {name: (await ada.task(run.request_id))["status"] for name, run in runs.items()} == {
            name: status for name, (_, status) in facts["tasks"].items()
        }
        assert [str(each) for each in await ada.totals()] == facts["totals"]
        assert [each["operation_id"] for each in await ada.statement()] == facts["statement"]
        for order_id in facts["orders"].values():
            ok(await ada.as_session("GET", f"/v2/control/payments/{order_id}"))
        assert (await http.get(facts["output"])).content == PICTURE

        # A request that was answered is answered alike, and what was held is captured or released.
        name = "canceled later"
        body = {"model": IMAGE, "input": {"prompt": name}}
        again = ok(await ada.as_key("POST", "/v2/task/create", body, key=name))
        assert again["request_id"] == runs[name].request_id
        await runs["processing"].report_success(runs["processing"].file())
        await runs["processing"].wait_for("succeeded")
        ok(await runs["review"].decide_review("reject"))
        await runs["review"].wait_for("failed")
        for name in ("canceled later", "queued", "taken"):
            ok(await runs[name].cancel())
            await runs[name].wait_for("canceled")

        # New work by the old key, and by a new sign-in.
        new = TaskRun("new", service, scripted, ada)
        await new.create(EDIT)
        await new.start_processing()
        await new.report_success(new.file())
        await new.wait_for("succeeded")
        await ada.sign_in()
        assert ada.account_id == facts["account_id"]
        await ada.recharge("1.00")
        balance = Decimal(facts["totals"][0]) - 2 + 1
        assert await ada.totals() == Totals(balance, Decimal(0), balance)
    assert service.audit() == []
    assert await trio.to_thread.run_sync(service.stop) == 0
    assert service.faults() == []
