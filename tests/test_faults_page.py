"""docs/faults.md: each line names existing tests, and each fault of the harness has a line."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from torture.faults import FAULTS

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "faults.md"
_TEST = re.compile(r"`(?P<path>tests/[\w/]+\.py)::(?P<name>\w+)`")
_FAULTS = re.compile(r"\((?P<names>`[a-z-]+`(?:, `[a-z-]+`)*)\)")


def lines() -> list[str]:
    """The lines of the table, without its head."""
    return [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")][1:]


@cache
def functions_of(path: str) -> frozenset[str]:
    """The names of a module's test functions."""
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    found = (node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(name for name in found if name.startswith("test_"))


@pytest.mark.parametrize("line", lines(), ids=lambda line: line.split("|")[1].strip())
def test_each_promise_names_existing_tests(line: str) -> None:
    named = [(match["path"], match["name"]) for match in _TEST.finditer(line)]
    assert named
    assert [name for path, name in named if name not in functions_of(path)] == []


def test_each_torture_fault_has_a_promise() -> None:
    named = {
        name.strip("` ") for match in _FAULTS.finditer("\n".join(lines())) for name in match["names"].split(",")
    }
    assert named == set(FAULTS)
