from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import trio
from tests.fresh_clusters import create_data_folder

from holdfast.persistence.server import postmaster
from holdfast.persistence.server.database import Database
from holdfast.persistence.server.embedded import EmbeddedPostgres, database_url_of, temporary_embedded
from holdfast.persistence.server.postmaster import EmbeddedFault
from holdfast.persistence.server.server_folders import DataFolderInUse, server_user, socket_folder

SERVICE = """
import signal, sys
from pathlib import Path
from holdfast.persistence.server import embedded, postmaster
if sys.argv[2] == "orphan":
    postmaster.die_with_parent = lambda: None
server = embedded.EmbeddedPostgres(Path(sys.argv[1]))
server.start()
print(server.pid, flush=True)
signal.pause()
"""


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A data folder that does not exist yet, below one the server's user may pass through."""
    above = Path(tempfile.mkdtemp(prefix="holdfast-embedded-"))
    above.chmod(0o711)
    yield above / "var"
    shutil.rmtree(above)


@pytest.fixture
def server(data_dir: Path) -> Iterator[EmbeddedPostgres]:
    """A started server; stopped and released afterwards."""
    create_data_folder(data_dir)
    server = EmbeddedPostgres(data_dir)
    server.start()
    yield server
    server.stop()
    server.release()


def remember(url: str, number: int) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("create table if not exists remembered (number int)")
        connection.execute("insert into remembered values (%s)", (number,))


def remembered(url: str) -> list[int]:
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute("select number from remembered order by number")]


def killed_service(data_dir: Path, kind: str) -> int:
    """Run a service with its own server, commit through it and kill the service; return the server's pid."""
    create_data_folder(data_dir)
    with subprocess.Popen(
        [sys.executable, "-c", SERVICE, str(data_dir), kind], stdout=subprocess.PIPE, text=True
    ) as service:
        assert service.stdout is not None
        pid = int(service.stdout.readline())
        url = database_url_of(data_dir)
        assert url is not None
        remember(url, 1)
        service.kill()
    return pid


@pytest.mark.slow
def test_committed_rows_survive_a_stop_and_a_start(data_dir: Path) -> None:
    server = EmbeddedPostgres(data_dir)
    url = server.start()
    assert server.start() == url
    assert server.is_running()
    assert not server.wait(0)
    remember(url, 1)
    server.stop()
    assert not server.is_running()
    assert server.wait(0)
    assert server.pid is None
    server.stop()
    assert server.start() == url
    assert remembered(url) == [1]
    server.stop()
    server.release()


def test_the_server_is_durable_private_and_unprivileged(server: EmbeddedPostgres) -> None:
    with psycopg.connect(server.url) as connection:
        found: dict[str, str] = dict(
            connection.execute(
                "select name, setting from pg_settings where name in"
                " ('fsync', 'synchronous_commit', 'full_page_writes', 'listen_addresses', 'data_checksums')"
            ).fetchall()
        )
    assert found == {
        "fsync": "on",
        "synchronous_commit": "on",
        "full_page_writes": "on",
        "listen_addresses": "",
        "data_checksums": "on",
    }
    pgdata = server.data_dir / "postgres"
    assert pgdata.stat().st_mode & 0o077 == 0
    assert pgdata.stat().st_uid != 0


@pytest.mark.slow
def test_one_process_at_a_time_owns_the_data_folder(server: EmbeddedPostgres) -> None:
    other = EmbeddedPostgres(server.data_dir)
    with pytest.raises(DataFolderInUse) as caught:
        other.start()
    assert str(server.data_dir) in str(caught.value)
    assert f"pid {os.getpid()}" in str(caught.value)
    server.stop()
    server.release()
    other.start()
    other.stop()
    other.release()


def test_commands_find_the_running_server(server: EmbeddedPostgres) -> None:
    url = database_url_of(server.data_dir)
    assert url is not None
    remember(url, 7)
    assert remembered(server.url) == [7]
    server.stop()
    assert database_url_of(server.data_dir) is None


@pytest.mark.slow
def test_a_temporary_server_stops_with_its_command(data_dir: Path) -> None:
    assert database_url_of(data_dir) is None
    with temporary_embedded(data_dir) as url:
        remember(url, 1)
    assert database_url_of(data_dir) is None
    with temporary_embedded(data_dir) as url:
        assert remembered(url) == [1]


def test_the_server_of_a_killed_service_stops_by_itself(data_dir: Path) -> None:
    pid = killed_service(data_dir, "follows")
    log, deadline = data_dir / "postgres.log", time.monotonic() + 60
    while "database system is shut down" not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)
    assert "received smart shutdown request" in log.read_text()
    while postmaster.postmaster_pid(data_dir / "postgres") == pid:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("kind", ["follows", "orphan"])
@pytest.mark.slow
def test_the_folder_of_a_killed_service_can_be_used_again(data_dir: Path, kind: str) -> None:
    pid = killed_service(data_dir, kind)
    server = EmbeddedPostgres(data_dir)
    url = server.start()
    assert server.pid != pid
    assert remembered(url) == [1]
    server.stop()
    server.release()


def test_a_server_that_crashed_recovers_at_the_next_start(server: EmbeddedPostgres) -> None:
    remember(server.url, 1)
    pid = server.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert server.wait(60)
    assert not server.is_running()
    assert remembered(server.start()) == [1]
    assert server.pid not in (None, pid)


@pytest.mark.slow
def test_a_pid_file_of_another_process_is_deleted(data_dir: Path) -> None:
    with temporary_embedded(data_dir):
        pass
    with subprocess.Popen(["sleep", "600"]) as other:
        (data_dir / "postgres" / "postmaster.pid").write_text(f"{other.pid}\n{data_dir / 'postgres'}\n")
        assert database_url_of(data_dir) is None
        with temporary_embedded(data_dir):
            assert other.poll() is None
        other.kill()


