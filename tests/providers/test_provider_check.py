"""The check of a provider, step by step, with a provider and callbacks as a test sets them."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
import trio.testing
from tests.certificates import Authority

from holdfast.ledger.tasks.provider_update import CancelOutcome, Output, ProviderUpdate, ReportedError, UpdateStatus
from holdfast.providers.media import provider_check
from holdfast.providers.media.base import Accepted, Job, JobCallFault, NotSent, Rejected, Submission
from holdfast.providers.media.health import ProviderHealth
from holdfast.providers.media.provider_check import (
    CALLBACK_LATE_S,
    CheckCallback,
    CheckStep,
    ProviderCheck,
    connection_fault,
)

JOB = Job("check_1", 1, "poster", {}, "https://holdfast.test/v2/callback?seal=1")
PICTURE = Output(index=0, url="https://studio.test/0.png", content_type="image/png")


def update(status: UpdateStatus, *outputs: Output, **fields: object) -> ProviderUpdate:
    return ProviderUpdate(
        source="poll",
        provider="studio",
        event_id=f"evt_{status}",
        request_id="check_1",
        attempt=1,
        status=status,
        outputs=outputs,
        **fields,  # type: ignore[arg-type]  # of the right types
    )


@dataclass
class FakeProvider:
    """A provider that answers as a test sets it; the last poll is repeated."""

    submission: Submission = field(default_factory=lambda: Accepted("job_1", "queued"))
    polled: list[ProviderUpdate | JobCallFault | None] = field(
        default_factory=lambda: [update("succeeded", PICTURE)]
    )
    polls: bool = True
    cancels: bool = True
    callback_secrets: tuple[str, ...] = ("secret",)
    canceled: list[str | None] = field(default_factory=list)

    name = "studio"
    idempotent_submit = True
    probes_when_idle = True
    health = ProviderHealth("studio")

    async def submit(self, job: Job) -> Submission:
        assert job == JOB
        return self.submission

    async def poll(self, request_id: str, attempt: int, provider_ref: str | None) -> ProviderUpdate | None:
        found = self.polled.pop(0) if len(self.polled) > 1 else self.polled[0]
        if isinstance(found, JobCallFault):
            raise found
        return found

    async def cancel(self, request_id: str, attempt: int, provider_ref: str | None) -> CancelOutcome:
        self.canceled.append(provider_ref)
        return "confirmed"

    async def probe(self) -> None: ...

    async def close(self) -> None: ...


VERIFIED = CheckCallback(0.4, update("succeeded", PICTURE), None)


@pytest.fixture(autouse=True)
def reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every provider's address accepts connections."""

    async def none(url: str) -> None: ...

    monkeypatch.setattr(provider_check, "connection_fault", none)


async def run(
    provider: FakeProvider, *callbacks: CheckCallback, usable: bool = True, wait_s: float = 30.0
) -> dict[str, CheckStep]:
    async def received() -> Sequence[CheckCallback]:
        return callbacks

    async def fetch(output: Output) -> tuple[bool, str]:
        return usable, f"output {output.index} is {output.content_type}"

    check = ProviderCheck(provider, JOB, url="https://studio.test", received=received, fetch=fetch, wait_s=wait_s)
    return {step.name: step for step in await check.run()}


async def test_a_provider_in_order_passes_every_step(autojump_clock: trio.testing.MockClock) -> None:
    steps = await run(FakeProvider(polled=[update("processing"), update("succeeded", PICTURE)]), VERIFIED)
    assert [*steps] == ["connection", "submission", "callback", "poll", "outputs"]
    assert {step.result for step in steps.values()} == {"ok"}
    assert steps["submission"].detail == "accepted as job_1, queued"
    assert (steps["callback"].duration_s, steps["poll"].duration_s) == (0.4, 0.5)
    assert steps["outputs"].detail == "output 0 is image/png"


@pytest.mark.parametrize(
    ("submission", "detail"),
    [
        (NotSent("the provider answered 401"), "the provider answered 401"),
        (Rejected("invalid_upstream_input", "the provider answered 422: no"), "the provider answered 422: no "
         "(invalid_upstream_input)"),
    ],
)  # fmt: skip
async def test_a_refused_submission_is_the_last_step(submission: Submission, detail: str) -> None:
    steps = await run(FakeProvider(submission=submission))
    assert [*steps] == ["connection", "submission"]
    assert (steps["submission"].result, steps["submission"].detail) == ("failed", detail)


