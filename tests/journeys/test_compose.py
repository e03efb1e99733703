"""deploy/compose.yaml, run as it is shipped: the main job over HAProxy, a member that stops, monitoring.

podman pulls nothing here, so the images of PostgreSQL, HAProxy and Prometheus are made from Debian's packages, as
one. Grafana is not in Debian, and is not started. podman may be older than 4.6, which waits for no health check:
then all services start at once, and each waits for what it needs, or is restarted.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import ssl
import subprocess
import zlib
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
import trio
import yaml
from tests.clients import Customer, Totals, loopback_client, ok, until
from tests.containers import ROOT, Container, alone, build_image, environment, make_debian, podman
from tests.tools import needs, path_of
from torture.service import reserve_port

from holdfast.commands.init import MEMBERS
from holdfast.ledger.values import place_digits, place_of

from .service_process import new_folder

TOOLS: Final = (
    *("podman", "runc", "mmdebstrap", "iptables", "podman-compose"),
    *("/usr/lib/podman/netavark", "/usr/lib/podman/aardvark-dns"),
)
pytestmark = [pytest.mark.slow, *(needs(tool) for tool in TOOLS)]

PORTS: Final = ("HTTPS_PORT", "HTTP_PORT", "OPS_PORT_1", "OPS_PORT_2", "PROMETHEUS_PORT")
COMPOSE_S: Final = 300.0
ENTRYPOINT: Final = r"""
set -eu
PATH=$PATH:$(echo /usr/lib/postgresql/*/bin)
as_postgres() { setpriv --reuid postgres --regid postgres --init-groups "$@"; }
case $1 in
    --*) exec prometheus "$@" ;;
    postgres) ;;
    *) exec "$@" ;;
esac
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    install -d -o postgres -g postgres -m 700 "$PGDATA"
    install -d -o postgres -g postgres -m 3777 /var/run/postgresql
    as_postgres initdb --username "$POSTGRES_USER" --pwfile "$POSTGRES_PASSWORD_FILE" $POSTGRES_INITDB_ARGS
    echo "CREATE DATABASE $POSTGRES_DB" | as_postgres postgres --single -D "$PGDATA" postgres
fi
exec setpriv --reuid postgres --regid postgres --init-groups "$@"
"""
"""What the public images do at their start, as far as compose.yaml uses it."""
SERVERS: Final = f"localhost/holdfast-tests-servers-{zlib.crc32(ENTRYPOINT.encode()):08x}:trixie"


[COMMAND] = re.findall(
    r"^docker compose -f deploy/compose.yaml (.+)$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE
)


def network_of(port: int) -> str:
    """Return the beginning of the addresses of a network for a port: 10.128 to 10.255, podman's own being 10.88."""
    return f"10.{128 | port >> 8}.{port & 255}"


class Deployment:
    """A copy of the folder ``deploy`` with settings for a trial, and the containers that run from it."""

    def __init__(self, folder: Path, image: str) -> None:
        self.folder = folder / "deploy"
        shutil.copytree(ROOT / "deploy", self.folder)
        self.ports = {name: reserve_port(self) for name in PORTS}
        self.url = f"https://localhost:{self.ports['HTTPS_PORT']}"
        options = ("--rm", "--network=none", f"--user={os.getuid()}", f"--volume={self.folder}:/deploy")
        podman("run", *options, image, "init", "compose", "/deploy", "--for", "sandbox", "--public-url", self.url)
        self.project = f"holdfast-test-{self.ports['HTTPS_PORT']}"
        # A network that a killed run has left refuses another of the same addresses, and podman-compose hides why.
        self.network = network_of(self.ports["HTTPS_PORT"])
        images = {f"{name}_IMAGE": SERVERS for name in ("POSTGRES", "HAPROXY", "PROMETHEUS")}
        ports = {name: str(port) for name, port in self.ports.items()}
        self.environment = {**environment(), **ports, **images, "IMAGE": image, "NETWORK": self.network}
        self.config: dict[str, Any] = yaml.safe_load(self.compose("--profile=monitoring", "config"))

    def compose(self, *words: str) -> str:
        """Run podman-compose."""
        done = subprocess.run(
            [path_of("podman-compose"), "--project-name", self.project, *words],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMPOSE_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def container(self, service: str) -> Container:
        """The service's one container."""
        return Container(f"{self.project}_{service}_1")

    def served_by(self, path: str) -> list[str]:
        """Return the servers of all requests for a path, by HAProxy's log."""
        log = podman("logs", self.container("haproxy").name)
        return re.findall(rf" ready/(\S+) .*{re.escape(path)}[ ?]", log)

    def owner(self, customer: Customer) -> str:
        """Return the server that HAProxy's map has for a customer."""
        places = self.container("haproxy").run("cat", "/var/lib/holdfast-places/places.map")
        servers = dict(line.split() for line in places.splitlines())
        return servers[place_digits(place_of(customer.account_id))]


@pytest.fixture(scope="module")
def deployment() -> Iterator[Deployment]:
    """All services but Grafana, running."""
    with alone():
        entrypoint = json.dumps(["sh", "-c", ENTRYPOINT, "entrypoint"])
        changes = (f"ENTRYPOINT {entrypoint}", "ENV PGDATA=/var/lib/postgresql/data")
        options = [f"--change={change}" for change in changes]
        make_debian(SERVERS, "postgresql,haproxy,prometheus", options=options)
    folder = new_folder()
    found = Deployment(folder, build_image("compose"))
    try:
        found.compose(*COMMAND.split())
        found.compose("--profile=monitoring", "up", "--detach", "prometheus")
        for service in (*MEMBERS, "haproxy", "studio"):
            found.container(service).await_healthy()
        yield found
    finally:
        found.compose("--profile=monitoring", "down", "--volumes", "--timeout=0")
        shutil.rmtree(folder)


@pytest.fixture
async def http(deployment: Deployment) -> httpx2.AsyncClient:
    """A client that trusts the authority of the folder `secrets`."""
    trusted = ssl.create_default_context(cafile=deployment.folder / "secrets" / "tls-ca.crt")
    return httpx2.AsyncClient(base_url=deployment.url, verify=trusted, timeout=90)


async def customers_of_each_member(deployment: Deployment, http: httpx2.AsyncClient) -> dict[str, Customer]:
    found: dict[str, Customer] = {}
    while len(found) < len(MEMBERS):
        customer = Customer(http)
        await customer.sign_in()
        found.setdefault(deployment.owner(customer), customer)
    assert found.keys() == {f"{member}:8000" for member in MEMBERS}
    return found


async def picture(customer: Customer) -> str:
    """Create a picture, wait for it and fetch it; returns its task."""
    created = ok(await customer.create())
    task = ok(await customer.as_key("GET", f"/v2/task/{created['request_id']}?wait=60"))
    assert task["status"] == "succeeded", task
    [output] = task["output"]
    assert (await customer.http.get(output["url"])).headers["Content-Type"] == "image/png"
    return str(task["request_id"])


async def test_both_members_serve_and_one_goes_on_while_the_other_is_stopped(
    deployment: Deployment, http: httpx2.AsyncClient
) -> None:
    async with http:
        customers = await customers_of_each_member(deployment, http)
        for server, customer in customers.items():
            await customer.recharge("10.00")
            task = await picture(customer)
            assert set(deployment.served_by(f"/v2/task/{task}")) == {server}
        log = deployment.container(MEMBERS[0]).name
        assert "link opened" in podman("logs", log)

        deployment.compose("stop", MEMBERS[0])
        assert deployment.container(MEMBERS[0]).exit_code() == 0
        for customer in customers.values():
            task = await picture(customer)
            assert set(deployment.served_by(f"/v2/task/{task}")) == {f"{MEMBERS[1]}:8000"}
            assert await customer.totals() == Totals(Decimal("9.98"), Decimal(0), Decimal("9.98"))

        deployment.compose("start", MEMBERS[0])
        deployment.container(MEMBERS[0]).await_healthy()
    audit = deployment.container(MEMBERS[1]).run("holdfast", "audit")
    assert "FAILED" not in audit


def test_each_deployment_has_a_network_of_its_own(deployment: Deployment) -> None:
    """The environment has precedence over the file `.env`."""
    shipped = "NETWORK=10.213.74"
    assert shipped in (deployment.folder / ".env").read_text().splitlines()
    [pool] = deployment.config["networks"]["default"]["ipam"]["config"]
    assert pool["subnet"] == f"{deployment.network}.0/24"
    networks = json.loads(podman("network", "inspect", f"{deployment.project}_default"))
    assert [pool["subnet"] for each in networks for pool in each["subnets"]] == [f"{deployment.network}.0/24"]


async def test_the_database_is_dumped_as_the_page_says(deployment: Deployment) -> None:
    page = (ROOT / "docs" / "installing.md").read_text("utf-8")
    [command] = re.findall(r"exec -T postgres sh -c \\\n  '(.*)' > holdfast.dump$", page, re.MULTILINE)
    assert deployment.container("postgres").run("sh", "-c", f"{command} | head -c 5") == "PGDMP"


async def test_plain_http_leads_to_https(deployment: Deployment) -> None:
    async with loopback_client() as browser:
        sent_on = await browser.get(f"http://localhost:{deployment.ports['HTTP_PORT']}/docs")
        secured = f"{deployment.url}/docs"
        assert (sent_on.status_code, sent_on.headers["Location"]) == (301, secured)
        operators = await browser.get(f"http://localhost:{deployment.ports['OPS_PORT_2']}/ops/api/tree")
        assert operators.status_code == 401


async def test_prometheus_scrapes_both_members_and_has_the_rules(deployment: Deployment) -> None:
    shipped = yaml.safe_load((ROOT / "deploy" / "prometheus" / "holdfast.rules.yml").read_text())
    async with loopback_client(base_url=f"http://127.0.0.1:{deployment.ports['PROMETHEUS_PORT']}/api/v1") as http:

        async def scraped() -> dict[str, str] | None:
            try:
                targets = ok(await http.get("/targets"))["data"]["activeTargets"]
            except httpx2.TransportError:
                return None
            found = {target["labels"]["instance"]: target["health"] for target in targets}
            return found if set(found.values()) == {"up"} else None

        assert (await until(scraped)).keys() == {f"{member}:9000" for member in MEMBERS}
        groups = ok(await http.get("/rules"))["data"]["groups"]
        assert {group["name"] for group in groups} == {group["name"] for group in shipped["groups"]}


async def test_nothing_has_a_privilege_that_it_does_not_need(deployment: Deployment) -> None:
    for service in (*MEMBERS, "places", "studio"):
        status = await trio.to_thread.run_sync(
            deployment.container(service).run, "sh", "-c", "cat /proc/[0-9]*/status"
        )
        assert set(re.findall(r"^Cap(?:Prm|Eff|Bnd):\t(.*)$", status, re.MULTILINE)) == {"0" * 16}
        assert set(re.findall(r"^NoNewPrivs:\t(.*)$", status, re.MULTILINE)) == {"1"}
    users = podman("top", deployment.container("haproxy").name, "user").split()[1:]
    assert set(users) == {"root", "haproxy"}
