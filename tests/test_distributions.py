"""Each distribution is a wheel of its own. Production runs without emulators, and refuses a setting of theirs."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import distribution, entry_points
from pathlib import Path
from secrets import token_urlsafe

import pytest
from packaging.requirements import Requirement
from tests.hidden_distributions import BESIDE, hidden

import holdfast
from holdfast.http.kit.extensions import EXTENSIONS, GROUP
from holdfast.settings.checks import REQUIRED_SECRETS, install_extra

from .journeys.service_process import Service

ROOT = Path(__file__).parents[1]
PROJECTS = (ROOT, *(ROOT / "src" / name for name in BESIDE))
CATALOG = """
[providers.box]
kind = "cog"
url = "https://box.example"
polls = true
[[models]]
id = "m"
modality = "image"
type = "async"
created = "2026-11-01"
pricing = { mode = "per_request", unit_price = "1" }
upstream = { provider = "box" }
input_schema = { type = "object" }
"""


@pytest.fixture
def without(tmp_path: Path) -> dict[str, str]:
    """The environment of interpreters that do not find the emulators."""
    return hidden(tmp_path, "holdfast_emulators")


@pytest.fixture
def catalog(tmp_path: Path) -> str:
    file = tmp_path / "catalog.toml"
    file.write_text(CATALOG)
    return str(file)


def run(folder: Path, without: dict[str, str], *command: str, **settings: str) -> tuple[int, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    given = {f"HOLDFAST_{name}": value for name, value in {"DATA_DIR": str(folder / "var"), **settings}.items()}
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", *command],
        env={**inherited, **without, **given},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stderr


def names_in(wheel: str) -> set[str]:
    with zipfile.ZipFile(wheel) as opened:
        return {name for name in opened.namelist() if ".dist-info/" not in name}


def test_the_wheels_share_no_file_and_miss_none(tmp_path: Path) -> None:
    hatchling = pytest.importorskip("hatchling.builders.wheel", reason="make installs it")
    core, *beside = (
        next(hatchling.WheelBuilder(str(project)).build(directory=str(tmp_path), versions=["standard"]))
        for project in PROJECTS
    )
    assert {name.split("/")[0] for name in names_in(core)} == {"holdfast"}
    for name, wheel in zip(BESIDE, beside, strict=True):
        folder = ROOT / "src" / name
        there = {path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
        there -= {folder / outside for outside in ("LICENSE", "README.md", "pyproject.toml")}
        assert names_in(wheel) == {path.relative_to(ROOT / "src").as_posix() for path in there}


def test_the_distributions_are_of_the_cores_version_and_installed() -> None:
    core, *beside = (tomllib.loads((each / "pyproject.toml").read_text())["project"] for each in PROJECTS)
    assert core["version"] == holdfast.__version__
    for project in beside:
        assert project["version"] == core["version"]
        assert f"{project['name']}=={core['version']}" in core["optional-dependencies"]["all"]
        assert f"holdfast-credits=={core['version']}" in project["dependencies"]
        found = {(each.group, each.name): each.value for each in distribution(project["name"]).entry_points}
        wanted = {(g, name): place for g, each in project["entry-points"].items() for name, place in each.items()}
        assert found == wanted
    assert {each.name for each in entry_points(group=GROUP)} == EXTENSIONS.keys()


@pytest.mark.parametrize("extra", ["embedded", "s3", "otel", "pdf"])
def test_what_installs_an_extra_is_what_the_core_needs_for_it(extra: str) -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][extra]
    program, command, *named = shlex.split(install_extra(extra))
    assert (program, command) == ("pip", "install")
    assert {Requirement(each) for each in named} == {Requirement(each) for each in declared}


@pytest.mark.parametrize("command", [("catalog", "check"), pytest.param(("serve",), marks=pytest.mark.slow)])
def test_a_catalog_with_the_studio_is_refused_in_one_line(
    tmp_path: Path, without: dict[str, str], command: tuple[str, ...]
) -> None:
    code, printed = run(tmp_path, without, *command, PORT="0", PROCESSES="0")
    last = printed.splitlines()[-1]
    assert (code, last) == (
        2,
        "providers: the built-in studio has no url and is an emulator: "
        "install the package holdfast-emulators to use it",
    )
    assert "Traceback" not in printed


def test_the_demo_without_emulators_is_refused_in_one_line(tmp_path: Path, without: dict[str, str]) -> None:
    wanted = "The demo uses the emulators: install the package holdfast-emulators to use it\n"
    assert run(tmp_path, without, "demo") == (2, wanted)


@pytest.mark.parametrize("name", ["CARD_EMULATOR_PORT", "STUDIO_PORT"])
def test_the_port_of_an_emulator_is_refused(
    tmp_path: Path, without: dict[str, str], catalog: str, name: str
) -> None:
    code, printed = run(tmp_path, without, "serve", CATALOG=catalog, **{name: "7001"})
    wanted = f"HOLDFAST_{name} is of an emulator: install the package holdfast-emulators to use it\n"
    assert (code, printed) == (2, wanted)


@pytest.mark.parametrize("processes", ["0", "1"])
@pytest.mark.slow
def test_production_serves_without_emulators(
    tmp_path: Path, without: dict[str, str], catalog: str, processes: str
) -> None:
    secrets = {name: token_urlsafe(32) for name in (*REQUIRED_SECRETS, "SERVER_KEY")}
    service = Service(
        tmp_path, **secrets, ENV="production", DATABASE_URL="embedded", CATALOG=catalog, PROCESSES=processes
    )
    service.environment |= without
    try:
        service.start()
        assert service.stop() == 0
    finally:
        if service.is_alive():
            service.kill()
    assert not list(service.data_dir.glob("*.port"))
    assert "emulator" not in "".join(str(line.get("path")) for line in service.log_lines())
