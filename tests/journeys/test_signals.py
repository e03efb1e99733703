"""Ctrl-C reaches every process of the group, and only the service acts on it."""

from __future__ import annotations

import os
import signal

from .conftest import NewService


def test_ctrl_c_stops_the_service_in_order(new_service: NewService) -> None:
    service = new_service()
    service.start()
    assert service.process is not None

    os.killpg(service.process.pid, signal.SIGINT)

    assert service.process.wait(timeout=60) == 0
    log = service.log_path.read_text()
    assert "Traceback" not in log
    assert [line["path"] for line in service.log_lines() if line.get("event") == "drain"] == [
        "holdfast/http",
        "holdfast/workers",
        "holdfast/emulators",
        "holdfast",
    ]
