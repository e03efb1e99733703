"""docs/architecture.md shows what is there: the packages, the supervisor tree, the path of an amount."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import msgspec
import pytest

from holdfast.settings.settings import load_settings
from holdfast.sockets.emulator_sockets import open_emulator_sockets
from holdfast.supervision.supervisor import Supervisor
from holdfast.wiring.assembly import assemble

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "holdfast"
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
SHOWN_TO_DEPTH = 2


def block_below(heading: str) -> list[str]:
    """The lines of the first fenced block below a heading."""
    found = re.search(rf"^## {heading}$.*?^```$\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, f"no block below {heading!r}"
    return found[1].splitlines()


def test_every_package_is_shown_and_exists() -> None:
    shown: set[str] = set()
    parents: list[str] = []
    for line in block_below("Packages")[1:]:
        indent = (len(line) - len(line.lstrip())) // 2 - 1
        parents = parents[:indent]
        if found := re.match(r"\s*(\w+)/", line):
            parents.append(found[1])
            shown.add("/".join(parents))
    packages = {path.parent.relative_to(SOURCE) for path in SOURCE.rglob("*.py")}
    there = {path.as_posix() for path in packages if 0 < len(path.parts) <= SHOWN_TO_DEPTH}
    assert shown == there


def test_the_supervisor_tree_is_the_one_that_runs(tmp_path: Path) -> None:
    settings = load_settings({"HOLDFAST_DATA_DIR": str(tmp_path), "HOLDFAST_ENV": "development"})
    emulators = open_emulator_sockets(settings)
    tree = assemble(
        msgspec.structs.replace(settings, **emulators.ports),
        database_url="postgresql:///",
        local_url="http://127.0.0.1:8000",
        emulator_sockets=emulators,
    ).tree
    lines = block_below("The supervisor tree")
    children = [line.split()[1] for line in lines if line.startswith(("├──", "└──"))]
    assert children == [*(child.child_id for child in tree.children()), "http"]
    shown = "\n".join(lines)
    [workers] = [child.spec.start() for child in tree._children if child.spec.child_id == "workers"]
    assert isinstance(workers, Supervisor)
    names = [child.child_id for child in workers.children()]
    assert len(names) == 25
    assert [name for name in names if not re.search(rf"(?<![\w-]){name}(?![\w-])", shown)] == []
    emulators.close()


def functions_on_the_path() -> list[str]:
    section = PAGE.partition("### The path of `amount`\n")[2].partition("\n#")[0]
    rows = re.findall(r"^\| \w+ \| (.+?) \|", section, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([\w.]+:[\w.]+)`", row)]


def test_a_path_is_described_from_the_request_to_the_reply() -> None:
    functions = functions_on_the_path()
    assert len(functions) >= 8
    assert functions.index("actors.account.units:AccountUnits.change") > 3


@pytest.mark.parametrize("name", functions_on_the_path())
def test_a_function_on_the_described_path_exists(name: str) -> None:
    module, _, path = name.partition(":")
    found: object = importlib.import_module(f"holdfast.{module}")
    for part in path.split("."):
        found = getattr(found, part)
    assert callable(found)
