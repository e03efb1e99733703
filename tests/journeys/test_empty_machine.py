"""docs/installing.md and the backups of docs/operating.md, line for line, on an empty Debian with systemd.

``MACHINES=1`` runs it. The machine is a container of podman whose first process is systemd. Beside the pages' lines
it has what they take for granted: the names of the example, a certificate, a mail server, and for the card provider
its emulator.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest
from tests.certificates import Authority
from tests.containers import OF_THIS_MACHINE, ROOT, alone, environment, make_debian, podman
from tests.tools import needs, path_of

from .service_process import new_folder

TOOLS: Final = (
    "podman",
    "runc",
    "mmdebstrap",
    "iptables",
    "/usr/lib/podman/netavark",
    "/usr/lib/podman/aardvark-dns",
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("MACHINES" not in os.environ, reason="MACHINES=1 runs it, for ten minutes on each Debian"),
    *(needs(tool) for tool in TOOLS),
]

PAGES: Final = {name: (ROOT / "docs" / f"{name}.md").read_text("utf-8") for name in ("installing", "operating")}
EMPTY: Final = "systemd-sysv,dbus,ca-certificates"
STEP_S: Final = 1_200.0
MACHINE: Final = Path(__file__).parent / "machine"
"""What runs in the machine beside Holdfast."""
BOOTED: Final = "until systemctl is-system-running --wait | grep -E 'running|degraded'; do sleep 0.2; done"
"""Its start empties /tmp, where apt works."""
PAY: Final = """
call() { curl -sS --fail-with-body "$@"; }
amount='{"amount": "25.00"}'
order=$(call $api/v2/control/payments/cardprovider -H "Authorization: Bearer $session" -H "$json" -d "$amount")
intent=$(echo "$order" | pick '["provider_payment_id"]')
call http://127.0.0.1:7000/control/payment_intents/$intent/pay -H "$json" -d '{}'
until call $api/v2/control/payments/$(echo "$order" | pick '["order_id"]') -H "Authorization: Bearer $session" |
  grep '"credited"'; do sleep 0.2; done
echo "session=$session" > /run/session
"""
BALANCE: Final = """
. /run/session
curl -sS --fail-with-body https://api.example.com/v2/control/account -H "Authorization: Bearer $session" |
  python3 -c 'import json, sys; print(json.load(sys.stdin)["balance"])'
