"""The log's reader stops reading: the service goes on, and stops in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import trio
from tests.clients import Customer, loopback_client, until

from .conftest import NewService
from .service_process import STOP_S, Service

PIPE_BYTES = 65_536
LINE_BYTES_MIN = 150


def start(service: Service, writing: int) -> subprocess.Popen[bytes]:
    """Start a service whose log goes to the descriptor ``writing``."""
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast", "serve"],
        env=service.environment,
        stdin=subprocess.DEVNULL,
        stdout=writing,
        stderr=writing,
        start_new_session=True,
    )


@pytest.mark.slow
async def test_a_service_whose_log_is_not_read_serves_and_stops(new_service: NewService) -> None:
    service = new_service()
    reading, writing = os.pipe()
    process = start(service, writing)
    service.process = process
    os.close(writing)
    seen = bytearray()

    async def serves() -> bool:
        seen.extend(await trio.to_thread.run_sync(os.read, reading, PIPE_BYTES))
        return b'"holdfast serves"' in seen

    try:
        with trio.fail_after(120):
            await until(serves, within_s=60)
            url = seen.decode().partition('"url":"')[2].partition('"')[0]
            # From here nothing reads, and each recharge is a line: more than the pipe takes.
            async with loopback_client(base_url=url, timeout=60) as http:
                ada = Customer(http)
                await ada.sign_in()
                for _ in range(PIPE_BYTES // LINE_BYTES_MIN + 100):
                    await ada.recharge("0.01")
            process.send_signal(signal.SIGTERM)
            assert await trio.to_thread.run_sync(process.wait, STOP_S) == 0
    finally:
        os.close(reading)
