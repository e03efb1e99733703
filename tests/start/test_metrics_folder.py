"""The folder of the workers' metrics: it ends with its parent, or is removed by a later one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.settings.settings import SettingsFault
from holdfast.start.parent.parent import metrics_folder

HOLDER = """
import signal
from holdfast.start.parent.parent import metrics_folder
with metrics_folder() as folder:
    print(folder, flush=True)
    signal.pause()
"""


@pytest.fixture(autouse=True)
def folder_of_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Another folder for temporary files."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield tmp_path
    tempfile.tempdir = None


def make_old(folder: Path) -> None:
    os.utime(folder, (0, 0))


def test_only_folders_without_a_parent_are_removed(folder_of_folders: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        theirs = Path(other.stdout.readline().strip())
        make_old(theirs)
        with metrics_folder() as mine:
            assert sorted(folder_of_folders.iterdir()) == sorted([theirs, Path(mine)])
        other.send_signal(signal.SIGKILL)
    assert list(folder_of_folders.iterdir()) == [theirs]
    make_old(theirs)
    with metrics_folder() as mine:
        assert list(folder_of_folders.iterdir()) == [Path(mine)]
    assert list(folder_of_folders.iterdir()) == []


def test_the_folder_is_in_the_runtime_directory_if_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    monkeypatch.setenv("RUNTIME_DIRECTORY", f"{runtime}:{tmp_path / 'another'}")
    with metrics_folder() as mine:
        assert list(runtime.iterdir()) == [Path(mine)]
    assert list(runtime.iterdir()) == []


def test_a_runtime_directory_that_takes_no_folder_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path / "absent"))
    with (
        pytest.raises(SettingsFault, match="absent: no folder for metrics can be made: No such file"),
        metrics_folder(),
    ):
        pass


def test_a_folder_that_may_not_be_locked_yet_stays(folder_of_folders: Path) -> None:
    young = folder_of_folders / "holdfast-metrics-young"
    young.mkdir()
    (young / "lock").touch()
    with metrics_folder():
        assert young.exists()
    make_old(young)
    with metrics_folder():
        assert not young.exists()
