"""A release is upgraded to this tree while clients work: by a roll, and by images one after the other.

The old release is built from its commit, and its database is the kept one. Beside what this tree adds, the new
release has a revision of its own, so that every upgrade migrates.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
import trio
from benchmarks.roll_clients import RollClients
from tests.clients import Customer, loopback_client, until
from tests.containers import ROOT, Container, build_image, copy_sources, podman
from tests.tools import needs
from torture.postgres import PostgresServer, binaries
from torture.service import reserve_port

from holdfast.persistence.audit.audit import run_audit
from holdfast.persistence.server.connections import connected
from holdfast.persistence.server.revisions import installed_revisions

from .conftest import NewCustomer, NewService
from .load import Witness
from .record_release import RELEASES, SETTINGS, write_catalog
from .scripted_provider import IMAGE, Script, ScriptedProvider
from .service_process import CALLBACK_SECRET, OPERATOR_TOKEN, Service, new_folder

pytestmark = pytest.mark.slow

VERSION: Final = "1.0.0"
COMMIT: Final = "5225c50b5ce6493a4805ab329d7ad096dd0ef93e"
"""That of the old release."""
ADDED: Final = "9000"
VERSIONS: Final = "src/holdfast/persistence/server/migrations/versions"
REVISION: Final = f'''"""One more table, as a later release may add."""

from __future__ import annotations

from alembic import op

revision = "{ADDED}"
down_revision = "{installed_revisions()[-1]}"
serves_from = "{installed_revisions()[0]}"


def upgrade() -> None:
    """Create the table."""
    op.execute("create table added_by_an_upgrade (id bigint primary key)")
'''
CREDIT: Final = Decimal("900.00")
PROMPT: Final = "a lighthouse at dusk"
CREATE: Final = json.dumps({"model": IMAGE, "input": {"prompt": PROMPT}}).encode()
NEW_TOKEN: Final = "another-operator-token-of-the-upgrade-0123456789"
ANSWERS: Final = 40
"""How many requests are answered before each step and after it."""


def has_commit() -> bool:
    """Whether the checkout has the old release, and git is there to take it out."""
    try:
        shown = subprocess.run(
            ["git", "cat-file", "-e", f"{COMMIT}^{{commit}}"], cwd=ROOT, capture_output=True, check=False
        )
    except FileNotFoundError:
        return False
    return shown.returncode == 0


needs_commit = pytest.mark.skipif(not has_commit(), reason=f"the commit of {VERSION} is not in this checkout")


@dataclass(frozen=True)
class Trees:
    """The sources of both releases."""

    old: Path
    new: Path


@pytest.fixture(scope="module")
def trees() -> Iterator[Trees]:
    """The trees of both releases."""
    folder = new_folder()
    found = Trees(folder / "old", folder / "new")
    for tree, commit in ((found.old, COMMIT), (found.new, None)):
        if commit is None:
            copy_sources(tree)
        else:
            tree.mkdir()
            packed = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True)
            subprocess.run(["tar", "-x"], cwd=tree, input=packed.stdout, check=True)
    (found.new / VERSIONS / f"v{ADDED}_added.py").write_text(REVISION)
    yield found
    shutil.rmtree(folder)


@dataclass(frozen=True)
class Ledger:
    """A database, and the folder with what was kept beside it."""

    url: str
    folder: Path


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """The kept database of the old release, on a server of its own."""
    with tarfile.open(RELEASES / f"{VERSION}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    folder = new_folder()
    server = PostgresServer(folder / "ledger")
    try:
        server.create()
        command = [str(binaries() / "psql"), "--quiet", "--no-psqlrc", "--set=ON_ERROR_STOP=1", server.url]
        subprocess.run([*command, f"--file={tmp_path / 'ledger.sql'}"], check=True, stdout=subprocess.DEVNULL)
        yield Ledger(server.url, tmp_path)
    finally:
        server.stop("immediate")
        shutil.rmtree(folder)


@pytest.fixture
def settings(ledger: Ledger, scripted: ScriptedProvider) -> dict[str, str]:
    """Those of each process, whose catalog is the kept one. The provider works on the clients' tasks for ever."""
    catalog = write_catalog(scripted, ledger.folder)
    scripted.scripts[PROMPT] = Script()
    return {
        "DATABASE_URL": ledger.url,
        "CATALOG": str(catalog),
        "TASKS_IN_FLIGHT_MAX": "1000000",
        "CALLBACK_SECRET": CALLBACK_SECRET,
        **SETTINGS,
    }


