"""The units, settings and proxy of docs/installing.md agree with the service and with each other."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path
from secrets import token_urlsafe

import pytest

from holdfast.settings.settings import Settings, load_settings

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "installing.md").read_text("utf-8")
VARIABLES = dict(
    line.replace('"', "").split("=", 1) for line in re.findall(r"^HOLDFAST_\w+=.*$", PAGE, re.MULTILINE)
)
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
    assert service["Service"]["EnvironmentFile"] == "/etc/holdfast.env"
    assert named["public"]["ListenStream"].endswith(":" + VARIABLES["HOLDFAST_PORT"])
    assert named["operators"]["ListenStream"].endswith(":" + VARIABLES["HOLDFAST_OPS_PORT"])


def test_production_accepts_the_environment_file(tmp_path: Path) -> None:
    secret = "$(openssl rand -base64 32)"
    given = {name: token_urlsafe(32) if value == secret else value for name, value in VARIABLES.items()}
    assert len([name for name, value in VARIABLES.items() if value == secret]) == 4
    (tmp_path / "catalog.toml").touch()
    local = {"HOLDFAST_CATALOG": str(tmp_path / "catalog.toml"), "HOLDFAST_DATA_DIR": str(tmp_path)}
    settings = load_settings({**given, **local})
    assert settings.is_production
    assert settings.mail_from == "Example <no-reply@example.com>"


def test_the_proxies_send_everything_to_the_one_process() -> None:
    command = re.search(r"^(sed .*) > /etc/haproxy/haproxy.cfg$", PAGE, re.MULTILINE)
    assert command is not None
    done = subprocess.run(["sh", "-c", command[1]], cwd=ROOT, capture_output=True, text=True, check=True)
    public = "127.0.0.1:" + VARIABLES["HOLDFAST_PORT"]
    assert re.findall(r"^    server (.*)$", done.stdout, re.MULTILINE) == [f"{public} {public}"] * 2
    assert f"\n    server {public};\n" in PAGE  # nginx
    assert VARIABLES["HOLDFAST_TRUSTED_PROXIES"] == "127.0.0.1"


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
