"""The proxies of docs/installing.md in front of a service, with TLS by a certificate of this test."""

from __future__ import annotations

import re
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeAlias

import httpx2
import pytest
from tests.certificates import Authority
from tests.clients import Customer, loopback_client, ok
from tests.haproxy_process import BIND, CONTROL, MAP, PLAIN
from tests.tools import path_of
from torture.service import reserve_port

from .conftest import NewService
from .service_process import Service

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "installing.md").read_text("utf-8")
HOST = "api.example.com"
START_S = 60.0
RunProxy: TypeAlias = Callable[[Service, Path, Path, int, int], AbstractContextManager[None]]
"""Runs a proxy before a service: with a certificate, a folder for its files, and ports with and without TLS."""


@pytest.fixture
def service(new_service: NewService) -> Service:
    """A service that believes its proxies."""
    made = new_service(TRUSTED_PROXIES="127.0.0.1", PUBLIC_URL=f"https://{HOST}")
    made.start()
    return made


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Whose certificates the clients of a test accept."""
    return Authority(tmp_path)


@contextmanager
def running(command: list[str], port: int, log: Path) -> Iterator[None]:
    """Run a proxy in the foreground, from when it accepts connections at the port."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.02)
        yield
    finally:
        process.terminate()
        process.wait(START_S)


def replaced(text: str, changes: dict[str, str]) -> str:
    """Return a configuration of the page with the addresses and paths of this test."""
    for shipped, used in changes.items():
        assert shipped in text, shipped
        text = text.replace(shipped, used)
    return text


def public_port(service: Service) -> str:
    return service.url.rpartition(":")[2]


@contextmanager
def haproxy(service: Service, certificate: Path, folder: Path, tls: int, plain: int) -> Iterator[None]:
    """HAProxy as the page configures it for one member."""
    command = re.search(r"^(sed .*) > /etc/haproxy/haproxy.cfg$", PAGE, re.MULTILINE)
    assert command is not None
    shown = subprocess.run(["sh", "-c", command[1]], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (folder / "places.map").touch()
    file = folder / "haproxy.cfg"
    file.write_text(
        replaced(
            shown.replace("    user haproxy\n    group haproxy\n", ""),
            {
                "127.0.0.1:8000": f"127.0.0.1:{public_port(service)}",
                BIND: BIND.replace(":443", f"127.0.0.1:{tls}").replace("/etc/haproxy/certs/", str(certificate)),
                PLAIN: f"bind 127.0.0.1:{plain}\n",
                MAP: str(folder / "places.map"),
                CONTROL: str(folder / "admin.sock"),
            },
        )
    )
    with running([path_of("haproxy"), "-db", "-f", str(file)], tls, folder / "haproxy.log"):
        yield


@contextmanager
def nginx(service: Service, certificate: Path, folder: Path, tls: int, plain: int) -> Iterator[None]:
    """nginx with the page's file for it."""
    [shown] = re.findall(r"```nginx\n(.*?)```", PAGE, re.DOTALL)
    (folder / "holdfast.conf").write_text(
        replaced(
            shown,
            {
                "127.0.0.1:8000": f"127.0.0.1:{public_port(service)}",
                "listen 443 ssl http2;": f"listen 127.0.0.1:{tls} ssl http2;",
                "listen 80;": f"listen 127.0.0.1:{plain};",
                "/etc/ssl/holdfast/fullchain.pem": str(certificate),
                "/etc/ssl/holdfast/privkey.pem": str(certificate),
                "/var/log/nginx/holdfast.log": str(folder / "access.log"),
            },
        )
    )
    paths = "".join(
        f"    {name}_temp_path {folder / name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off;\nmaster_process off;\npid {folder / 'nginx.pid'};\nerror_log stderr;\n"
        "events { worker_connections 4096; }\n"
        f"http {{\n    access_log off;\n{paths}    include {folder / 'holdfast.conf'};\n}}\n"
    )
    command = [path_of("nginx"), "-e", "stderr", "-p", str(folder), "-c", str(folder / "nginx.conf")]
    with running(command, tls, folder / "nginx.log"):
        yield


@pytest.mark.slow
@pytest.mark.parametrize("proxy", [haproxy, nginx])
async def test_a_customer_is_served_through_a_proxy_that_ends_tls(
    proxy: RunProxy, service: Service, authority: Authority, tmp_path: Path
) -> None:
    tls, plain = reserve_port(service), reserve_port(service)
    trusted = ssl.create_default_context(cafile=str(authority.path))
    there = {"Host": HOST}
    async with httpx2.AsyncClient(base_url=f"https://127.0.0.1:{tls}", verify=trusted, timeout=60) as http:
        with proxy(service, authority.issue("127.0.0.1"), tmp_path, tls, plain):
            ready = await http.get("/readyz", headers=there)
            assert ready.status_code == 200
            assert ready.headers["Strict-Transport-Security"] == "max-age=31536000"
            customer = Customer(http)
            await customer.sign_in()
            await customer.recharge("5.00")
            ok(await customer.create())
            assert [task["status"] for task in (await customer.all_ended()).values()] == ["succeeded"]
            async with loopback_client(base_url=f"http://127.0.0.1:{plain}") as unencrypted:
                sent = await unencrypted.get("/v2/models", headers=there)
                assert (sent.status_code, sent.headers["Location"]) == (301, f"https://{HOST}/v2/models")
