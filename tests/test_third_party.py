"""THIRD_PARTY.md lists what is installed with Holdfast, and what the repository has of others."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "THIRD_PARTY.md").read_text("utf-8")
LICENCES = {
    package: licence
    for licence, packages in re.findall(
        r"^\| ([^|]+) \| ([^|]+) \|$", PAGE.partition("| Packages |")[2], re.MULTILINE
    )
    for package in packages.split(", ")
}


def test_each_locked_package_has_a_licence() -> None:
    locks = [
        (ROOT / "requirements" / f"{name}.lock").read_text()
        for name in ("runtime", "options", "build", "development")
    ]
    locked = {name for lock in locks for name in re.findall(r"^([\w.-]+)==", lock, re.MULTILINE)}
    assert LICENCES.keys() == locked


def test_the_licences_are_those_that_packages_state() -> None:
    stated = {}
    for package in LICENCES:
        try:
            stated[package] = metadata(package).json.get("license_expression")
        except PackageNotFoundError:
            continue  # of another Python or platform
    assert len(stated) > 60
    assert {each: licence for each, licence in stated.items() if licence not in (None, LICENCES[each])} == {}


def test_each_licence_of_others_in_the_sources_is_named() -> None:
    own = (ROOT / "LICENSE").read_bytes()
    found = [file for file in (ROOT / "src").rglob("LICENSE*") if file.read_bytes() != own]
    assert {file.relative_to(ROOT).as_posix() for file in found} == set(re.findall(r"\]\((src/[^)]+)\)", PAGE))
