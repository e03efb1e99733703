"""``holdfast provider check`` against a running service: a real job, its callback, and what is wrong in words."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import httpx2
import pytest

from holdfast.providers.signatures import sign

from .scripted_provider import Exchange, Script, ScriptedProvider, finished, prediction, scripted_provider
from .service_process import Service, new_folder, running_service

PROMPT = "a lighthouse at dusk"


@dataclass
class Setup:
    service: Service
    provider: ScriptedProvider


@pytest.fixture(scope="module")
def setup() -> Iterator[Setup]:
    folder = new_folder()
    with (
        scripted_provider() as provider,
        running_service(folder, CATALOG=str(provider.write_catalog(folder))) as service,
    ):
        yield Setup(service, provider)


@pytest.fixture(scope="module")
def studio() -> Iterator[Service]:
    with running_service(new_folder()) as service:
        yield service


def check(service: Service, name: str, *options: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run the command where the service runs: its address and token are found like the service's own."""
    command = [sys.executable, "-m", "holdfast", "provider", "check", name, *options]
    environment = {**service.environment, **settings}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=False)


def calls_back(secret: str) -> object:
    """Accept the submission, and send a callback that is signed with ``secret``."""

    def answer(exchange: Exchange) -> None:
        submitted = json.loads(exchange.body)

        def send() -> None:
            # After the response to the submission.
            time.sleep(0.1)
            client = submitted["client"]
            body = json.dumps({"event_id": "evt_1", "status": "processing", **client}).encode()
            header = sign(secret, body, at=int(time.time()), key_name="scripted")
            httpx2.post(submitted["webhook"], content=body, headers={"X-Callback-Signature": header})

        threading.Thread(target=send, daemon=True).start()
        prediction("starting")(exchange)

    return answer


def test_the_studio_passes_every_step(studio: Service) -> None:
    done = check(studio, "studio")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    first, *steps = done.stdout.splitlines()
    assert first.startswith("provider studio, one job of studio/")
    assert [line.split()[:2] for line in steps] == [
        ["ok", name] for name in ("connection", "submission", "callback", "poll", "outputs")
    ]
    assert "received and verified" in steps[2]
    # No account, no task and no operation was involved.
    assert studio.audit() == []
    token = (studio.data_dir / "secrets" / "operator_token").read_text().strip()
    listed = httpx2.get(f"{studio.url}/ops/api/actions", headers={"Authorization": f"Bearer {token}"})
    actions = listed.json()["data"]
    assert [(each["action"], each["target"], each["result"]) for each in actions] == [
        ("check_provider", "studio", "done")
    ]


def test_a_wrong_secret_is_named(setup: Setup) -> None:
    url = setup.provider.file("picture.png")
    setup.provider.scripts[PROMPT] = Script(put=calls_back("not-the-secret"), get=finished(url))  # type: ignore[arg-type]
    done = check(setup.service, "scripted")
    assert done.returncode == 1, done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert line.split()[1] == "callback"
    assert "received and refused: its signature or token is wrong" in line


def test_a_provider_that_is_gone_is_named(setup: Setup) -> None:
    done = check(setup.service, "gone")
    assert done.returncode == 1, done.stderr
    assert [line.split()[:2] for line in done.stdout.splitlines()[1:]] == [["FAILED", "connection"]]
    assert "cannot be connected to" in done.stdout


def test_what_the_service_refuses_is_one_line(setup: Setup) -> None:
    done = check(setup.service, "absent")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "The provider 'absent' is not in the catalog.\n"
    wrong = check(setup.service, "scripted", HOLDFAST_OPERATOR_TOKEN="x" * 40)
    assert (wrong.returncode, len(wrong.stderr.splitlines())) == (1, 1)


def test_a_service_that_is_not_there_is_one_line(studio: Service) -> None:
    done = check(studio, "studio", "--url", "http://127.0.0.1:9")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("The service at http://127.0.0.1:9 cannot be reached: ")
    assert len(done.stderr.splitlines()) == 1
