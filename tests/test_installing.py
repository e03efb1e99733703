"""The units, settings and proxy of docs/installing.md agree with the service and with each other."""

from __future__ import annotations

import configparser
import re
import shlex
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from holdfast.commands.cli import app
from holdfast.settings.env_file import parse_env_file
from holdfast.settings.settings import Settings, load_settings
from holdfast.start.exit_codes import BAD_CONFIGURATION

from .tools import needs

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "installing.md").read_text("utf-8")


def variables() -> dict[str, str]:
    """The settings that the page's `holdfast init` writes."""
    command = re.search(r"^/opt/holdfast/bin/holdfast (init systemd \S+ (?:.*\\\n)*.*)$", PAGE, re.MULTILINE)
    assert command is not None
    with TemporaryDirectory() as folder:
        words = shlex.split(command[1].replace("\\\n", "").replace("/etc", folder))
        done = CliRunner().invoke(app, words, catch_exceptions=False)
        assert done.exit_code == 0, done.stderr
        return parse_env_file((Path(folder) / "holdfast.env").read_bytes()).variables


VARIABLES = variables()
UNITS = {file.name: file.read_text("utf-8") for file in sorted((ROOT / "deploy" / "systemd").iterdir())}
SERVICES = [name for name in UNITS if name.endswith(".service")]
EXPOSURE_MAX = 2.0


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(UNITS[name])
    return parser


def directives(name: str) -> list[str]:
    """The unit's lines in their order; of those that it repeats, all."""
    return [line for line in UNITS[name].splitlines() if line and not line.startswith("#")]


def test_the_page_installs_every_unit_of_the_service(tmp_path: Path) -> None:
    for files in re.findall(r"^cp (deploy/systemd/.*) /etc/systemd/system/$", PAGE, re.MULTILINE):
        subprocess.run(["sh", "-c", f"cp {files} {tmp_path}"], cwd=ROOT, check=True)
    assert {file.name for file in tmp_path.iterdir()} == UNITS.keys() - {"holdfast-places.service"}
    enabled = " ".join(re.findall(r"^systemctl enable --now (.*)$", PAGE, re.MULTILINE))
    installable = {name.removesuffix(".service") for name in UNITS if "[Install]" in UNITS[name]}
    assert set(enabled.split()) == installable - {"holdfast-places"}


def test_all_services_have_one_sandbox() -> None:
    begin = "UMask=0077"
    sandboxes = [directives(name)[directives(name).index(begin) :] for name in SERVICES]
    [own] = [each for name, each in zip(SERVICES, sandboxes, strict=True) if name == "holdfast.service"]
    own.remove("SystemCallFilter=setpriority")
    [common] = {
        tuple(line for line in each if line not in ("[Install]", "WantedBy=multi-user.target"))
        for each in sandboxes
    }
    assert "NoNewPrivileges=yes" in common


def test_the_sockets_are_named_as_the_service_expects() -> None:
    service = unit("holdfast.service")
    sockets = [name for name in UNITS if name.endswith(".socket")]
    assert service["Service"]["Sockets"].split() == service["Unit"]["Requires"].split()
    assert sorted(service["Service"]["Sockets"].split()) == sockets
    named = {unit(name)["Socket"]["FileDescriptorName"]: unit(name)["Socket"] for name in sockets}
    assert named.keys() == {"public", "operators"}
    assert service["Service"]["EnvironmentFile"] == "/etc/holdfast.env"
    assert named["public"]["ListenStream"].endswith(":" + VARIABLES["HOLDFAST_PORT"])
    assert named["operators"]["ListenStream"].endswith(":" + VARIABLES["HOLDFAST_OPS_PORT"])


def test_production_accepts_the_environment_file(tmp_path: Path) -> None:
    (tmp_path / "catalog.toml").touch()
    local = {"HOLDFAST_CATALOG": str(tmp_path / "catalog.toml"), "HOLDFAST_DATA_DIR": str(tmp_path)}
    settings = load_settings({**VARIABLES, **local})
    assert settings.is_production
    assert settings.mail_from == "Example <no-reply@example.com>"


