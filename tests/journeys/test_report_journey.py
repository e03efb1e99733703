"""Reports on a real service: an actor crashes and comes back, the service stops, and all of it can be read."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import trio
from tests.clients import ok
from tests.event_streams import StreamReader, reading

from .conftest import NewCustomer
from .service_process import OPERATOR_TOKEN, Service, new_folder, running_service

OPERATOR = {"Authorization": f"Bearer {OPERATOR_TOKEN}"}


@pytest.fixture
def service() -> Iterator[Service]:
    with running_service(new_folder(), OPERATOR_TOKEN=OPERATOR_TOKEN) as service:
        yield service


async def next_of(reader: StreamReader, kind: str, key: str) -> Any:
    """Return the next report of a kind about a key."""
    while True:
        event = await reader.next()
        assert event is not None
        if (event.fields["event"], event.data["key"]) == (kind, key):
            return event.data


def printed(service: Service, *words: str) -> list[dict[str, Any]]:
    """What ``holdfast reports`` prints."""
    command = [sys.executable, "-m", "holdfast", "reports", "--format", "json", *words]
    done = subprocess.run(command, env=service.environment, capture_output=True, check=True)
    assert done.stderr == b""
    return [msgspec.json.decode(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
async def test_a_crash_and_a_stop_are_streamed_stored_and_printed(
    service: Service, new_customer: NewCustomer
) -> None:
    ada = await new_customer(service, credit="10.00")
    account = ok(await ada.as_session("GET", "/v2/control/account"))["account_id"]
    path = f"/ops/api/actors/accounts/{account}/crash"
    ends: list[bool] = []

    async def read_to_the_end(reader: StreamReader) -> None:
        while await reader.next() is not None:
            pass
        ends.append(reader.is_complete)

    async with reading(service.url, OPERATOR_TOKEN) as reader, trio.open_nursery() as nursery:
        ok(await ada.http.post(path, json={"reason": "to see it come back"}, headers=OPERATOR))
        crash = await next_of(reader, "crash", account)
        await ada.recharge("1.00")
        restart = await next_of(reader, "restart", account)
        assert (crash["level"], restart["level"]) == ("warning", "info")
        assert crash["member_id"] == restart["member_id"]
        assert crash["number"] < restart["number"]
        nursery.start_soon(read_to_the_end, reader)
        assert service.process is not None
        service.process.send_signal(signal.SIGTERM)
        with trio.fail_after(240):
            assert await trio.to_thread.run_sync(service.process.wait) == 0
    assert ends == [True]

    of_account = await trio.to_thread.run_sync(printed, service, "--key", account)
    assert [each["kind"] for each in of_account if each["kind"] != "action"] == ["crash", "restart"]
    assert [each["report_id"] for each in of_account][-1] == restart["report_id"]
    last = (await trio.to_thread.run_sync(printed, service, "--limit", "1"))[0]
    # Reported when the tree had ended, and stored nevertheless.
    assert (last["kind"], last["path"]) == ("drain", "holdfast")
    numbers = [each["number"] for each in await trio.to_thread.run_sync(printed, service, "--level", "debug")]
    # None is missing. They are printed by time, which the first look at the database's clock may set back.
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    assert OPERATOR_TOKEN not in str(of_account)
