"""Two workers below a parent: rolls under load, ``kill -9`` of a worker and of the parent, sockets of systemd."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from benchmarks.roll_clients import RollClients
from benchmarks.rolls import children_of, workers_of
from tests.clients import loopback_client, ok, until

from holdfast.persistence.queries.reports import reports_after
from holdfast.persistence.server.connections import connected
from holdfast.persistence.server.embedded import database_url_of
from holdfast.telemetry.reports.report import Report, ReportFilter

from .conftest import NewCustomer, NewService
from .load import Witness
from .quiet_provider import MODEL, QuietProvider
from .service_process import Service, new_folder, running_service

ROLLS = int(os.environ.get("ROLLS", "2"))
CREDIT = Decimal("1000.00")
CREATE = json.dumps({"model": MODEL, "input": {"prompt": "a lighthouse at dusk"}}).encode()
COMMAND = f"{sys.executable} -m holdfast serve"


@pytest.fixture(scope="module")
def service(provider: QuietProvider) -> Iterator[Service]:
    """A parent with two workers, which every test leaves running."""
    folder = new_folder()
    catalog = str(provider.write_catalog(folder))
    with running_service(folder, PROCESSES="2", TASKS_IN_FLIGHT_MAX="1000000", CATALOG=catalog) as service:
        yield service


def workers(service: Service) -> list[int]:
    assert service.process is not None
    return workers_of(service.process.pid)


async def until_logged(service: Service, event: str, count: int) -> None:
    async def logged() -> bool:
        return [line.get("event") for line in service.log_lines()].count(event) >= count

    await until(logged, within_s=240)


async def until_holds(condition: Callable[[], bool]) -> None:
    async def holds() -> bool:
        return condition()

    await until(holds, within_s=240)


def is_running(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def crashes(service: Service) -> list[Report]:
    """The stored reports of crashed workers."""
    with connected(service.database_url) as rows:
        wanted = ReportFilter(kind="crash", path="processes")
        return [stored.report for stored in reports_after(rows, 0, limit=100, wanted=wanted).found]


def samples_of_each(service: Service) -> list[Any]:
    """The samples of each worker, the oldest first."""
    token = (service.data_dir / "secrets" / "operator_token").read_text().strip()
    response = httpx2.get(
        f"{service.url}/ops/api/samples", headers={"Authorization": f"Bearer {token}"}, verify=False
    )
    return [process["samples"] for process in ok(response)["processes"]]


@pytest.mark.slow
async def test_rolls_refuse_cut_and_lose_nothing(service: Service, new_customer: NewCustomer) -> None:
    assert service.process is not None
    # As many accounts as clients: two workers that decide for one account repeat each other's work.
    customers = [await new_customer(service, credit=str(CREDIT)) for _ in range(10)]
    await until_holds(lambda: all(samples_of_each(service)))
    sampled = {found[0]["at"] for found in samples_of_each(service)}
    before = workers(service)
    clients = RollClients(service.url, [customer.key for customer in customers], CREATE)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(clients.run, keep_alive=4, fresh=2, slow=2, idle=2, pause_s=0.25))
        for number in range(1, ROLLS + 1):
            service.process.send_signal(signal.SIGUSR2)
            await until_logged(service, "roll complete", number)
        clients.is_stopping = True
    tally = clients.tally
    assert (tally.refused, tally.cut, tally.failed) == ([], [], [])
    assert len(tally.created) > 10 * ROLLS
    found = [request_id for customer in customers for request_id in await customer.tasks()]
    assert sorted(tally.created.values()) == sorted(found)
    # The counts of workers that have ended are not lost.
    await until_holds(lambda: service.metric("holdfast_http_request_duration_seconds_count") >= tally.requests)
    # The gauges of those are.
    assert service.metric("holdfast_build_info") == 2
    cpu_s = r'holdfast_process_cpu_seconds_total\{process="%s"\}'
    await until_holds(lambda: all(service.metric(cpu_s % process) for process in ("parent", "0", "1")))
    after = workers(service)
    assert len(after) == 2
    assert not {*before} & {*after}
    # What the plots show outlives its worker.
    await until_holds(lambda: sampled <= {sample["at"] for found in samples_of_each(service) for sample in found})
    assert service.audit() == []


@pytest.mark.slow
async def test_kills_of_a_worker_and_of_the_parent_lose_nothing(
    service: Service, new_customer: NewCustomer
) -> None:
    ada = await new_customer(service, credit=str(CREDIT))
    ada.model = MODEL
    witness = Witness(ada, seed=11)

    async def answers(more: int) -> None:
        wanted = witness.answered + more
        await until_holds(lambda: witness.answered >= wanted)

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(witness.work)
        await answers(15)
        [killed, other] = workers(service)
        os.kill(killed, signal.SIGKILL)
        await answers(15)
        await until_holds(lambda: len(workers(service)) == 2 and killed not in workers(service))
        assert other in workers(service)
        await answers(15)
        orphans = workers(service)
        await trio.to_thread.run_sync(service.kill)
        # The orphans stop in order, while a new parent starts on their port and their data folder.
        await trio.to_thread.run_sync(service.start)
        assert not any(is_running(orphan) for orphan in orphans)
        await answers(15)
        witness.is_stopping = True
    witness.is_stopping = False
    await witness.hold_to_it()
    assert service.audit() == []
    assert f"process {killed} was killed by SIGKILL" in {report.reason for report in crashes(service)}


@pytest.mark.slow
async def test_others_accept_for_a_frozen_worker(service: Service) -> None:
    frozen = workers(service)[0]

    async def ask() -> None:
        # Without kept connections: the system gives half of them to the frozen worker's socket.
        async with loopback_client(base_url=service.url, timeout=60) as client:
            assert (await client.get("/healthz")).status_code == 200

    os.kill(frozen, signal.SIGSTOP)
    try:
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(ask)
    finally:
        os.kill(frozen, signal.SIGCONT)

    def reported() -> list[tuple[object, object]]:
        lines = [line for line in service.log_lines() if f"process {frozen} " in str(line.get("text"))]
        return [(line["event"], line["path"]) for line in lines]

    await until_holds(lambda: any(event == "recovery" for event, _ in reported()))
    assert reported() in [
        [("stuck", path), ("recovery", path)] for path in ("processes/worker-0", "processes/worker-1")
    ]
    assert frozen in workers(service)


@pytest.mark.slow
async def test_sockets_of_systemd_keep_what_waits_and_outlive_a_killed_parent(new_service: NewService) -> None:
    service = new_service(PROCESSES="1")
    answers: list[int] = []

    async def ask(url: str) -> None:
        async with loopback_client(base_url=url, timeout=120) as client:
            answers.append((await client.get("/healthz")).status_code)

    async def serve(listening: socket.socket) -> trio.Process:
        """Start a parent on a socket passed as by systemd, on which a request waits already."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, f"http://127.0.0.1:{listening.getsockname()[1]}")
            with service.log_path.open("ab") as log:
                parent = await trio.lowlevel.open_process(
                    ["bash", "-c", f"exec 3<&{listening.fileno()} && LISTEN_PID=$$ exec {COMMAND}"],
                    env={**service.environment, "LISTEN_FDS": "1", "LISTEN_FDNAMES": "public"},
                    pass_fds=[listening.fileno()],
                    stdout=log.fileno(),
                    stderr=log.fileno(),
                    start_new_session=True,
                )
            await until_holds(lambda: len(answers) > 0)
        assert answers.pop() == 200
        return parent

    with socket.create_server(("127.0.0.1", 0)) as listening:
        parent = await serve(listening)
        parent.terminate()
        assert await parent.wait() == 0
        # An orderly stop has left the socket as it was.
        parent = await serve(listening)
        children = children_of(parent.pid)
        assert len(children) == 3
        parent.kill()
        await parent.wait()
        await until_holds(lambda: not any(map(is_running, children)))
    assert [line["exit_code"] for line in service.log_lines() if line.get("event") == "stopped"] == [0, 0, 0]
    assert database_url_of(service.data_dir) is None
    assert "received smart shutdown request" in (service.data_dir / "postgres.log").read_text()