@pytest.mark.slow
def test_a_socket_lock_of_another_process_is_deleted(data_dir: Path) -> None:
    server = EmbeddedPostgres(data_dir)
    server.start()
    server.stop()
    # Of the server's own user: PostgreSQL takes only such a process for a server.
    with subprocess.Popen(["sleep", "600"], user=server_user()) as other:
        try:
            lock = socket_folder(data_dir / "postgres") / ".s.PGSQL.5432.lock"
            lock.write_text(f"{other.pid}\n{data_dir / 'postgres'}\n0\n5432\n{lock.parent}\n")
            server.start()
            assert server.is_running()
        finally:
            other.kill()
            server.stop()
            server.release()


@pytest.mark.slow
def test_an_incomplete_cluster_is_created_again(data_dir: Path) -> None:
    making = data_dir / "postgres.making"
    making.mkdir(parents=True)
    (making / "PG_VERSION").write_text("18\n")
    with temporary_embedded(data_dir) as url:
        remember(url, 1)
    assert not making.exists()


def test_files_that_are_gone_are_not_replaced_by_an_empty_cluster(data_dir: Path) -> None:
    server = EmbeddedPostgres(data_dir, settings={"fsync": "off"})
    server.start()
    folder = (data_dir / "postgres").resolve()
    try:
        server.stop()
        folder.rename(folder.with_name("moved"))
        with pytest.raises(EmbeddedFault, match="are gone"):
            server.start()
        folder.with_name("moved").rename(folder)
        server.start()
    finally:
        server.stop()
        server.release()


@pytest.mark.slow
def test_a_path_too_long_for_a_socket_gets_a_short_private_one(data_dir: Path) -> None:
    deep = data_dir / ("d" * 60) / ("e" * 60)
    server = EmbeddedPostgres(deep)
    url = server.start()
    remember(url, 1)
    found = database_url_of(deep)
    assert found is not None
    assert remembered(found) == [1]
    with psycopg.connect(url) as connection:
        folder = Path(connection.info.host)
    assert deep not in folder.parents
    assert folder.stat().st_mode & 0o077 == 0
    server.stop()
    server.release()
    shutil.rmtree(folder)


@pytest.mark.slow
def test_a_socket_folder_of_another_user_is_refused(data_dir: Path) -> None:
    deep = data_dir / ("d" * 60) / ("e" * 60)
    planted = socket_folder(deep / "postgres")
    planted.symlink_to(tempfile.gettempdir())
    server = EmbeddedPostgres(deep)
    try:
        with pytest.raises(EmbeddedFault, match="is not a folder of the user"):
            server.start()
    finally:
        planted.unlink()
        server.release()


@pytest.mark.slow
def test_a_server_that_cannot_start_says_why_and_names_its_log(data_dir: Path) -> None:
    server = EmbeddedPostgres(data_dir, settings={"max_connections": "nonsense"})
    with pytest.raises(
        EmbeddedFault, match=r"invalid value for parameter \"max_connections\".*; its log is .*postgres\.log"
    ):
        server.start()
    assert not server.is_running()
    server.release()


@pytest.mark.slow
def test_an_error_of_an_earlier_run_is_not_why_a_server_cannot_start(data_dir: Path) -> None:
    server = EmbeddedPostgres(data_dir, settings={"fsync": "off"})
    with psycopg.connect(server.start()):
        server.stop()
    assert "FATAL:  terminating connection" in (data_dir / "postgres.log").read_text()
    (data_dir / "postgres" / "global" / "pg_control").unlink()
    with pytest.raises(EmbeddedFault, match=r"could not open file .*pg_control.*; its log is .*postgres\.log"):
        server.start()
    server.release()


def test_a_cluster_of_an_unknown_version_is_refused(data_dir: Path) -> None:
    (data_dir / "postgres").mkdir(parents=True)
    (data_dir / "postgres" / "PG_VERSION").write_text("9\n")
    server = EmbeddedPostgres(data_dir)
    with pytest.raises(EmbeddedFault, match="PostgreSQL 9"):
        server.start()
    server.release()


def test_a_cluster_without_a_version_is_refused(data_dir: Path) -> None:
    (data_dir / "postgres").mkdir(parents=True)
    (data_dir / "postgres" / "PG_VERSION").write_bytes(b"\xff\n")
    server = EmbeddedPostgres(data_dir)
    with pytest.raises(EmbeddedFault, match=r"PG_VERSION does not have the version"):
        server.start()
    server.release()


@pytest.mark.slow
def test_a_file_in_the_place_of_the_cluster_is_refused(data_dir: Path) -> None:
    data_dir.mkdir()
    (data_dir / "postgres").write_text("in the way")
    server = EmbeddedPostgres(data_dir)
    with pytest.raises(EmbeddedFault, match=r"cannot use .*/postgres: Not a directory\.$"):
        server.start()
    server.release()
    assert (data_dir / "postgres").read_text() == "in the way"


async def test_the_watcher_restarts_a_server_that_died(server: EmbeddedPostgres) -> None:
    database = Database(server.url, embedded=server)
    await trio.to_thread.run_sync(remember, server.url, 1)
    async with trio.open_nursery() as nursery:
        await nursery.start(database.run)
        await database.gate.wait_open()
        pid = server.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await database.gate.wait_closed()
        await database.gate.wait_open()
        assert server.pid not in (None, pid)
        assert await trio.to_thread.run_sync(remembered, server.url) == [1]
        nursery.cancel_scope.cancel()