async def test_a_callback_that_does_not_arrive_names_the_address(autojump_clock: trio.testing.MockClock) -> None:
    steps = await run(FakeProvider())
    callback = steps["callback"]
    assert callback.result == "failed"
    assert "none arrived" in callback.detail
    assert "https://holdfast.test/v2/callback, which PUBLIC_URL decides" in callback.detail
    assert "seal" not in callback.detail
    assert steps["outputs"].result == "ok"
    assert trio.current_time() == pytest.approx(CALLBACK_LATE_S)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("invalid_signature", "the catalog's secret is not the one the provider uses"),
        ("missing_signature", "it was not signed"),
        ("signature_expired", "compare the clocks"),
    ],
)
async def test_a_refused_callback_says_why(autojump_clock: trio.testing.MockClock, code: str, words: str) -> None:
    steps = await run(FakeProvider(), CheckCallback(1.5, None, code))
    assert (steps["callback"].result, steps["callback"].duration_s) == ("failed", 1.5)
    assert words in steps["callback"].detail


async def test_without_a_secret_no_callback_is_expected(autojump_clock: trio.testing.MockClock) -> None:
    steps = await run(FakeProvider(callback_secrets=()))
    assert steps["callback"].result == "skipped"
    assert trio.current_time() == 0.0


async def test_a_provider_without_polls_is_followed_by_its_callbacks(
    autojump_clock: trio.testing.MockClock,
) -> None:
    steps = await run(FakeProvider(polls=False), VERIFIED)
    assert (steps["poll"].result, steps["outputs"].result) == ("skipped", "ok")


async def test_a_poll_that_fails_is_named(autojump_clock: trio.testing.MockClock) -> None:
    steps = await run(FakeProvider(polled=[JobCallFault("the provider answered 500")]), VERIFIED)
    assert (steps["poll"].result, steps["poll"].detail) == ("failed", "the provider answered 500")
    unknown = await run(FakeProvider(polled=[None]), VERIFIED)
    assert "does not know the job" in unknown["poll"].detail


async def test_a_job_that_does_not_end_in_time_is_canceled(autojump_clock: trio.testing.MockClock) -> None:
    provider = FakeProvider(polled=[update("processing")])
    steps = await run(provider, CheckCallback(0.1, update("processing"), None), wait_s=5)
    assert (steps["outputs"].result, steps["cancel"].result) == ("skipped", "ok")
    assert provider.canceled == ["job_1"]
    assert trio.current_time() == pytest.approx(5.0)


async def test_a_failed_job_and_unusable_outputs_fail_the_check(autojump_clock: trio.testing.MockClock) -> None:
    failed = update("failed", error=ReportedError(message="out of memory"))
    steps = await run(FakeProvider(polled=[failed]), VERIFIED)
    assert steps["outputs"].result == "ok"  # the callback's update has outputs
    steps = await run(FakeProvider(polled=[failed], callback_secrets=()))
    assert steps["outputs"].detail == "the job ended as failed: out of memory"
    steps = await run(FakeProvider(), VERIFIED, usable=False)
    assert steps["outputs"].result == "failed"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        yield found


async def test_an_open_port_has_no_fault(listening: socket.socket) -> None:
    assert await connection_fault(f"http://127.0.0.1:{listening.getsockname()[1]}") is None


async def test_a_closed_port_is_named() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        fault = await connection_fault(f"http://127.0.0.1:{port}")
    assert fault is not None
    assert fault.startswith(f"127.0.0.1 cannot be connected to at port {port}: ")


async def test_a_name_that_does_not_resolve_is_named() -> None:
    fault = await connection_fault("https://provider.invalid")
    assert fault is not None
    assert fault.startswith("the name provider.invalid does not resolve: ")


async def test_a_certificate_that_is_not_trusted_is_named(authority: Authority, nursery: trio.Nursery) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority.issue("127.0.0.1"))
    listeners = await nursery.start(trio.serve_ssl_over_tcp, _closed_at_once, 0, context)
    port = listeners[0].transport_listener.socket.getsockname()[1]
    fault = await connection_fault(f"https://127.0.0.1:{port}")
    assert fault is not None
    assert fault.startswith("TLS with 127.0.0.1 failed: ")
    assert "certificate" in fault
    nursery.cancel_scope.cancel()


async def _closed_at_once(stream: trio.abc.Stream) -> None:
    with contextlib.suppress(trio.BrokenResourceError):
        await stream.receive_some()
