"""Record the database of this release with every kind of row: ``python -m tests.journeys.record_release``.

A service runs what customers and operators do, and is stopped with tasks in every status. The archive
``releases/VERSION.tar.gz`` has ``ledger.sql``, a dump of the database; ``assets``, the stored results; and
``facts.json``, what their owner knows. The record of a release is made with it and never changed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import psycopg
import trio
from tests.clients import Customer, code_of, loopback_client, ok

from holdfast import __version__
from holdfast.persistence.records.tables import metadata
from holdfast.persistence.server.embedded import EmbeddedPostgres
from holdfast.persistence.server.server_folders import _binaries, cluster_folder

from .card_provider import CardProviderProcess, Payer, run_card_provider, save_card
from .conftest import running_postgres
from .receiver import Receiver, receiver
from .scripted_provider import IMAGE, NARROW, PICTURE, Script, ScriptedProvider, prediction, scripted_provider
from .service_process import OPERATOR_TOKEN, SERVER_KEY, Service, new_folder, running_service
from .task_scenarios import TaskRun

RELEASES = Path(__file__).with_name("releases")
SETTINGS = {"SERVER_KEY": SERVER_KEY, "OPERATOR_TOKEN": OPERATOR_TOKEN}
EMPTY = {"audit_differences", "check_callbacks", "poison_messages", "silent_receivers"}
"""The tables that only have rows while something is wrong, or a provider is checked."""
EDIT = "hand/edit"
EDIT_MODEL = f"""
[[models]]
id = "{EDIT}"
upstream = {{ provider = "scripted" }}
[models.input_schema]
type = "object"
[models.input_schema.properties]
prompt = {{ type = "string" }}
image = {{ type = "string", format = "uri" }}
n = {{ type = "integer", minimum = 1, maximum = 4, default = 1 }}
"""


def write_catalog(provider: ScriptedProvider, folder: Path) -> Path:
    """Write the scripted provider's catalog, and a model that takes files."""
    catalog = provider.write_catalog(folder)
    with catalog.open("a") as file:
        file.write(EDIT_MODEL)
    return catalog


class Recorder:
    """A customer with tasks, and the operator."""

    def __init__(self, service: Service, provider: ScriptedProvider, customer: Customer) -> None:
        self.service, self.provider, self.customer = service, provider, customer
        self.tasks: dict[str, str] = {}

    async def create(self, name: str, model: str = IMAGE, image: str | None = None, **more: object) -> TaskRun:
        """Create a task, with its name as prompt and Idempotency-Key."""
        # Polls change nothing, however long the record takes.
        self.provider.scripts[name] = Script(get=prediction("starting"))
        given = {"prompt": name} if image is None else {"prompt": name, "image": image}
        run = TaskRun(name, self.service, self.provider, self.customer)
        body = {"model": model, "input": given, **more}
        run.request_id = ok(await self.customer.as_key("POST", "/v2/task/create", body, key=name))["request_id"]
        self.tasks[name] = run.request_id
        return run

    async def operate(self, path: str, **body: object) -> dict[str, Any]:
        """Act as the operator."""
        heads = {"Authorization": f"Bearer {OPERATOR_TOKEN}", "Idempotency-Key": path}
        body = {"reason": "a record", **body}
        return ok(await self.customer.http.post(f"/ops/api/{path}", json=body, headers=heads))