def test_the_proxies_send_everything_to_the_one_process() -> None:
    command = re.search(r"^(sed .*) > /etc/haproxy/haproxy.cfg$", PAGE, re.MULTILINE)
    assert command is not None
    done = subprocess.run(["sh", "-c", command[1]], cwd=ROOT, capture_output=True, text=True, check=True)
    public = "127.0.0.1:" + VARIABLES["HOLDFAST_PORT"]
    server = f'"${{MEMBER_1-{public}}}"'
    assert re.findall(r"^    server (.*)$", done.stdout, re.MULTILINE) == [f"{server} {server}"] * 2
    assert re.findall(r"^\.\w+", done.stdout, re.MULTILINE) == []
    assert f"\n    server {public};\n" in PAGE  # nginx
    assert VARIABLES["HOLDFAST_TRUSTED_PROXIES"] == "127.0.0.1"


def test_the_commands_are_those_of_the_service() -> None:
    service = unit("holdfast.service")["Service"]
    # By the link to the release, not by a script that names its environment: a roll follows the link.
    assert service["ExecStart"] == "/opt/holdfast/bin/python -m holdfast serve"
    assert service["ExecReload"].split()[1:] == ["-USR2", "$MAINPID"]
    assert service["RestartPreventExitStatus"] == str(BAD_CONFIGURATION)
    # Else some quick failures would be the last start, and close the sockets.
    assert unit("holdfast.service")["Unit"]["StartLimitIntervalSec"] == "0"
    assert float(service["RestartSec"]) >= 1
    assert VARIABLES["HOLDFAST_DATA_DIR"] == f"/var/lib/{service['StateDirectory']}"
    # The parent stops its children itself.
    assert service["KillMode"] == "mixed"
    assert float(service["TimeoutStopSec"]) > 2 * Settings().shutdown_s


needs_systemd = needs("systemd-analyze")


@needs_systemd
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    for name, text in UNITS.items():
        (tmp_path / name).write_text(re.sub(r"/opt/holdfast/bin/\w+|/usr/local/sbin/\S+", sys.executable, text))
    # What the timers start are instances.
    for name in ("recent", "checkpoint"):
        (tmp_path / f"holdfast-audit@{name}.service").symlink_to("holdfast-audit@.service")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, tmp_path.iterdir())],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@needs_systemd
@pytest.mark.parametrize("name", SERVICES)
def test_systemd_rates_the_exposure_of_each_service_below_two(name: str) -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", f"deploy/systemd/{name}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = re.search(r"Overall exposure level for \S+: ([\d.]+) ", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) < EXPOSURE_MAX


def test_the_audits_take_the_options_that_their_timers_name() -> None:
    group: Any = typer.main.get_command(app)
    command = unit("holdfast-audit@.service")["Service"]["ExecStart"]
    for name in UNITS:
        if name.startswith("holdfast-audit@") and name.endswith(".timer"):
            instance = name.partition("@")[2].removesuffix(".timer")
            words = command.replace("%i", instance).split()[1:]
            assert group.commands[words[0]].make_context(words[0], words[1:]).params[instance] is True


def test_the_docs_put_no_token_on_a_command_line_and_source_no_file() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        text = page.read_text("utf-8")
        assert re.search(r"curl[^\n]*(\$operator|OPERATOR_TOKEN|\$token)", text) is None, page
        assert re.search(r"^(\. /|source |set -a|#!/bin/sh -a)", text, re.MULTILINE) is None, page


def test_the_operators_token_reaches_the_service_through_a_pipe(tmp_path: Path) -> None:
    """And no argument of a program has it, which other users could read."""
    [function] = re.findall(r"^operator\(\) \{ .* \}$", PAGE, re.MULTILINE)
    (tmp_path / "holdfast.env").write_text("HOLDFAST_PORT=1\nHOLDFAST_OPERATOR_TOKEN=a/token+of=\n")
    seen = tmp_path / "seen"
    curl = tmp_path / "curl"
    curl.write_text(f'#!/bin/sh\n{{ printf "%s\\n" "$@"; echo --; cat; }} > {seen}\n')
    curl.chmod(0o755)
    script = function.replace("/etc/holdfast.env", str(tmp_path / "holdfast.env")) + "\noperator http://a/b -d c"
    subprocess.run(["sh", "-euc", script], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=True)
    lines = seen.read_text().splitlines()
    assert lines[lines.index("--") + 1 :] == ["Authorization: Bearer a/token+of="]
    assert "token" not in " ".join(lines[: lines.index("--")])
