"""The check of a provider: one real job, from the connection to the download of its outputs, step by step.

The job belongs to no task and no account. Its id begins with ``check_``, by which its callbacks are recognized.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Literal

import msgspec
import trio

from holdfast.ledger.tasks.provider_update import Output, ProviderUpdate
from holdfast.providers.media.base import Accepted, Job, JobCallFault, MediaProvider, Rejected
from holdfast.providers.media.predictions import TERMINAL
from holdfast.providers.outbound.connection_pool import tls_context
from holdfast.providers.outbound.urls import parse_url

CHECK_PREFIX: Final = "check_"
CHECK_ATTEMPT: Final = 1
CONNECT_S: Final = 10.0
LOOK_S: Final = 0.5
"""How often the job is polled, and its callbacks are looked for."""
CALLBACK_LATE_S: Final = 10.0
"""How long a callback may arrive after a poll has shown the job's end."""

StepName = Literal["connection", "submission", "callback", "poll", "outputs", "cancel"]
StepResult = Literal["ok", "failed", "skipped"]

_REFUSED: Final = {
    "missing_signature": "it was not signed, or had no token",
    "invalid_signature": "its signature or token is wrong: the catalog's secret is not the one the provider uses",
    "signature_expired": "its time is more than five minutes from ours: compare the clocks",
    "provider_not_configured": "the catalog has no secret to verify it with",
    "invalid_event": "its body is not in the form of this kind of provider",
}


class CheckStep(msgspec.Struct, frozen=True):
    """One step of a check."""

    name: StepName
    """What was tried."""
    result: StepResult
    """How it ended."""
    detail: str
    """The result in words."""
    duration_s: float
    """How long after its start the result was known, in seconds."""


class CheckCallback(msgspec.Struct, frozen=True):
    """A callback about a check's job that arrived ``after_s`` the check began: an update, or why it was refused."""

    after_s: float
    update: ProviderUpdate | None
    refused: str | None


Received = Callable[[], Awaitable[Sequence[CheckCallback]]]
Fetch = Callable[[Output], Awaitable[tuple[bool, str]]]
"""Downloads and discards an output; returns whether it could be used, and what it is or what is wrong."""


