"""Ctrl-C reaches every process of the group, and only the service acts on it. A reload ends no start."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import pytest

from .conftest import NewService
from .service_process import new_folder


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


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR2])
@pytest.mark.parametrize("processes", [0, 1])
def test_a_reload_does_not_end_a_service_that_starts(number: signal.Signals, processes: int) -> None:
    module = "parent.parent" if processes else "single_process"
    program = (
        "import os, sys\n"
        "from holdfast.__main__ import main\n"
        f"import holdfast.start.{module} as start\n"
        f"start.serve = lambda settings: os.kill(os.getpid(), {int(number)})\n"
        f"sys.argv = ['holdfast', 'serve', '--processes={processes}']\n"
        "main()\n"
    )
    folder = new_folder()
    try:
        variables = {**os.environ, "HOLDFAST_DATA_DIR": str(folder)}
        subprocess.run([sys.executable, "-c", program], env=variables, check=True)
    finally:
        shutil.rmtree(folder)
