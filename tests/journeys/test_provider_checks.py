"""``holdfast provider check`` against a running service: a real job, its callback, and what is wrong in words."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.forked_processes import run_holdfast

from holdfast.providers.signatures import sign

from .scripted_provider import (
    SECRET,
    Exchange,
    Script,
    ScriptedProvider,
    finished,
    prediction,
    scripted_provider,
)
from .service_process import Service, new_folder, running_service

PROMPT = "a lighthouse at dusk"
EXAMPLES = "".join(
    f"""
[[models]]
id = "probed/{name}"
upstream = {{ provider = "{provider}" }}
example_input = {{ prompt = "{name}" }}
"""
    for name, provider in (("failing", "scripted"), ("gone", "gone"), ("slow", "scripted"), ("good", "scripted"))
)


@dataclass
class Setup:
    service: Service
    provider: ScriptedProvider


@pytest.fixture(scope="module")
def setup() -> Iterator[Setup]:
    folder = new_folder()
    with scripted_provider() as provider:
        catalog = provider.write_catalog(folder)
        with catalog.open("a") as file:
            file.write(EXAMPLES)
        with running_service(folder, CATALOG=str(catalog)) as service:
            yield Setup(service, provider)


@pytest.fixture(scope="module")
def studio() -> Iterator[Service]:
    with running_service(new_folder()) as service:
        yield service


def check(service: Service, name: str, *options: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return command(service, "provider", "check", name, *options, **settings)


def command(service: Service, *words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run the command where the service runs: its address and token are found like the service's own."""
    return run_holdfast(*words, environment={**service.environment, **settings})


def split(line: str) -> list[str]:
    """Split a line of a probe: the result, the model, and what is detail."""
    return line.strip().split(maxsplit=2)


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


@pytest.mark.slow
def test_the_example_of_every_default_model_runs(studio: Service) -> None:
    done = command(studio, "catalog", "probe")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    lines = list(map(split, done.stdout.splitlines()))
    assert [(result, model) for result, model, _ in lines] == [
        ("-", "gateway/chat-1"),
        ("ok", "studio/image-1"),
        ("ok", "studio/edit-1"),
        ("ok", "studio/tone-1"),
        ("ok", "studio/clip-1"),
    ]
    for detail, kind in zip(lines[1:], ("image/png", "image/png", "audio/wav", "video/webm"), strict=True):
        assert kind in detail[2]
    assert lines[0][2] == "is priced only"
    assert studio.audit() == []


@pytest.mark.slow
def test_a_probe_goes_on_after_a_model_that_fails(setup: Setup) -> None:
    picture = setup.provider.file("picture.png")
    accepts: Any = calls_back(SECRET)
    setup.provider.scripts |= {
        "failing": Script(put=accepts, get=prediction("failed", error="out of memory")),
        "slow": Script(put=accepts),
        "good": Script(put=accepts, get=finished(picture)),
    }
    done = command(setup.service, "catalog", "probe", "--wait", "2")
    assert (done.returncode, done.stderr) == (1, "")
    lines = {model: (result, detail) for result, model, detail in map(split, done.stdout.splitlines())}
    assert {detail for model, (_, detail) in lines.items() if model.startswith("hand/")} == {"has no example_input"}
    probed = [(model, result) for model, (result, _) in lines.items() if model.startswith("probed/")]
    assert probed == [
        ("probed/failing", "FAILED"),
        ("probed/gone", "FAILED"),
        ("probed/slow", "FAILED"),
        ("probed/good", "ok"),
    ]
    assert lines["probed/failing"][1].endswith("outputs: the job ended as failed: out of memory")
    assert "connection: 127.0.0.1 cannot be connected to" in lines["probed/gone"][1]
    assert lines["probed/slow"][1].endswith("outputs: the job did not end within 2 s")
    assert "customers pay 1.00" in lines["probed/good"][1]
    assert "image/png" in lines["probed/good"][1]
    named = command(setup.service, "catalog", "probe", "probed/good")
    assert (named.returncode, len(named.stdout.splitlines())) == (0, 1), named.stdout


@pytest.mark.slow
def test_a_probe_of_an_unknown_model_runs_none(setup: Setup) -> None:
    done = command(setup.service, "catalog", "probe", "probed/good", "probed/none")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "Not in the catalog: probed/none\n")


def test_a_probe_is_refused_line_by_line(setup: Setup) -> None:
    """The service has a catalog of its own, which may be an older one."""
    changed = setup.service.data_dir / "changed.toml"
    changed.write_text(Path(setup.service.environment["HOLDFAST_CATALOG"]).read_text().replace("/good", "/new"))
    words = ("catalog", "probe", "probed/new")
    done = command(setup.service, *words, HOLDFAST_CATALOG=str(changed))
    assert (done.returncode, done.stderr) == (1, "")
    [result, model, reason] = split(done.stdout)
    assert (result, model) == ("FAILED", "probed/new")
    assert reason.startswith("The model 'probed/new' does not exist.")
    gone = command(setup.service, "catalog", "probe", "--url", "http://127.0.0.1:9")
    assert gone.returncode == 1
    assert gone.stderr.startswith("The service at http://127.0.0.1:9 cannot be reached: ")


@pytest.mark.slow
def test_a_wrong_secret_is_named(setup: Setup) -> None:
    url = setup.provider.file("picture.png")
    setup.provider.scripts[PROMPT] = Script(put=calls_back("not-the-secret"), get=finished(url))  # type: ignore[arg-type]
    done = check(setup.service, "scripted")
    assert done.returncode == 1, done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert line.split()[1] == "callback"
    assert "received and refused: its signature or token is wrong" in line


@pytest.mark.slow
def test_a_provider_that_is_gone_is_named(setup: Setup) -> None:
    done = check(setup.service, "gone")
    assert done.returncode == 1, done.stderr
    assert [line.split()[:2] for line in done.stdout.splitlines()[1:]] == [["FAILED", "connection"]]
    assert "cannot be connected to" in done.stdout


@pytest.mark.slow
def test_what_the_service_refuses_is_one_line(setup: Setup) -> None:
    done = check(setup.service, "absent")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "The provider 'absent' is not in the catalog.\n"
    wrong = check(setup.service, "scripted", HOLDFAST_OPERATOR_TOKEN="x" * 40)
    assert (wrong.returncode, len(wrong.stderr.splitlines())) == (1, 1)


@pytest.mark.slow
def test_a_service_that_is_not_there_is_one_line(studio: Service) -> None:
    done = check(studio, "studio", "--url", "http://127.0.0.1:9")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("The service at http://127.0.0.1:9 cannot be reached: ")
    assert len(done.stderr.splitlines()) == 1
