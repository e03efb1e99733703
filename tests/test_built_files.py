"""The files of a release, as ``make dist`` builds them: what they contain, and that they run."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import NamedTuple

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from hatchling.builders.wheel import WheelBuilder

from .hidden_distributions import BESIDE
from .tools import LOCKED_WHEELS, needs, path_of

ROOT = Path(__file__).parents[1]
PACKAGES = ("holdfast", *BESIDE)
INSTALLING = (ROOT / "docs" / "installing.md").read_text("utf-8")
TRIALS = {line.split()[0]: line for line in re.findall(r"^.*'holdfast-credits\[all\]'.* demo$", INSTALLING, re.M)}
"""The commands of the page that run the demo from built files, by their programs."""
EPOCH = 1_800_000_000


class Built(NamedTuple):
    """The files of one distribution."""

    package: str
    wheel: Path
    archive: Path
    bill: Path

    @property
    def metadata(self) -> Message:
        """The wheel's metadata; the payload is the description."""
        stem = self.wheel.name.removesuffix("-py3-none-any.whl")
        with zipfile.ZipFile(self.wheel) as opened:
            return message_from_bytes(opened.read(f"{stem}.dist-info/METADATA"))


def build(root: Path, folder: Path, **variables: str) -> dict[str, str]:
    """Run the script of ``make dist``; return the hash of each file."""
    subprocess.run(
        [sys.executable, root / ".ci" / "dist.py", folder],
        env={**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH), **variables},
        capture_output=True,
        check=True,
    )
    return hashes(folder)


def hashes(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("dist")
    build(ROOT, found)
    return found


@pytest.fixture(scope="module")
def built(folder: Path) -> list[Built]:
    """The four distributions, the core first."""
    found = []
    for package in PACKAGES:
        stem = "holdfast_credits" if package == "holdfast" else package
        files = [one for end in (".whl", ".tar.gz", ".cdx.json") for one in folder.glob(f"{stem}-*{end}")]
        found.append(Built(package, *files))
    assert len(list(folder.iterdir())) == 3 * len(found)
    return found


def test_another_copy_of_the_tree_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copyfile(ROOT / name, copy / name)
    for name in ("src", ".ci", "requirements"):
        shutil.copytree(
            ROOT / name, copy / name, copy_function=shutil.copyfile, ignore=shutil.ignore_patterns("__pycache__")
        )
    for file in copy.rglob("*"):
        file.chmod(0o700 if file.is_dir() else 0o600)
        os.utime(file, (10**9, 10**9))
    made = build(copy, tmp_path / "dist", TZ="Asia/Tokyo", LC_ALL="C", PYTHONHASHSEED="7")
    assert made == hashes(folder)


def test_a_source_archive_gives_the_wheel(
    built: list[Built], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(EPOCH))
    for each in built:
        with tarfile.open(each.archive) as opened:
            assert {member.mtime for member in opened} == {EPOCH}
            opened.extractall(tmp_path, filter="data")
        project = tmp_path / each.archive.name.removesuffix(".tar.gz")
        [wheel] = WheelBuilder(str(project)).build(directory=str(tmp_path), versions=["standard"])
        assert Path(wheel).read_bytes() == each.wheel.read_bytes()


def test_the_metadata_is_whole(built: list[Built]) -> None:
    assert len({each.metadata["Version"] for each in built}) == 1
    for each in built:
        metadata = each.metadata
        names = {"holdfast": "holdfast-credits"}
        assert metadata["Name"] == names.get(each.package, each.package.replace("_", "-"))
        assert metadata["Description-Content-Type"] == "text/markdown"
        assert str(metadata.get_payload()).startswith("# ")
        assert {"Summary", "License-Expression", "Keywords", "Requires-Python"} <= set(metadata)
        assert "Typing :: Typed" in metadata.get_all("Classifier", [])
        assert f"{each.package}/py.typed" in zipfile.ZipFile(each.wheel).namelist()


def test_the_licence_of_all_that_is_contained_is_there(built: list[Built]) -> None:
    for each in built:
        source = ROOT / "src" / each.package
        # Scripts whose names have a version, and fonts, are of others.
        others = {file.parent for kind in ("*-[0-9]*.js.gz", "*.ttf") for file in source.rglob(kind)}
        assert len(others) == 2 * (each.package == "holdfast")
        texts = [ROOT / "LICENSE", *(licence for folder in others for licence in folder.glob("LICENSE*"))]
        assert len(texts) > len(others)
        with zipfile.ZipFile(each.wheel) as opened:
            kept = [opened.read(name) for name in opened.namelist() if ".dist-info/licenses/" in name]
        assert sorted(kept) == sorted(file.read_bytes() for file in texts)
        named = each.metadata["License-Expression"]
        assert (named == "Apache-2.0") == (not others)


def test_the_bill_lists_what_production_installs(built: list[Built]) -> None:
    lock = (ROOT / "requirements" / "runtime.lock").read_text("utf-8")
    locked = {f"pkg:pypi/{name}@{version}" for name, version in re.findall(r"^([\w.-]+)==(\S+)", lock, re.M)}
    [script] = (ROOT / "src" / "holdfast").rglob("*-[0-9]*.js.gz")
    name, version = re.findall(r"^([a-z]+)-([0-9.]+)\.js\.gz$", script.name)[0]
    scripts = {f"pkg:npm/%40{name}/api-reference@{version}"}
    for each in built:
        text = each.bill.read_text("utf-8")
        assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
        bill = json.loads(text)
        root = bill["metadata"]["component"]
        digest = hashlib.sha256(each.wheel.read_bytes()).hexdigest()
        assert root["hashes"] == [{"alg": "SHA-256", "content": digest}]
        core = {f"pkg:pypi/holdfast-credits@{each.metadata['Version']}"}
        assert {part["purl"] for part in bill["components"]} == locked | (
            scripts if each.package == "holdfast" else core
        )


@needs(LOCKED_WHEELS)
@pytest.mark.parametrize("program", ["uvx", "pipx", "python3"])
@pytest.mark.slow
def test_the_demo_runs_from_the_wheels_alone(folder: Path, tmp_path: Path, program: str) -> None:
    """The locked versions are in the folder of the wheels, which stands for the registry of packages."""
    programs = Path(path_of(program)).parent
    shutil.copytree(folder, tmp_path / "dist", ignore=shutil.ignore_patterns("*.tar.gz"))
    for wheel in Path(path_of(LOCKED_WHEELS)).glob("*.whl"):
        (tmp_path / "dist" / wheel.name).symlink_to(wheel)
    done = subprocess.run(
        ["sh", "-euc", TRIALS[program]],
        cwd=tmp_path,
        env={
            "HOME": str(tmp_path / "home"),
            "PATH": f"{programs}:{os.defpath}",
            "PIP_NO_INDEX": "1",
            "UV_OFFLINE": "1",
            "UV_PYTHON": sys.executable,
            "UV_PYTHON_DOWNLOADS": "never",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "Every step succeeded." in done.stdout