async def lived(
    service: Service, provider: ScriptedProvider, card_provider: CardProviderProcess, hook: Receiver
) -> dict[str, Any]:
    """Do everything that leaves rows, and return what the customer knows afterwards."""
    async with loopback_client(base_url=service.url, timeout=60) as http:
        ada, eve = Customer(http, email="ada@example.com"), Customer(http, email="eve@example.com")
        await ada.sign_in()
        await eve.sign_in()
        await ada.recharge("20.00", key="first")
        recorder = Recorder(service, provider, ada)

        async def control(method: str, path: str, body: object = None) -> dict[str, Any]:
            return ok(await ada.as_session(method, f"/v2/control/{path}", body))

        # Keys, limits, alerts and webhooks.
        for body in ({"name": "limited", "limit": {"credits": "9.00", "window": "month"}}, {"name": "revoked"}):
            made = await control("POST", "api-keys", body)
        await control("DELETE", f"api-keys/{made['api_key_id']}")
        await control("PUT", "limits", {"limits": [{"credits": "900.00", "window": "month"}]})
        await control("PUT", "alerts", {"balance_below": "1.00"})
        await control("POST", "webhook-secret/rotate")
        webhook = await control("POST", "webhooks", {"url": f"{hook.url}/account", "events": ["*"]})
        await control("POST", f"webhooks/{webhook['webhook_id']}/test")

        # What operators give and take.
        await recorder.operate(f"accounts/{ada.account_id}/adjustments", amount="-1.00")
        await recorder.operate(f"accounts/{ada.account_id}/ceilings", window="total", credits="500.00")
        await recorder.operate(
            f"accounts/{ada.account_id}/grants", amount="2.00", expires_at="2099-01-01T00:00:00.000Z"
        )
        ok(await http.post("/ops/api/session", json={"token": OPERATOR_TOKEN}))
        coupon = await recorder.operate("coupons", amount="3.00")
        await control("POST", "coupons/redeem", {"code": coupon["code"]})
        assert code_of(await ada.as_session("POST", "/v2/control/coupons/redeem", {"code": "WRONG"}))
        await recorder.operate(f"coupons/{coupon['coupon_id']}/end")
        await recorder.operate(f"accounts/{eve.account_id}/disable")

        # Payments: paid, refunded in part, disputed, unpaid; a saved card for top-ups.
        payer = Payer(ada, card_provider)
        orders = {name: await payer.paid_order() for name in ("paid", "refunded", "disputed")}
        await recorder.operate(f"payments/{orders['refunded']['order_id']}/refund", amount="4.00")
        await payer.wait_for(orders["refunded"]["order_id"], reversal_status="partially_refunded")
        charge = await card_provider.charge_of(orders["disputed"]["provider_payment_id"])
        await card_provider.act("charges", charge, "dispute")
        await payer.wait_for(orders["disputed"]["order_id"], risk_status="disputed")
        orders["unpaid"] = await payer.order()
        await control("POST", "payments/sandbox", {"amount": "5.00"})
        await save_card(ada, card_provider)
        top_up = {"below": "5.00", "amount": "10.00", "max_per_day": 2, "max_per_month": 3, "enabled": True}
        await control("PUT", "auto-top-up", top_up)

        # Tasks in every status, one with a file, and events that are delivered or wait for their receiver.
        uploaded = ok(await ada.as_key("POST", "/v2/files", files={"file": ("lighthouse.png", PICTURE)}))
        wanted = {"webhook_url": f"{hook.url}/task", "metadata": {"end_user": "ann"}}
        done = await recorder.create("succeeded", EDIT, uploaded["file_id"], **wanted)
        await done.start_processing()
        await done.report_success(done.file())
        output = (await done.wait_for("succeeded"))["output"][0]
        failed = await recorder.create("failed")
        await failed.start_processing()
        await failed.send_update("failed", error="no such picture")
        await failed.wait_for("failed")
        failing = hook.will_answer("/failing", *[500] * 100)
        canceled = await recorder.create("canceled", webhook_url=failing)
        await canceled.start_processing()
        ok(await canceled.cancel())
        await canceled.wait_for("canceled")
        review = await recorder.create("review")
        await review.start_processing()
        await review.report_success(review.file(), moderation={"flagged": True})
        await review.wait_for("review")
        await (await recorder.create("processing", EDIT, uploaded["file_id"])).start_processing()
        await (await recorder.create("canceled later")).start_processing()
        # The provider takes one job at a time.
        await (await recorder.create("taken", NARROW)).wait_submitted()
        await recorder.create("queued", NARROW)
        await hook.wait("/task", 1, "task.assets_ready")
        await hook.wait("/failing", 1)
        return {
            "email": ada.email,
            "account_id": ada.account_id,
            "session": ada.session,
            "api_key": ada.key,
            "totals": [str(each) for each in await ada.totals()],
            "statement": [each["operation_id"] for each in await ada.statement()],
            "tasks": {name: [task, (await ada.task(task))["status"]] for name, task in recorder.tasks.items()},
            "orders": {name: order["order_id"] for name, order in orders.items()},
            "output": output["url"].removeprefix(service.url),
            "webhook_id": webhook["webhook_id"],
        }


def tables_without_rows(rows: psycopg.Connection) -> set[str]:
    """Return the names of the empty tables."""
    return {name for name in metadata.tables if rows.execute(f"select from {name} limit 1").fetchone() is None}


def programs(postgres: EmbeddedPostgres) -> Path:
    """Return the folder with psql and pg_dump of a server's version."""
    return _binaries(cluster_folder(postgres.data_dir))


def main() -> None:
    """Record, and write the archive."""
    folder = new_folder()
    with running_postgres() as postgres:
        with scripted_provider() as provider, run_card_provider() as card_provider, receiver() as hook:
            catalog = write_catalog(provider, folder)
            given = {"DATABASE_URL": postgres.url, "CATALOG": str(catalog), **SETTINGS}
            with running_service(folder, **given, **card_provider.settings()) as service:
                card_provider.serve(service)
                facts = trio.run(lived, service, provider, card_provider, hook)
                assert service.audit() == []
                subprocess.run(
                    [sys.executable, "-m", "holdfast", "audit", "--checkpoint"], env=service.environment, check=True
                )
                with psycopg.connect(postgres.url, autocommit=True) as rows:
                    while missing := tables_without_rows(rows) - EMPTY:
                        sys.stdout.write(f"waiting for rows of {', '.join(sorted(missing))}\n")
                        time.sleep(5)
                kept = shutil.copytree(service.data_dir / "assets", new_folder() / "assets")
        ledger, known = (kept.parent / name for name in ("ledger.sql", "facts.json"))
        command = [
            str(programs(postgres) / "pg_dump"),
            "--no-owner",
            f"--file={ledger}",
            f"--dbname={postgres.url}",
        ]
        subprocess.run(command, check=True)
        known.write_text(json.dumps(facts, indent=1))
        with tarfile.open(RELEASES / f"{__version__}.tar.gz", "w:gz") as archive:
            for part in (ledger, known, kept):
                archive.add(part, part.name)
    shutil.rmtree(kept.parent)


if __name__ == "__main__":
    main()