def install(tree: Path, folder: Path) -> Path:
    """Build a tree's wheels and install them into an environment of their own, beside the packages of this one."""
    subprocess.run(
        [sys.executable, tree / ".ci" / "dist.py", folder / "dist"],
        env={**os.environ, "SOURCE_DATE_EPOCH": "1800000000"},
        check=True,
        capture_output=True,
    )
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    [packages] = (folder / "lib").glob("python3*/site-packages")
    for wheel in (folder / "dist").glob("*.whl"):
        with zipfile.ZipFile(wheel) as opened:
            opened.extractall(packages)
    [shared] = (Path(sys.prefix) / "lib").glob("python3*/site-packages")
    (packages / "shared.pth").write_text(f"{shared}\n")
    return folder


def check_kept_and_new(ledger: Ledger, operations: int) -> None:
    """The database is at the new revision, has what it had, and is correct."""
    assert revision_of(ledger) == ADDED
    assert count_operations(ledger) > operations
    with connected(ledger.url) as connection:
        assert run_audit(connection) == {}


def revision_of(ledger: Ledger) -> str:
    with psycopg.connect(ledger.url) as rows:
        [(revision,)] = rows.execute("select version_num from alembic_version").fetchall()
    return str(revision)


def installed_in(tree: Path) -> str:
    """The newest revision of a tree."""
    return max(file.name[1:5] for file in (tree / VERSIONS).glob("v*.py"))


async def tree_read_with(service: Service, token: str) -> int:
    """The status of an operator's request."""
    async with loopback_client(headers={"Authorization": f"Bearer {token}"}) as http:
        return (await http.get(f"{service.url}/ops/api/tree")).status_code


def ends_of_roll(service: Service) -> list[dict[str, Any]]:
    """The lines that say that a roll is complete or abandoned."""
    lines = [line for line in service.log_lines() if str(line.get("event")).startswith("roll")]
    return [line for line in lines if line["event"] == "roll complete" or line["level"] == "error"]


def may_be_of_old(failed: str, replaced_at: datetime) -> bool:
    """Whether a response is a 503 that a process of the old release may give until the last is replaced.

    Its processes and the new ones serve the same accounts without links, and one of them may lose every race for a
    row. ``test_rolls_refuse_cut_and_lose_nothing`` allows none among processes of this tree.
    """
    status, body = failed.split(" ", 1)
    error = json.loads(body)["error"]
    # An id begins with its time in ms.
    at = datetime.fromtimestamp(int(error["request_id"].removeprefix("req_")[:12], 16) / 1000, UTC)
    return (status, error["code"]) == ("503", "temporarily_unavailable") and at < replaced_at


async def _holds(condition: Callable[[], bool]) -> bool:
    return condition()


def count_operations(ledger: Ledger) -> int:
    with psycopg.connect(ledger.url) as rows:
        [(count,)] = rows.execute("select count(*) from operations").fetchall()
    return int(count)


@needs_commit
async def test_a_roll_upgrades_two_processes_and_cuts_no_request(
    trees: Trees,
    ledger: Ledger,
    settings: dict[str, str],
    new_service: NewService,
    new_customer: NewCustomer,
) -> None:
    releases = new_folder()
    old, new = (install(tree, releases / tree.name) for tree in (trees.old, trees.new))
    link = releases / "current"
    link.symlink_to(old)
    operations = count_operations(ledger)
    token = ledger.folder / "operator_token"
    token.write_text(settings.pop("OPERATOR_TOKEN"))
    service = new_service(**settings, PROCESSES="2", OPERATOR_TOKEN_FILE=str(token))
    service.python = str(link / "bin" / "python")
    # Not from this checkout, whose code would be found before that of a release.
    service.environment["PYTHONSAFEPATH"] = "1"
    service.data_dir.mkdir(mode=0o700)
    shutil.copytree(ledger.folder / "assets", service.data_dir / "assets")
    await trio.to_thread.run_sync(service.start)
    try:
        assert revision_of(ledger) == installed_in(trees.old)
        customers = [await new_customer(service, credit=str(CREDIT)) for _ in range(6)]
        clients = RollClients(service.url, [customer.key for customer in customers], CREATE)

        async def answered(more: int) -> None:
            wanted = clients.tally.requests + more
            await until(partial(_holds, lambda: clients.tally.requests >= wanted), within_s=120)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(clients.run, keep_alive=4, fresh=2, slow=2, idle=2, pause_s=0.25))
            await answered(ANSWERS)
            # New workers read the files of settings again.
            token.write_text(NEW_TOKEN)
            (releases / "next").symlink_to(new)
            (releases / "next").replace(link)
            assert service.process is not None
            service.process.send_signal(signal.SIGUSR2)
            await until(partial(_holds, lambda: bool(ends_of_roll(service))), within_s=240)
            [complete] = ends_of_roll(service)
            assert complete["event"] == "roll complete", service.log_tail()
            await answered(ANSWERS)
            clients.is_stopping = True
        answers = [await tree_read_with(service, each) for each in (NEW_TOKEN, OPERATOR_TOKEN)]
        assert answers == [200, 401]
        tally = clients.tally
        warned = [line for line in service.log_lines() if line.get("level") not in {"info", "debug"}]
        replaced_at = datetime.fromisoformat(complete["time"])
        failed = [each for each in tally.failed if not may_be_of_old(each, replaced_at)]
        assert (tally.refused, tally.cut, failed) == ([], [], []), warned
        found = [request_id for customer in customers for request_id in await customer.tasks()]
        assert sorted(tally.created.values()) == sorted(found)
        held = [(await customer.totals()).held for customer in customers]
        assert sum(held) == len(found)
        check_kept_and_new(ledger, operations)
        assert await trio.to_thread.run_sync(service.stop) == 0
        assert service.faults() == []
    finally:
        shutil.rmtree(releases)


