"""The ports that the torture harness and the journeys reserve for their processes."""

from __future__ import annotations

from pathlib import Path

from torture.postgres import PostgresServer
from torture.service import Service


def open_files() -> set[str]:
    """The file descriptors of this process."""
    return {each.name for each in Path("/proc/self/fd").iterdir()}


def test_servers_hold_their_ports_while_they_exist(tmp_path: Path) -> None:
    before = open_files()
    servers: list[PostgresServer | Service] = [PostgresServer(tmp_path), Service("service", tmp_path, {})]
    assert len({each.port for each in servers}) == 2
    assert len(open_files()) == len(before) + 2
    servers.clear()
    assert open_files() == before