"""
NGINX: Final = """
systemctl stop haproxy
install -D -t /etc/ssl/holdfast fullchain.pem privkey.pem
export DEBIAN_FRONTEND=noninteractive
apt-get install -qq -y --no-install-recommends nginx
cp holdfast.conf /etc/nginx/conf.d/holdfast.conf
sed -i 's/worker_connections .*/worker_connections 4096;/' /etc/nginx/nginx.conf
nginx -t
systemctl reload-or-restart nginx
"""


def blocks(page: str, section: str) -> list[str]:
    """The code of a section of a page, in its order."""
    text = PAGES[page].partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^```(?:sh|nginx)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found, section
    return found


class Machine:
    """An empty Debian that runs."""

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, script: str, *, before: str = "") -> str:
        """Run lines as root would in the release's folder, until one fails; what they print.

        ``before`` is a line for the shell that runs them.
        """
        words = [
            "podman",
            "exec",
            "--workdir=/release",
            self.name,
            "sh",
            "-c",
            f'{before} exec sh -eu -c "$0"',
            script,
        ]
        done = subprocess.run(
            [path_of(words[0]), *words[1:]],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=STEP_S,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{self.log()}"
        return done.stdout

    def log(self) -> str:
        """What the services of the machine logged last."""
        return podman("exec", self.name, "journalctl", "--no-pager", "-n", "60", check=False)


@pytest.fixture(scope="module")
def release() -> Iterator[Path]:
    """A folder with what the page takes to each server, a certificate, and the programs of the machine."""
    folder = new_folder()
    subprocess.run(
        [sys.executable, ROOT / ".ci" / "dist.py", folder / "dist"],
        env={**environment(), "SOURCE_DATE_EPOCH": "1800000000"},
        check=True,
        capture_output=True,
    )
    for name in ("requirements", "deploy"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copytree(MACHINE, folder / "machine")
    authority = Authority(folder)
    shutil.copyfile("/etc/ssl/certs/ca-certificates.crt", folder / "authorities.crt")
    for host in ("api.example.com", "mail.example.com"):
        both = authority.issue(host).read_text()
        (folder / f"{host}.pem").write_text(both)
        if host.startswith("api"):
            for part in re.finditer(r"-----BEGIN ([A-Z ]+)-----.*?-----END \1-----\n", both, re.DOTALL):
                file = "fullchain.pem" if part[1] == "CERTIFICATE" else "privkey.pem"
                (folder / file).write_text(part[0])
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(params=["bookworm", "trixie"])
def machine(request: pytest.FixtureRequest, release: Path) -> Iterator[Machine]:
    """An empty machine of a suite, with the names and certificates of the example."""
    image = f"localhost/holdfast-tests-machine:{request.param}"
    with alone():
        make_debian(image, EMPTY)
    found = Machine(f"holdfast-test-{release.name}-{request.param}")
    mounted = [f"--volume={file}:{file}:ro" for file in OF_THIS_MACHINE if "pip" in file and Path(file).exists()]
    hosts = [f"--add-host={host}:127.0.0.1" for host in ("api.example.com", "mail.example.com")]
    # systemd and the protections of its units need the privileges of a machine's root.
    options = ("--detach", "--systemd=always", "--privileged", f"--volume={release}:/given:ro", *mounted, *hosts)
    podman("run", *options, f"--name={found.name}", image, "/sbin/init")
    try:
        podman("exec", found.name, "cp", "-r", "/given", "/release")
        found.run(BOOTED)
        found.run("cat authorities.crt authority.pem > /etc/ssl/certs/ca-certificates.crt")
        yield found
    finally:
        podman("rm", "--force", "--volumes", "--time=0", "--ignore", found.name)


def test_each_line_of_the_pages_works(machine: Machine) -> None:
    _, trial, program = blocks("installing", "The program")
    assert "venv trial" in trial
    assert "1.0.0" in machine.run(f"export DEBIAN_FRONTEND=noninteractive\n{program}")
    machine.run("systemctl start postgresql")
    machine.run("systemd-run --unit=mail python3 /release/machine/mail.py /release/mail.example.com.pem")
    [database] = blocks("installing", "The database")
    machine.run(database)
    emulators, settings = blocks("installing", "The settings")
    machine.run(emulators)
    assert "database at revision" in machine.run(settings)
    [units] = blocks("installing", "systemd")
    machine.run(units)
    haproxy, nginx = blocks("installing", "The proxy")
    machine.run(haproxy)
    ready = (
        "curl -sS --fail-with-body --retry 120 --retry-delay 1 --retry-all-errors https://api.example.com/readyz"
    )
    assert '{"ready":true,"database":true,' in machine.run(ready)

    # The provider of cards is the emulator.
    machine.run("systemd-run --unit=card /opt/holdfast/bin/python /release/machine/card.py")
    machine.run("cat machine/card.env >> /etc/holdfast.env && systemctl restart holdfast")
    machine.run(ready)
    sign_in, credit = blocks("installing", "The first customer")
    # The code comes through a pipe, into which the mail server writes it.
    printed = machine.run(sign_in + credit + PAY, before="exec 0<>/run/otp;")
    assert '"available_balance":"9.988"' in printed
    assert '"credited"' in printed

    backup, restore, *_ = blocks("operating", "Backups")
    machine.run(backup)
    weekday = datetime.now(UTC).isoweekday()
    printed = machine.run(restore.replace("-5.", f"-{weekday}."))
    assert "pass 1: 1 account," in printed
    assert "FAILED" not in printed
    assert machine.run(BALANCE) == "34.988\n"
    timers = ("holdfast-audit@recent.timer", "holdfast-audit@checkpoint.timer", "holdfast-backup.timer")
    assert machine.run(f"systemctl is-active {' '.join(timers)}").split() == ["active"] * 3
    machine.run("systemctl start holdfast-audit@recent holdfast-audit@checkpoint && systemctl reload holdfast")

    machine.run(f"cat > holdfast.conf <<'END'\n{nginx}END")
    machine.run(NGINX)
    assert '{"ready":true,"database":true,' in machine.run(ready)
    assert machine.run(BALANCE) == "34.988\n"
    assert machine.run("systemctl list-units --failed --quiet 'holdfast*' 'postgresql*' 'nginx*'") == ""
