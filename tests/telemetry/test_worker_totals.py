"""The metrics of several workers: what is summed, what is the least or the newest, and what ends with a worker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from prometheus_client.multiprocess import mark_process_dead
from prometheus_client.parser import text_string_to_metric_families

from holdfast.telemetry.metrics import render_workers

WORKER = """
import os, sys
from holdfast.telemetry import metrics
number = int(sys.argv[1])
metrics.HTTP_REQUEST_S.labels("read_account", "200").observe(0.5)
metrics.TASKS_CREATED.labels("studio").inc(10)
metrics.HTTP_CONNECTIONS.set(3)
metrics.DATABASE_UP.set(number)
metrics.REVIEWS_OPEN.set(7 + number)
metrics.BUILD_INFO.labels("1.0.0", "3.11").set(1)
metrics.PROCESS_MEMORY_BYTES.labels(str(number)).set(1000)
metrics.flush()
print(os.getpid())
"""


def run_worker(folder: Path, number: int) -> int:
    """Let a process measure, as a worker that has just been killed would leave its files; return its pid."""
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)}
    command = [sys.executable, "-c", WORKER, str(number)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return int(done.stdout)


async def rendered(folder: Path) -> dict[str, float]:
    """The values by series, as Prometheus would read them."""
    text = (await render_workers(str(folder))).decode()
    return {
        "".join((sample.name, *(f" {value}" for name, value in sorted(sample.labels.items()) if name != "le"))): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_the_totals_are_of_all_workers(tmp_path: Path) -> None:
    first, _ = (run_worker(tmp_path, number) for number in (0, 1))
    found = await rendered(tmp_path)
    assert found["holdfast_http_request_duration_seconds_count read_account 200"] == 2
    assert found["holdfast_tasks_created_total studio"] == 20
    assert found["holdfast_http_connections"] == 6
    assert found["holdfast_database_up"] == 0
    assert found["holdfast_reviews_open"] == 8
    assert found["holdfast_build_info 3.11 1.0.0"] == 2

    mark_process_dead(first, path=str(tmp_path))  # type: ignore[no-untyped-call]
    found = await rendered(tmp_path)
    assert found["holdfast_http_request_duration_seconds_count read_account 200"] == 2
    assert found["holdfast_tasks_created_total studio"] == 20
    assert found["holdfast_http_connections"] == 3
    assert found["holdfast_database_up"] == 1
    assert "holdfast_process_resident_memory_bytes 0" not in found
    assert found["holdfast_process_resident_memory_bytes 1"] == 1000
