"""The demo succeeds in a temporary folder, whatever the environment configures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from holdfast_emulators.demo import PICTURE


@pytest.mark.slow
def test_the_demo_succeeds_and_saves_the_pictures(tmp_path: Path) -> None:
    # Settings of the surrounding environment must not reach the demo's service.
    environment = {**os.environ, "HOLDFAST_ENV": "production", "HOLDFAST_PORT": "1", "COLUMNS": "160"}
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "demo"],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every step succeeded." in done.stdout
    assert "FAILED" not in done.stdout
    pictures = sorted((tmp_path / "demo-output").iterdir())
    assert len(pictures) == PICTURE["n"]
    for path in pictures:
        with Image.open(path) as image:
            image.load()
            assert image.size == (
                PICTURE["width"],
                PICTURE["height"],
            )


@pytest.mark.slow
def test_a_failing_step_is_named_and_ends_the_demo(tmp_path: Path) -> None:
    script = "import holdfast_emulators.demo as demo; demo.MODEL = 'studio/nothing'; raise SystemExit(demo.main())"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 1
    assert "Step 'list the models': the catalog lacks studio/nothing." in done.stdout
    assert "holdfast serves" in done.stdout
    assert not (tmp_path / "demo-output").exists()