class Member:
    """A container of the service with a port of its own, and a customer who works there."""

    def __init__(self, settings: dict[str, str], catalog: Path) -> None:
        port = reserve_port(self)
        self.url = f"http://127.0.0.1:{port}"
        self.container = Container(f"holdfast-test-{port}")
        given = {
            **settings,
            "ENV": "development",
            "HOST": "127.0.0.1",
            "PORT": str(port),
            "OPS_HOST": "127.0.0.1",
            "OPS_PORT": str(reserve_port(self)),
            "CATALOG": "/etc/holdfast/catalog.toml",
        }
        self._options = [f"--env=HOLDFAST_{name}={text}" for name, text in given.items()]
        self._options += ["--network=host", "--detach", f"--volume={catalog.parent}:/etc/holdfast:ro"]

    def run(self, image: str) -> None:
        """Run an image in place of the one before."""
        podman("rm", "--force", "--ignore", "--volumes", "--time=30", self.container.name)
        podman("run", *self._options, f"--name={self.container.name}", image)
        self.container.await_healthy()


@needs_commit
@needs("podman")
@needs("runc")
@needs("mmdebstrap")
async def test_images_are_replaced_one_after_the_other_and_no_answer_is_lost(
    trees: Trees, ledger: Ledger, settings: dict[str, str]
) -> None:
    images = [build_image(tree.name, tree) for tree in (trees.old, trees.new)]
    operations = count_operations(ledger)
    catalog = ledger.folder / "etc" / "catalog.toml"
    catalog.parent.mkdir()
    shutil.move(settings["CATALOG"], catalog)
    for each in (ledger.folder, catalog.parent, catalog):
        each.chmod(0o755)
    members = [Member(settings, catalog) for _ in range(2)]
    try:
        for member in members:
            await trio.to_thread.run_sync(member.run, images[0])
        assert revision_of(ledger) == installed_in(trees.old)
        async with (
            loopback_client(base_url=members[0].url, timeout=60) as here,
            loopback_client(base_url=members[1].url, timeout=60) as there,
        ):
            witnesses = []
            for seed, http in enumerate((here, there)):
                customer = Customer(http, model=IMAGE)
                await customer.sign_in()
                await customer.recharge(str(CREDIT))
                witnesses.append(Witness(customer, seed, pause_s=0.2))

            async def answered(more: int) -> None:
                wanted = {witness.seed: witness.answered + more for witness in witnesses}
                done = partial(_holds, lambda: all(each.answered >= wanted[each.seed] for each in witnesses))
                await until(done, within_s=240)

            async with trio.open_nursery() as nursery:
                for witness in witnesses:
                    nursery.start_soon(witness.work)
                await answered(ANSWERS)
                for member in members:
                    await trio.to_thread.run_sync(member.run, images[1])
                    await answered(ANSWERS)
                for witness in witnesses:
                    witness.is_stopping = True
            for witness in witnesses:
                assert len(witness.keys) < CREDIT
                await witness.hold_to_it(may_add=True)
        check_kept_and_new(ledger, operations)
    finally:
        for member in members:
            podman("rm", "--force", "--volumes", "--time=0", "--ignore", member.container.name)
