"""Programs of users: a few lines for a client's library, run unmodified in a process of its own against a service.

A program finds ``given`` (its values), and prints one JSON value as its last line by ``show(value)``.
"""

from __future__ import annotations

import ast
import json
import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import trio
from tests.forked_processes import fork_process
from tests.tools import CLIENTS, CLIENTS_NODE, path_of

PYTHON = Path(os.environ.get("CLIENTS_PYTHON", sys.executable))
"""The Python whose clients have a newer version than there."""
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

LIBRARIES = frozenset({"litellm", "openai", "replicate"})
"""What takes a second or more to import."""


async def run_python(
    program: str, given: dict[str, Any], python: Path = PYTHON, *, within_s: float = PROGRAM_S
) -> Any:
    """Run a program in Python, of this environment or of another."""
    imported = {
        each.name for node in ast.parse(program).body if isinstance(node, ast.Import) for each in node.names
    }
    with tempfile.TemporaryDirectory(prefix="holdfast-program-") as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        start = partial(
            fork_process,
            PYTHON_START + program,
            python=str(python),
            modules=sorted(LIBRARIES & imported),
            folder=Path(folder),
            environment={**_environment(), "GIVEN": json.dumps(given)},
            out=out,
            err=err,
        )
        process = await trio.to_thread.run_sync(start)
        try:
            with trio.fail_after(within_s):
                code = await trio.to_thread.run_sync(process.wait, abandon_on_cancel=True)
        finally:
            process.kill_group()
        return _shown(code, *map(Path.read_bytes, (out, err)))


async def run_node(program: str, given: dict[str, Any], *, within_s: float = PROGRAM_S) -> Any:
    """Run an ECMAScript module in Node."""
    with trio.fail_after(within_s):
        # Node finds its modules from the working directory.
        done = await trio.run_process(
            [path_of(CLIENTS_NODE), "--input-type=module", "--eval", NODE_START + program],
            cwd=CLIENTS,
            env={**_environment(), "GIVEN": json.dumps(given)},
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
    return _shown(done.returncode, done.stdout, done.stderr)


def _environment() -> dict[str, str]:
    return {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}


def _shown(code: int, out: bytes, err: bytes) -> Any:
    assert code == 0, err.decode()[-4000:]
    return json.loads(out.splitlines()[-1])
