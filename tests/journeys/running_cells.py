"""Cells with databases of their own behind one HAProxy, each with a service and a place map."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.clients import until
from tests.haproxy_process import Proxy, haproxy
from torture.service import reserve_port

from holdfast.ledger.cells import Cells
from holdfast.settings.settings import load_settings

from .service_process import OPERATOR_TOKEN, SERVER_KEY, Service, new_folder, start_together

EVERY_S = "0.2"


class Ranges(NamedTuple):
    """The places of a cell: those that it has, and former ones of which it has accounts still."""

    now: str
    former: str = ""


@dataclass
class RunningCells:
    """The cells by their numbers from one on; those that are listed run, unless a test has killed one."""

    services: list[Service]
    listed: Path
    proxy: Proxy
    _following: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def address_of(self, number: int) -> str:
        """Return host and port of a cell, which is the name of its server in HAProxy."""
        return f"127.0.0.1:{self.services[number - 1].environment['HOLDFAST_PORT']}"

    def operators_url_of(self, number: int) -> str:
        """Return where operators call a cell: a port of their own."""
        return self.services[number - 1].ops_url

    def list_cells(self, ranges: Sequence[Ranges]) -> None:
        """Write the list of so many cells, each with its places, and the e-mail addresses of the same."""
        lines = []
        for number, each in enumerate(ranges, 1):
            url, operators_url = f"http://{self.address_of(number)}", self.operators_url_of(number)
            lines.append(f'[[cell]]\nnumber = {number}\nurl = "{url}"\noperators_url = "{operators_url}"\n')
            lines += [f'{name} = "{each.now}"\n' for name in ("places", "emails")]
            lines += [f'former_{name} = "{each.former}"\n' for name in ("places", "emails")]
        self.listed.write_text("".join(lines))

    def read_list(self) -> Cells:
        """Return the cells as the first one sees them."""
        return Cells(1, load_settings(self.services[0].environment).cells)

    def reload_proxy(self) -> None:
        """Let HAProxy have the servers and the maps of all cells."""
        numbers = range(1, len(self.services) + 1)
        self.proxy.reload([self.address_of(number) for number in numbers], cells=len(numbers))

    def follow(self, number: int) -> None:
        """Keep the place map of a cell."""
        options = [
            "--file",
            str(self.proxy.map_of(number)),
            "--socket",
            str(self.proxy.control),
            "--every",
            EVERY_S,
        ]
        command = [sys.executable, "-m", "holdfast", "places", *options]
        environment = self.services[number - 1].environment
        self._following.append(subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL))

    async def is_mapped(self, number: int) -> None:
        """Wait until HAProxy sends the places of a cell there."""

        async def found() -> bool:
            servers = {line.split()[1] for line in self.proxy.map_of(number).read_text().splitlines()}
            return servers == {self.address_of(number)} and "UP" in self.proxy.states()[self.address_of(number)]

        await until(found)

    def write_env(self, number: int, folder: Path) -> Path:
        """Write the file with a cell's settings that commands of other cells take."""
        found = self.services[number - 1].environment
        file = folder / f"cell-{number}.env"
        file.write_text("".join(f"{name}={value}\n" for name, value in found.items() if name[:9] == "HOLDFAST_"))
        return file

    def run(self, *words: str) -> str:
        """Run a command with the settings of the first cell, and return its output."""
        command = [sys.executable, "-m", "holdfast", *words]
        done = subprocess.run(
            command, env=self.services[0].environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def stop_following(self) -> None:
        """End all commands that keep maps."""
        for each in self._following:
            each.kill()
            each.wait()


@contextmanager
def running_cells(
    catalog: Path, ranges: Sequence[Ranges], settings: Mapping[str, str] | None = None, *, more: int = 0
) -> Iterator[RunningCells]:
    """Run cells with these ranges; so many ``more`` neither run nor are known to HAProxy yet."""
    count = len(ranges) + more
    folders = [new_folder() for _ in range(count + 1)]
    listening = socket.create_server(("127.0.0.1", 0))
    listed = folders[-1] / "cells.toml"
    common = {
        "CATALOG": str(catalog),
        "CELLS": str(listed),
        "OPERATOR_TOKEN": OPERATOR_TOKEN,
        "PUBLIC_URL": f"http://127.0.0.1:{listening.getsockname()[1]}",
        "SANDBOX_SECRET": "sandbox-secret-of-all-cells-0123456789",
        "SERVER_KEY": SERVER_KEY,
        "TRUSTED_PROXIES": "127.0.0.1",
        **(settings or {}),
    }
    services = [
        Service(folder, CELL=str(number), RECEIPT_PREFIX=f"C{number}-", **common)
        for number, folder in enumerate(folders[:-1], 1)
    ]
    for each in services:
        each.environment["HOLDFAST_OPS_PORT"] = str(reserve_port(each))
    servers = [f"127.0.0.1:{each.environment['HOLDFAST_PORT']}" for each in services[: len(ranges)]]
    try:
        with haproxy(folders[-1] / "haproxy", servers, listening, cells=len(ranges)) as proxy:
            cells = RunningCells(services, listed, proxy)
            cells.list_cells(ranges)
            try:
                start_together(services[: len(ranges)])
                for number in range(1, len(ranges) + 1):
                    cells.follow(number)
                yield cells
                assert {each.stop() for each in services if each.is_alive()} == {0}
            finally:
                cells.stop_following()
    finally:
        for each in services:
            if each.is_alive():
                each.kill()
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
