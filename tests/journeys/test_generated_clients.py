"""Clients that generators make of the OpenAPI document compile, and run one journey against a running service.

Each program in the folder ``generated`` signs in, gets credit, prices and runs a task, and asks for one that does
not exist. openapi-python-client leaves out the bodies of media, as that of ``fetch_asset``.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Final

import pytest
from tests.tools import CLIENTS, CLIENTS_NODE, needs, path_of

from holdfast.http.endpoints.api_docs import document_for

from .service_process import Service

PROGRAMS: Final = Path(__file__).with_name("generated")
WITHIN_S: Final = 300
GENERATORS: Final = {"python": "python", "typescript-fetch": "typescript/client", "go": "go"}
"""What openapi-generator makes, and where."""
LEFT_OUT: Final = dict.fromkeys(("apiDocs", "modelDocs", "apiTests", "modelTests"), "false")

pytestmark = needs(CLIENTS_NODE)


def run(folder: Path, *command: str | Path) -> str:
    """Run a program of the generators' environment in a folder, and return what it printed."""
    # The toolchains use what is installed, and ask no server.
    environment = os.environ | {
        "PATH": f"{CLIENTS / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(folder),
        "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "GOFLAGS": "-mod=mod",
        "GOPROXY": "off",
        "GOTOOLCHAIN": "local",
    }
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, check=False, text=True, timeout=WITHIN_S
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def node(folder: Path, *command: str | Path) -> str:
    """Run a program of JavaScript."""
    return run(folder, path_of(CLIENTS_NODE), *command)


def generate(folder: Path, document: bytes) -> None:
    """Generate all clients into an empty folder, next to the programs that use them."""
    (folder / "openapi.json").write_bytes(document)
    for name, place in GENERATORS.items():
        wanted: dict[str, object] = {"generatorName": name, "inputSpec": "openapi.json", "outputDir": place}
        wanted |= {"globalProperties": LEFT_OUT}
        (folder / f"{name}.json").write_text(json.dumps(wanted), encoding="utf-8")
    # One Java runtime for all of them.
    run(folder, "openapi-generator-cli", "batch", "--threads", "1", *(f"{name}.json" for name in GENERATORS))
    run(
        folder, "openapi-python-client", "generate", "--path", "openapi.json", "--meta", "none",
        "--output-path", "python/python_client",
    )  # fmt: skip
    node(
        folder,
        CLIENTS / "node_modules/openapi-typescript/bin/cli.js",
        "openapi.json",
        "-o",
        "typescript/schema.d.ts",
    )
    (folder / "typescript/node_modules").symlink_to(CLIENTS / "node_modules")
    (folder / "go/journey").mkdir()
    for program in PROGRAMS.iterdir():
        target = {".py": "python", ".ts": "typescript", ".go": "go/journey"}.get(program.suffix)
        if target is not None:
            shutil.copy(program, folder / target)


@pytest.fixture(scope="module")
def generated() -> Path:
    """Generate the clients, unless those of the same document are there from an earlier run."""
    document = document_for("https://holdfast.example").plain
    sources = [document, Path(__file__).read_bytes(), (CLIENTS / "package-lock.json").read_bytes()]
    sources += [each.read_bytes() for each in sorted(PROGRAMS.iterdir()) if each.is_file()]
    # The versions of everything installed.
    sources += [each.name.encode() for each in sorted(CLIENTS.glob("lib/python*/site-packages/*.dist-info"))]
    place = Path(sys.prefix) / "generated" / hashlib.sha256(b"".join(sources)).hexdigest()[:16]
    if not place.exists():
        shutil.rmtree(place.parent, ignore_errors=True)
        place.parent.mkdir()
        made = Path(tempfile.mkdtemp(dir=place.parent))
        generate(made, document)
        made.rename(place)
    return place


def journey_of(printed: str) -> dict[str, object]:
    """Return what a program saw; its account began with one credit."""
    found: dict[str, object] = json.loads(printed)
    left = Decimal(1) - Decimal(str(found["cost"]))
    assert Decimal(str(found.pop("available"))) == left < 1
    assert found.pop("cost") == found.pop("quoted")
    return found


SEEN: Final = {"status": "succeeded", "outputs": 1, "listed": 1, "code": "task_not_found"}


@pytest.mark.parametrize(
    ("package", "program"),
    [("python_client", "openapi_python_client.py"), ("openapi_client", "generator_python.py")],
)
@pytest.mark.slow
def test_python(generated: Path, shared_service: Service, package: str, program: str) -> None:
    folder = generated / "python"
    run(
        folder, sys.executable, "-m", "mypy", "--config-file=", "--python-executable", CLIENTS / "bin/python",
        "--disable-error-code=import-untyped", "--cache-dir", CLIENTS / "mypy", package, program,
    )  # fmt: skip
    assert journey_of(run(folder, CLIENTS / "bin/python", program, shared_service.url)) == SEEN


@pytest.mark.slow
def test_openapi_typescript(generated: Path, shared_service: Service) -> None:
    folder = generated / "typescript"
    node(
        folder, CLIENTS / "node_modules/typescript/bin/tsc", "--strict", "--noEmit", "--allowImportingTsExtensions",
        "--target", "es2022", "--module", "esnext", "--moduleResolution", "bundler", "openapi_typescript.ts",
    )  # fmt: skip
    assert journey_of(node(folder, "openapi_typescript.ts", shared_service.url)) == SEEN


@pytest.mark.slow
def test_openapi_generator_typescript_fetch(generated: Path, shared_service: Service) -> None:
    folder = generated / "typescript"
    node(
        folder, CLIENTS / "node_modules/typescript/bin/tsc", "--strict", "--outDir", "built",
        "--target", "es2022", "--module", "nodenext", "generator_typescript.ts",
    )  # fmt: skip
    assert journey_of(node(folder, "built/generator_typescript.js", shared_service.url)) == SEEN


@pytest.mark.slow
def test_openapi_generator_go(generated: Path, shared_service: Service) -> None:
    folder = generated / "go"
    run(folder, "go", "build", "-o", "journey/journey", "./journey")
    assert journey_of(run(folder, folder / "journey/journey", shared_service.url)) == SEEN