async def lines_of_failed_start(service: Service) -> list[str]:
    """What a start prints beside its log, until it ends by a fault of the configuration."""
    done = await trio.run_process(
        [sys.executable, "-m", "holdfast", "serve"],
        env=service.environment,
        capture_stdout=True,
        capture_stderr=True,
        check=False,
    )
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr
    return [line for line in done.stderr.decode().splitlines() if not line.startswith("{")]


@pytest.mark.slow
async def test_a_faulty_configuration_ends_the_parent(new_service: NewService) -> None:
    service = new_service(PROCESSES="2", CATALOG=__file__)
    assert await lines_of_failed_start(service), "the faults of the catalog"


@pytest.mark.slow
async def test_files_that_are_not_for_tls_end_the_parent_with_one_line(
    new_service: NewService, tmp_path: Path
) -> None:
    files = {f"MEMBER_{name}": str(tmp_path / name.lower()) for name in ("CERTIFICATE", "KEY", "CA")}
    for file in files.values():
        await trio.Path(file).touch(mode=0o600)
    service = new_service(PROCESSES="1", MEMBER_ADDRESS="127.0.0.1:7400", **files)
    [line] = await lines_of_failed_start(service)
    assert f"{files['MEMBER_CA']} is not the certificate of an authority" in line


@pytest.mark.slow
async def test_a_catalog_reload_reaches_every_worker(service: Service, new_customer: NewCustomer) -> None:
    assert service.process is not None
    service.process.send_signal(signal.SIGHUP)

    async def reloaded() -> bool:
        lines = [line for line in service.log_lines() if line.get("event") == "catalog loaded"]
        return {line.get("worker") for line in lines} == {0, 1}

    await until(reloaded)
    ada = await new_customer(service)
    ok(await ada.as_session("GET", "/v2/control/account"))
