"""Tests of programs that are not installed are skipped, whichever program it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import tools
from .tools import CLIENTS_NODE, LOCKED_WHEELS, needs, path_of


@pytest.mark.parametrize("tool", ["curl", "chromium", "haproxy", "promtool", "podman", CLIENTS_NODE, LOCKED_WHEELS])
def test_a_tool_that_is_absent_skips_with_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tool: str
) -> None:
    monkeypatch.setattr(tools, "_PATH", str(tmp_path))
    monkeypatch.setattr(tools, "CLIENTS", tmp_path)
    monkeypatch.setattr(tools, "WHEELS", tmp_path)
    mark = needs(tool).mark
    assert (mark.args, mark.kwargs) == ((True,), {"reason": f"{tool} is not installed"})
    with pytest.raises(pytest.skip.Exception, match=f"^{tool} is not installed$"):
        path_of(tool)


def test_a_tool_that_is_there_skips_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "haproxy"
    program.touch(0o755)
    monkeypatch.setattr(tools, "_PATH", str(tmp_path))
    assert needs("haproxy").mark.args == (False,)
    assert path_of("haproxy") == str(program)


def test_no_test_looks_for_its_program_itself() -> None:
    folder = Path(__file__).parent
    modules = [each for each in folder.rglob("*.py") if each.name not in {"tools.py", Path(__file__).name}]
    assert [each.name for each in modules if "shutil.which" in each.read_text("utf-8")] == []
