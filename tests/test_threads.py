"""No module uses trio's default thread limiter: each purpose has its own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import holdfast

SOURCE = Path(holdfast.__file__).parent
USES_THREADS_OF_ITS_OWN_CHOICE = {
    "trio.Path": "runs each method in a thread of the default limiter",
    "trio.open_file": "reads and writes in threads of the default limiter",
    "trio.wrap_file": "reads and writes in threads of the default limiter",
    "trio.socket.getaddrinfo": "look up names by NameLookups, which waits for a short time",
}


MAY_USE_THREADS = re.compile(r"\brun_sync\b|\btrio\.(?:Path|open_file|wrap_file|socket)\b|\bfrom trio\b")
"""Only the modules with such a text are parsed."""


def faults_of(source: str) -> Iterator[str]:
    """The lines of a module that would run something in a thread of the default limiter."""
    if not MAY_USE_THREADS.search(source):
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("to_thread.run_sync"):
            if "limiter" not in {keyword.arg for keyword in node.keywords}:
                yield f"{node.lineno}: to_thread.run_sync without a limiter"
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in USES_THREADS_OF_ITS_OWN_CHOICE:
            yield f"{node.lineno}: {ast.unparse(node)} {USES_THREADS_OF_ITS_OWN_CHOICE[ast.unparse(node)]}"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "trio":
            # An alias would hide them from this test.
            yield f"{node.lineno}: from trio import"


def test_no_module_uses_the_default_limiter() -> None:
    modules = sorted(SOURCE.rglob("*.py"))
    assert len(modules) > 100
    found = [
        f"{path.relative_to(SOURCE)}:{fault}" for path in modules for fault in faults_of(path.read_text("utf-8"))
    ]
    assert found == []


def test_every_use_of_the_default_limiter_is_detected() -> None:
    for line in (
        "await trio.to_thread.run_sync(work)",
        "await trio.to_thread.run_sync(work, abandon_on_cancel=True)",
        "await trio.Path(x).unlink()",
        "await trio.open_file(x)",
        "await trio.socket.getaddrinfo(host, 80)",
        "from trio import Path",
        "from trio.to_thread import run_sync",
    ):
        module = line if line.startswith("from") else f"async def run():\n    {line}\n"
        assert len(list(faults_of(module))) == 1, line
    assert not list(faults_of("async def run():\n    await trio.to_thread.run_sync(work, limiter=mine)\n"))
