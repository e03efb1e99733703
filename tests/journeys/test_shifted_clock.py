"""A process whose wall clock is two hours wrong, on a database whose clock is right: customers notice nothing."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
import trio
from tests.clients import ok

from .conftest import NewCustomer, NewService

SHIFTED = """
import time
from datetime import timedelta

try:
    from holdfast.ledger import values

    _utc_now, _time = values.utc_now, time.time
    values.utc_now = lambda: _utc_now() + timedelta(seconds={shift_s})
    time.time = lambda: _time() + {shift_s}

    from holdfast.persistence.server.service_clock import ServiceClock

    ServiceClock.__init__.__kwdefaults__["wall"] = values.utc_now
except Exception as fault:
    # Of any other exception the interpreter would only print a line, and go on by the right clock.
    raise SystemExit(repr(fault)) from fault
"""
"""Loaded by the interpreter before the service's other modules; the database's clock is not in this process."""


TIMES = (
    ("orders", "created_at"),
    ("sessions", "created_at"),
    ("api_keys", "created_at"),
    ("operations", "at"),
    ("tasks", "created_at"),
    ("idempotency_records", "created_at"),
    ("sign_ins", "updated_at"),
    ("processes", "lease_until"),
)
"""Times that the service has written, which any process compares."""


@pytest.mark.parametrize("shift_s", [-7200, 7200])
@pytest.mark.slow
async def test_a_wrong_wall_clock_expires_nothing(
    new_service: NewService, new_customer: NewCustomer, tmp_path: Path, shift_s: int
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SHIFTED.format(shift_s=shift_s))
    service = new_service(CLOCK_OFF_MAX_S="10000")
    search = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    service.environment["PYTHONPATH"] = os.pathsep.join(search)
    await trio.to_thread.run_sync(service.start)
    with trio.fail_after(240):
        # Sign-in codes and sessions.
        ada = await new_customer(service)
        # Payment orders.
        order = {"amount": "5.00", "currency": "USD"}
        created = ok(await ada.as_session("POST", "/v2/control/payments/sandbox", order, key="buy"))
        callback = created["callback"]
        header = {callback["signature_header"]: callback["signature"]}
        paid = ok(await ada.http.post(callback["url"], json=callback["payload"], headers=header))
        assert paid["status"] == "credited"
        # Quotes, idempotency keys, due times, and signed links.
        wanted = {"model": "studio/image-1", "input": {"prompt": "a pier", "width": 256, "height": 256}}
        quote = ok(await ada.as_key("POST", "/v2/quote", wanted))
        quoted = {**wanted, "quote_id": quote["quote_id"]}
        task = ok(await ada.as_key("POST", "/v2/task/create", quoted, key="one"))
        again = ok(
            await ada.as_key("POST", "/v2/task/create", {**wanted, "quote_id": quote["quote_id"]}, key="one")
        )
        assert again["request_id"] == task["request_id"]
        ended = (await ada.all_ended())[task["request_id"]]
        assert ended["status"] == "succeeded"
        assert (await ada.http.get(ended["output"][0]["url"])).status_code == 200
    now = datetime.now(UTC)
    with psycopg.connect(service.database_url) as rows:
        for table, column in TIMES:
            found = rows.execute(f"select max({column}) from {table}").fetchone()
            assert found is not None
            assert found[0] is not None, table
            assert abs((now - found[0]).total_seconds()) < 3000, (table, column)
    assert service.audit() == []
    assert await trio.to_thread.run_sync(service.stop) == 0


@pytest.mark.parametrize("processes", ["0", "1"])
@pytest.mark.slow
def test_a_start_by_a_wrong_clock_is_refused(new_service: NewService, tmp_path: Path, processes: str) -> None:
    """Unless it is allowed by the setting's name, as above."""
    (tmp_path / "sitecustomize.py").write_text(SHIFTED.format(shift_s=7200))
    service = new_service(**({} if processes == "0" else {"PROCESSES": processes}))
    search = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    service.environment["PYTHONPATH"] = os.pathsep.join(search)
    service._launch()
    assert service.process is not None
    assert service.process.wait(120) == 1
    refused = [line["reason"] for line in service.log_lines() if line["event"] == "the tree gave up"]
    assert refused
    assert all("more than HOLDFAST_CLOCK_OFF_MAX_S=3600 apart" in reason for reason in refused)
