"""What one account can have stored at no charge is bounded: keys, secrets of webhooks, inputs of ended tasks."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
import trio
from tests.clients import Customer, code_of, ok, until
from tests.sweepers import sweeper_of

from holdfast.ledger.tasks.inputs import INPUT_SMALL_BYTES_MAX
from holdfast.ledger.tasks.webhook_secrets import SIGNING_MAX_COUNT
from holdfast.persistence.claims.expired import REVOKED_KEYS_MAX
from holdfast.persistence.queries.credentials import api_keys_of_account
from holdfast.persistence.records.tables import api_keys
from holdfast.persistence.server.connections import connected
from holdfast.persistence.server.database import Database

from .conftest import NewCustomer, NewService
from .quiet_provider import MODEL, QuietProvider, signed
from .service_process import Service

RETENTION_S = 30 * 24 * 3600
LARGE = "x" * 300_000


async def test_the_newest_revoked_keys_are_retained_under_hourly_rotation(
    shared_service: Service, new_customer: NewCustomer
) -> None:
    customer = await new_customer(shared_service)

    async def create() -> int:
        return (await customer.as_session("POST", "/v2/control/api-keys", {})).status_code

    def revoked(number: int, at: datetime) -> dict[str, object]:
        known = {
            "account_id": customer.account_id,
            "prefix": "hk_test_0000",
            "name": "old",
            "scopes": ["tasks:read"],
            "is_paused": False,
            "models": [],
            "window_start": now,
            "captured_micro": 0,
        }
        secret = f"{customer.account_id} {number}".encode()
        return {**known, "key_id": f"key_{number}", "secret_sha256": secret, "created_at": at, "revoked_at": at}

    now = datetime.now(UTC)
    with connected(shared_service.database_url) as rows, rows.begin():
        # A key for each hour of its retention.
        hours = RETENTION_S // 3600
        rows.execute(api_keys.insert(), [revoked(number, now - timedelta(hours=number)) for number in range(hours)])
    refused = await customer.as_session("POST", "/v2/control/api-keys", {})
    assert (refused.status_code, code_of(refused)) == (409, "api_key_limit_reached")
    database = Database(shared_service.database_url)
    await database.open()

    async def sweep(retention_s: int) -> int:
        return (await sweeper_of(database, revoked_keys_retention_s=retention_s).sweep())["api_keys"]

    assert await sweep(RETENTION_S) == hours - REVOKED_KEYS_MAX
    assert await sweep(RETENTION_S) == 0
    half = REVOKED_KEYS_MAX // 2
    assert await sweep(half * 3600) == half
    database.close()
    assert await create() == 200
    with connected(shared_service.database_url) as rows:
        kept = {key.key_id for key in api_keys_of_account(rows, customer.account_id) if key.revoked_at is not None}
    assert kept == {f"key_{number}" for number in range(half)}


async def test_no_more_secrets_are_rotated_to_than_sign(shared_service: Service, new_customer: NewCustomer) -> None:
    customer = await new_customer(shared_service)
    path = "/v2/control/webhook-secret/rotate"
    for _ in range(SIGNING_MAX_COUNT - 1):
        ok(await customer.as_session("POST", path))
    refused = await customer.as_session("POST", path)
    assert (refused.status_code, code_of(refused)) == (429, "rate_limit_exceeded")


async def test_large_inputs_of_canceled_tasks_are_deleted(
    quiet_service: Service, new_customer: NewCustomer
) -> None:
    with trio.fail_after(240):
        ada = await new_customer(quiet_service, credit="100.00")
        created = [ok(await ada.create(MODEL, prompt=LARGE))["request_id"] for _ in range(5)]
        small = ok(await ada.create(MODEL))["request_id"]
        for request_id in (*created, small):
            ok(await ada.as_key("POST", f"/v2/task/{request_id}/cancel"))
        with psycopg.connect(quiet_service.database_url) as connection:
            stored = connection.execute(
                "select sum(octet_length(cast(request as text))) from tasks where account_id = %s",
                (ada.account_id,),
            ).fetchone()
        assert stored is not None
        assert stored[0] < 20_000
        assert code_of(await ada.as_key("POST", f"/v2/task/{created[0]}/retry")) == "task_input_expired"
        ok(await ada.as_key("POST", f"/v2/task/{small}/retry"))
    assert quiet_service.audit() == []


@pytest.fixture
def small_store(new_service: NewService, provider: QuietProvider, tmp_path: Path) -> Service:
    """A service that stores one large input of failed tasks for each account."""
    most = str(INPUT_SMALL_BYTES_MAX // 2)
    service = new_service(CATALOG=str(provider.write_catalog(tmp_path)), STORED_INPUT_BYTES_MAX=most)
    service.start()
    return service


async def end(customer: Customer, provider: QuietProvider, request_id: str, status: str) -> None:
    """Let the provider succeed or fail with a task, and wait for its end."""

    async def submitted() -> bool | None:
        return any(request_id in job for job in provider.jobs) or None

    await until(submitted)
    error = {"code": "out_of_memory", "message": "no"}
    event_id = f"evt_{request_id}"
    if status == "succeeded":
        body = provider.success(request_id, event_id=event_id, sequence=1)
    else:
        body = provider.callback_body(request_id, status, event_id=event_id, sequence=1, error=error)
    ok(await customer.http.post("/v2/callback", content=body, headers=signed(body)))

    async def ended() -> bool | None:
        return (await customer.task(request_id))["status"] == status or None

    await until(ended)


async def test_large_inputs_of_failed_tasks_have_a_quota(
    small_store: Service, new_customer: NewCustomer, provider: QuietProvider
) -> None:
    customer = await new_customer(small_store, credit="10.00")
    # Random, as a picture is: what is repeated takes no room in the database.
    picture = {"prompt": random.Random(7).randbytes(INPUT_SMALL_BYTES_MAX).hex()}
    order = {"model": MODEL, "input": picture}
    paid = ok(await customer.as_key("POST", "/v2/task/create", order))["request_id"]
    await end(customer, provider, paid, "succeeded")
    first = ok(await customer.as_key("POST", "/v2/task/create", order, key="first"))["request_id"]
    await end(customer, provider, first, "failed")
    for path, body in (("/v2/task/create", order), (f"/v2/task/{first}/retry", None)):
        refused = await customer.as_key("POST", path, body)
        assert (refused.status_code, code_of(refused)) == (429, "stored_input_limit_reached")
        assert int(refused.headers["Retry-After"]) > 0
    # A repeat is answered as before, and small inputs and other accounts are served.
    assert ok(await customer.as_key("POST", "/v2/task/create", order, key="first"))["request_id"] == first
    ok(await customer.as_key("POST", "/v2/task/create", {"model": MODEL, "input": {"prompt": "a cat"}}))
    other = await new_customer(small_store, credit="10.00")
    ok(await other.as_key("POST", "/v2/task/create", order))
