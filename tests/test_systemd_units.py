"""The systemd units of docs/operating.md agree with the service about sockets, signals and settings."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.settings import Settings

PAGE = (Path(__file__).parent.parent / "docs" / "operating.md").read_text("utf-8")
UNITS = dict(re.findall(r"`/etc/systemd/system/([\w.-]+)`.*?```ini\n(.*?)```", PAGE, re.DOTALL))


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(UNITS[name])
    return parser


def test_the_sockets_are_named_as_the_service_expects() -> None:
    service = unit("holdfast.service")
    sockets = [name for name in UNITS if name.endswith(".socket")]
    assert service["Service"]["Sockets"].split() == service["Unit"]["Requires"].split() == sockets
    named = {unit(name)["Socket"]["FileDescriptorName"]: unit(name)["Socket"] for name in sockets}
    assert named.keys() == {"public", "operators"}
    settings = dict(word.split("=") for word in shlex.split(service["Service"]["Environment"]))
    assert named["operators"]["ListenStream"].endswith(":" + settings["HOLDFAST_OPS_PORT"])
    known = {f"HOLDFAST_{field.alias}" for field in Settings.model_fields.values()}
    assert settings.keys() <= known


def test_the_commands_are_those_of_the_service() -> None:
    service = unit("holdfast.service")["Service"]
    assert service["ExecStart"].split()[1:] == ["serve"]
    assert service["ExecReload"].split()[1:] == ["-USR2", "$MAINPID"]
    assert service["RestartPreventExitStatus"] == "2"
    # The parent stops its children itself.
    assert service["KillMode"] == "mixed"
    assert float(service["TimeoutStopSec"]) > 2 * Settings.model_fields["shutdown_s"].default


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    for name, text in UNITS.items():
        (tmp_path / name).write_text(text.replace("/opt/holdfast/bin/holdfast", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *(str(tmp_path / name) for name in UNITS)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
