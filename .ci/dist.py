"""Build every distribution: a wheel, a source archive, and a bill of materials in the form of CycloneDX.

Usage: SOURCE_DATE_EPOCH=SECONDS python .ci/dist.py FOLDER. All times in the files are that one: the same tree and
time give the same bytes. A wheel that is built from a source archive is the same wheel.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tomllib
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from packageurl import PackageURL

ROOT = Path(__file__).parents[1]
CORE = "holdfast-credits"
# A line of a lock: a package, its version, and where it is needed.
PIN = re.compile(r"^([\w.-]+)==([^\s;]+)(?: ; (.+?))? \\$", re.MULTILINE)
# What a script of others is, as the licence beside it says.
SCRIPT = re.compile(r"of the npm package (@[\w-]+/[\w-]+|[\w-]+) (\d+(?:\.\d+)+)")


def build(folder: Path) -> None:
    """Write everything into a folder, which is made."""
    made = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), UTC)
    for project in (ROOT, *sorted((ROOT / "src").glob("holdfast_*"))):
        described = tomllib.loads((project / "pyproject.toml").read_text("utf-8"))["project"]
        for builder in (SdistBuilder, WheelBuilder):
            [file] = builder(str(project)).build(directory=str(folder), versions=["standard"])
        wheel = Path(file)
        bill = folder / f"{wheel.name.removesuffix('-py3-none-any.whl')}.cdx.json"
        bill.write_text(bill_of_materials(described, wheel, made), "utf-8")


def bill_of_materials(described: dict[str, Any], wheel: Path, made: datetime) -> str:
    """Return the bill of a wheel: what production installs, by the lock, and the scripts that the core contains."""
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    root = _component(described["name"], described["version"], ComponentType.APPLICATION)
    root.description = described["description"]
    root.licenses.add(LicenseExpression(described["license"]))
    root.hashes.add(HashType(alg=HashAlgorithm.SHA_256, content=digest))
    parts = list(_locked())
    if described["name"] == CORE:
        texts = [file.read_text("utf-8") for file in sorted((ROOT / "src" / "holdfast").rglob("LICENSE*"))]
        parts += [_component(each[1], each[2], kind="npm") for text in texts for each in SCRIPT.finditer(text)]
    else:
        parts.append(_component(CORE, described["version"]))
    bill = Bom(
        components=parts,
        metadata=BomMetaData(component=root, timestamp=made),
        serial_number=uuid.uuid5(uuid.NAMESPACE_OID, digest),
    )
    bill.register_dependency(root, parts)
    return JsonV1Dot6(bill).output_as_string(indent=2) + "\n"


def _locked() -> Iterator[Component]:
    """Yield the packages of the lock of production; one that some Pythons or systems need says which."""
    for name, version, marker in PIN.findall((ROOT / "requirements" / "runtime.lock").read_text("utf-8")):
        part = _component(name, version)
        if marker:
            part.properties.add(Property(name="python:marker", value=marker))
        yield part


def _component(
    name: str, version: str, type_: ComponentType = ComponentType.LIBRARY, *, kind: str = "pypi"
) -> Component:
    namespace, _, short = name.rpartition("/")
    address = PackageURL(kind, namespace=namespace or None, name=short, version=version)
    return Component(name=name, version=version, type=type_, purl=address, bom_ref=str(address))


if __name__ == "__main__":
    build(Path(sys.argv[1]))