class ProviderCheck:
    """One check. ``url`` is the provider's address, ``wait_s`` how long the job may take."""

    def __init__(
        self, provider: MediaProvider, job: Job, *, url: str, received: Received, fetch: Fetch, wait_s: float
    ) -> None:
        self._provider = provider
        self._job = job
        self._url = url
        self._received = received
        self._fetch = fetch
        self._wait_s = wait_s
        self._callbacks: Sequence[CheckCallback] = ()
        self._polled: ProviderUpdate | None = None
        self._poll_fault: str | None = None
        self._polled_after_s = 0.0
        self.steps: list[CheckStep] = []

    async def run(self) -> list[CheckStep]:
        """Take every step that the one before allows, and return them. No error of the provider is raised."""
        begun = trio.current_time()
        fault = await connection_fault(self._url)
        host = parse_url(self._url).host
        self._add("connection", "failed" if fault else "ok", fault or f"connected to {host}", begun)
        if fault:
            return self.steps
        begun = trio.current_time()
        submission = await self._provider.submit(self._job)
        if not isinstance(submission, Accepted):
            code = f" ({submission.code})" if isinstance(submission, Rejected) else ""
            self._add("submission", "failed", f"{submission.reason}{code}", begun)
            return self.steps
        ref = submission.provider_ref
        self._add("submission", "ok", f"accepted as {ref}, {submission.status}", begun)
        begun = trio.current_time()
        await self._follow(ref, begun)
        self._add_callback(begun)
        self._add_poll()
        ended = self._ended()
        if ended is None:
            await self._cancel(ref)
        else:
            await self._add_outputs(ended)
        return self.steps

    async def _follow(self, ref: str, begun: float) -> None:
        """Poll the job and look for its callbacks until both have shown its end, or the time is over."""
        ended_at: float | None = None
        while (now := trio.current_time()) < begun + self._wait_s:
            self._callbacks = await self._received()
            if self._provider.polls and not _is_over(self._polled):
                await self._poll(ref, begun)
            if self._ended() is not None and ended_at is None:
                ended_at = now
            is_late = ended_at is not None and now - ended_at >= CALLBACK_LATE_S
            has_polled = not self._provider.polls or _is_over(self._polled)
            has_callback = bool(self._callbacks) or not self._provider.callback_secrets
            if is_late or (ended_at is not None and has_polled and has_callback):
                return
            await trio.sleep(LOOK_S)

    async def _poll(self, ref: str, begun: float) -> None:
        try:
            found = await self._provider.poll(self._job.request_id, self._job.attempt, ref)
        except JobCallFault as fault:
            self._poll_fault = str(fault)
            return
        self._polled_after_s = trio.current_time() - begun
        self._poll_fault = None if found is not None else "the provider does not know the job that it accepted"
        self._polled = found or self._polled

    def _ended(self) -> ProviderUpdate | None:
        """Return an update that shows the job's end, preferably one with its outputs."""
        reported = [each.update for each in self._callbacks if each.update is not None]
        ended = [update for update in (self._polled, *reported) if update is not None and _is_over(update)]
        return next((update for update in ended if update.outputs), ended[0] if ended else None)

    def _add(self, name: StepName, result: StepResult, detail: str, begun: float) -> None:
        self.steps.append(CheckStep(name, result, detail, round(trio.current_time() - begun, 3)))

    def _add_callback(self, begun: float) -> None:
        verified = [each for each in self._callbacks if each.update is not None]
        if verified:
            update = verified[-1].update
            assert update is not None
            detail = f"{len(verified)} received and verified, the last says {update.status}"
            self.steps.append(CheckStep("callback", "ok", detail, round(verified[0].after_s, 3)))
        elif self._callbacks:
            refused = self._callbacks[-1]
            why = _REFUSED.get(refused.refused or "", refused.refused or "unknown")
            detail = f"received and refused: {why}"
            self.steps.append(CheckStep("callback", "failed", detail, round(refused.after_s, 3)))
        elif not self._provider.callback_secrets:
            detail = "none was requested: the catalog has no secret for it, so its jobs are followed by polls alone"
            self._add("callback", "skipped", detail, begun)
        else:
            address = self._job.callback_url.partition("?")[0]
            detail = f"none arrived: the provider must be able to reach {address}, which PUBLIC_URL decides"
            self._add("callback", "failed", detail, begun)

    def _add_poll(self) -> None:
        took_s = round(self._polled_after_s, 3)
        if self._poll_fault is not None and not _is_over(self._polled):
            # A server whose polls are only tried is followed by its callbacks.
            result: StepResult = "failed" if self._provider.polls else "skipped"
            self.steps.append(CheckStep("poll", result, self._poll_fault, took_s))
        elif self._polled is None:
            self.steps.append(CheckStep("poll", "skipped", "this provider is not polled", took_s))
        else:
            self.steps.append(CheckStep("poll", "ok", f"answered, the job is {self._polled.status}", took_s))

    async def _add_outputs(self, ended: ProviderUpdate) -> None:
        begun = trio.current_time()
        if ended.status != "succeeded":
            error = ended.error
            why = f": {error.message or error.code}" if error is not None else ""
            self._add("outputs", "failed", f"the job ended as {ended.status}{why}", begun)
            return
        if not ended.outputs:
            self._add("outputs", "failed", "the job succeeded without outputs", begun)
            return
        results = [await self._fetch(output) for output in ended.outputs]
        is_ok = all(ok for ok, _ in results)
        self._add("outputs", "ok" if is_ok else "failed", "; ".join(words for _, words in results), begun)

    async def _cancel(self, ref: str) -> None:
        begun = trio.current_time()
        self._add("outputs", "skipped", f"the job did not end within {self._wait_s:g} s", begun)
        if not self._provider.cancels:
            return
        try:
            outcome = await self._provider.cancel(self._job.request_id, self._job.attempt, ref)
        except JobCallFault as fault:
            self._add("cancel", "failed", str(fault), begun)
        else:
            self._add("cancel", "ok", f"the job's end was requested: {outcome}", begun)


async def connection_fault(url: str) -> str | None:
    """Connect to a provider's address and close again; return in words what is wrong, or None."""
    target = parse_url(url)
    try:
        with trio.fail_after(CONNECT_S):
            stream = await trio.open_tcp_stream(target.host, target.port)
            async with stream:
                if target.scheme == "https":
                    await trio.SSLStream(stream, tls_context(), server_hostname=target.host).do_handshake()
    except trio.TooSlowError:
        return f"{target.host} does not accept a connection at port {target.port} within {CONNECT_S:g} s"
    except trio.BrokenResourceError as fault:
        why = fault.__cause__
        reason = why.verify_message if isinstance(why, ssl.SSLCertVerificationError) else str(why or fault)
        return f"TLS with {target.host} failed: {reason}"
    except trio.socket.gaierror as fault:
        return f"the name {target.host} does not resolve: {fault.strerror}"
    except OSError as fault:
        return f"{target.host} cannot be connected to at port {target.port}: {fault.strerror or fault}"
    return None


def _is_over(update: ProviderUpdate | None) -> bool:
    return update is not None and update.status in TERMINAL
