"""The prediction protocol's adapter, against the studio and against servers that answer oddly."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from quart import Response, request
from quart_trio import QuartTrio

from holdfast.actors.workers.provider_calls import CALLS_MAX
from holdfast.ledger.tasks.provider_update import Output
from holdfast.providers.media.base import Accepted, Ambiguous, Job, JobCallFault, MediaProvider, NotSent, Rejected
from holdfast.providers.media.client import ANSWER_MAX_BYTES
from holdfast.providers.media.cog import CogProvider
from holdfast.providers.media.predictions import Polling
from holdfast_emulators.studio.model import BadInput, OutputFile, RenderContext

from .conftest import SECRET, CallbackReceiver, RunningStudio, ServeApp, Stalled, StartStudio, is_last

ProviderResponse = Callable[[], Response]


@asynccontextmanager
async def provider(url: str, **options: Any) -> AsyncIterator[MediaProvider]:
    cog = CogProvider("studio", url, **{"secrets": [SECRET], **options})
    try:
        yield cog
    finally:
        await cog.close()


def job(callback_url: str = "http://127.0.0.1:9/callback", **input_: object) -> Job:
    given = {"prompt": "A harbour at sunset", "width": 96, "height": 96, **input_}
    return Job("task_01", 1, "poster", given, callback_url)


def answering(status: int, body: bytes = b"{}", **headers: str) -> QuartTrio:
    """A server that gives one answer to everything, and remembers what it was asked."""
    app = QuartTrio("odd", static_folder=None)

    async def answer(**_: str) -> Response:
        app.config.setdefault("ASKED", []).append(await request.get_json(silent=True))
        return Response(body, status, {name.replace("_", "-"): value for name, value in headers.items()})

    app.add_url_rule("/predictions/<name>", "one", answer, methods=["PUT", "GET"])
    app.add_url_rule("/predictions/<name>/cancel", "two", answer, methods=["POST"])
    return app


async def test_job_runs_at_the_studio_from_submit_to_fetched_result(
    studio: RunningStudio, receiver: CallbackReceiver
) -> None:
    async with provider(studio.url) as cog:
        assert cog.idempotent_submit
        submitted = await cog.submit(job(receiver.url))
        assert isinstance(submitted, Accepted)
        assert submitted.provider_ref == "task_01.1"
        assert isinstance(await cog.submit(job(receiver.url)), Accepted)
        last = await receiver.terminal_callback()
        assert last.verdict == "valid"
        update = await cog.poll("task_01", 1, submitted.provider_ref)
        assert update is not None
        assert (update.source, update.status, update.percent) == ("poll", "succeeded", 100)
        assert update.outputs[0].sha256 == last.body["outputs"][0]["sha256"]
        assert update.usage is not None
        assert update.usage.units == 1
        again = await cog.poll("task_01", 1, None)
        assert again is not None
        assert again.event_id == update.event_id
        assert sum(map(is_last, receiver.received)) == 1
        assert await cog.cancel("task_01", 1, None) == "too_late"


async def test_cancel_is_confirmed_while_it_runs(start_studio: StartStudio) -> None:
    async with start_studio(models={"poster": lambda _: Stalled()}) as studio, provider(studio.url) as cog:
        await cog.submit(job())
        update = await cog.poll("task_01", 1, None)
        assert update is not None
        assert update.status in ("queued", "processing")
        assert await cog.cancel("task_01", 1, None) == "confirmed"
        update = await cog.poll("task_01", 1, None)
        assert update is not None
        assert update.status == "canceled"


async def test_a_failure_is_reported_with_its_reason(start_studio: StartStudio) -> None:
    class Unpaintable:
        def render(self, context: RenderContext) -> list[OutputFile]:
            raise BadInput("out of paint")

    models = {"poster": lambda _: Unpaintable()}
    async with start_studio(models=models) as studio, provider(studio.url) as cog:
        await cog.submit(job())
        await studio.finished("task_01.1")
        update = await cog.poll("task_01", 1, None)
        assert update is not None
        assert update.error is not None
        assert (update.status, update.error.message) == ("failed", "out of paint")


async def test_job_unknown_there_is_none(studio: RunningStudio) -> None:
    async with provider(studio.url) as cog:
        assert await cog.poll("task_02", 1, None) is None
        assert await cog.cancel("task_02", 1, None) == "too_late"


async def test_input_the_studio_refuses_is_rejected(studio: RunningStudio) -> None:
    async with provider(studio.url) as cog:
        refused = await cog.submit(job(width=9))
        assert isinstance(refused, Rejected)
        assert refused.code == "invalid_upstream_input"
        assert "width" in refused.reason


async def test_token_is_presented(start_studio: StartStudio) -> None:
    async with start_studio(token="sesame") as studio:
        async with provider(studio.url) as cog:
            refused = await cog.submit(job())
            assert isinstance(refused, Rejected)
            assert refused.code == "provider_error"
        async with provider(studio.url, token="sesame") as cog:
            assert isinstance(await cog.submit(job()), Accepted)


async def test_without_a_secret_no_callback_is_asked_for(serve_app: ServeApp) -> None:
    app = answering(201, b'{"id":"x","status":"starting"}')
    async with serve_app(app) as url:
        async with provider(url, secrets=["", " "]) as cog:
            assert cog.callback_secrets == ()
            assert await cog.submit(job()) == Accepted("x", "queued")
        async with provider(url + "/") as cog:
            await cog.submit(job())
    asked = app.config["ASKED"]
    assert "webhook" not in asked[0]
    assert asked[1]["webhook"] == "http://127.0.0.1:9/callback"
    assert asked[1]["client"] == {"request_id": "task_01", "attempt": 1}
    assert asked[1]["model"] == "poster"


@pytest.mark.parametrize(
    ("status", "body", "headers", "expected"),
    [
        (200, b'{"id":"x","status":"processing"}', {}, Accepted("x", "processing")),
        (202, b'{"status":"starting"}', {}, Accepted("task_01.1", "queued")),
        (200, b"<html>", {}, Ambiguous),
        (200, b"\xff", {}, Ambiguous),
        (302, b"", {"Location": "http://127.0.0.1:9/"}, Rejected),
        (401, b'{"detail":"no"}', {}, Rejected("provider_error", "the provider answered 401: no")),
        (422, b"[]", {}, Rejected("invalid_upstream_input", "the provider answered 422: no reason given")),
        (409, b"", {}, NotSent("provider busy: 409", None, answered=True)),
        (429, b"", {"Retry_After": "7"}, NotSent("provider busy: 429", 7, answered=True)),
        (503, b"", {"Retry_After": "99999"}, NotSent("provider busy: 503", 3600, answered=True)),
        (
            503,
            b"",
            {"Retry_After": "Wed, 21 Oct 2015 07:28:00 GMT"},
            NotSent("provider busy: 503", 0, answered=True),
        ),
        (503, b"", {"Retry_After": "soon"}, NotSent("provider busy: 503", None, answered=True)),
        (500, b"", {}, Ambiguous("the provider answered 500")),
        (504, b"", {}, Ambiguous),
    ],
)
async def test_answers_to_a_submission(
    serve_app: ServeApp, status: int, body: bytes, headers: dict[str, str], expected: object
) -> None:
    with trio.fail_after(60):
        async with serve_app(answering(status, body, **headers)) as url, provider(url) as cog:
            submitted = await cog.submit(job())
            if isinstance(expected, type):
                assert isinstance(submitted, expected)
            else:
                assert submitted == expected


async def test_unreachable_server_was_not_sent_to() -> None:
    with socket.socket() as held, trio.fail_after(60):
        held.bind(("127.0.0.1", 0))
        async with provider(f"http://127.0.0.1:{held.getsockname()[1]}") as cog:
            assert isinstance(await cog.submit(job()), NotSent)
            with pytest.raises(JobCallFault):
                await cog.poll("task_01", 1, None)
            with pytest.raises(JobCallFault):
                await cog.cancel("task_01", 1, None)


@pytest.mark.parametrize("hang_up", [True, False])
async def test_silence_after_sending_is_ambiguous(hang_up: bool) -> None:
    async with trio.open_nursery() as nursery:

        async def swallow(stream: trio.SocketStream) -> None:
            async with stream:
                await stream.receive_some()
                if not hang_up:
                    await trio.sleep_forever()

        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, swallow, [listener])
        url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        async with provider(url, submit_timeout_s=1.0, ask_timeout_s=1.0) as cog:
            assert isinstance(await cog.submit(job()), Ambiguous)
            with pytest.raises(JobCallFault):
                await cog.poll("task_01", 1, None)
        nursery.cancel_scope.cancel()


async def test_a_probe_waits_for_no_call_of_a_task() -> None:
    submits = 2 * CALLS_MAX
    connected, all_wait = 0, trio.Event()

    async def answer_probes(stream: trio.SocketStream) -> None:
        nonlocal connected
        async with stream:
            if (await stream.receive_some()).startswith(b"GET"):
                await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                return
            connected += 1
            if connected == submits:
                all_wait.set()
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, answer_probes, [listener])
        async with provider(f"http://127.0.0.1:{listener.socket.getsockname()[1]}") as cog:
            for _ in range(submits):
                nursery.start_soon(cog.submit, job())
            await all_wait.wait()
            await cog.probe()
            assert cog.health.state == "up"
        nursery.cancel_scope.cancel()


async def test_endless_answer_is_let_go(serve_app: ServeApp) -> None:
    async with serve_app(answering(200, b" " * (ANSWER_MAX_BYTES + 1))) as url, provider(url) as cog:
        assert isinstance(await cog.submit(job()), Ambiguous)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (b"null", ()),
        (b'"https://x.example/a.png"', (Output(index=0, url="https://x.example/a.png"),)),
        (
            b'["https://x.example/a.png","data:image/png;base64,aGk="]',
            (
                Output(index=0, url="https://x.example/a.png"),
                Output(index=1, data="aGk=", content_type="image/png"),
            ),
        ),
        (b'"hello"', (Output(index=0, data="aGVsbG8=", content_type="text/plain"),)),
        (
            b'[{"url":"https://x.example/a","content_type":"image/png","bytes":3,"strange":1}]',
            (Output(index=0, url="https://x.example/a", content_type="image/png", bytes=3),),
        ),
        (b'{"image":"https://x.example/a"}', (Output(index=0, url="https://x.example/a"),)),
    ],
)
async def test_outputs_come_in_many_forms(serve_app: ServeApp, output: bytes, expected: tuple[Output, ...]) -> None:
    app = answering(200, b'{"status":"succeeded","output":' + output + b',"metrics":{"predict_time":1.5}}')
    async with serve_app(app) as url, provider(url) as cog:
        update = await cog.poll("task_01", 1, None)
        assert update is not None
        assert update.outputs == expected
        assert update.usage is not None
        assert update.usage.provider_ms == 1500


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, b""),
        (200, b"<html>"),
        (200, b'{"status":"paused"}'),
        (200, b'{"status":"succeeded","output":[5]}'),
        (200, b'{"status":"succeeded","output":[{"url":5}]}'),
        (200, b'{"status":"succeeded","output":[' + b'"a",' * 64 + b'"a"]}'),
        (200, b'{"status":"processing","progress":{"percent":101}}'),
        (200, b'{"status":"succeeded","id":"task_02.1","output":"https://x.example/a.png"}'),
        (302, b""),
    ],
)
async def test_what_cannot_be_understood_is_a_fault(serve_app: ServeApp, status: int, body: bytes) -> None:
    async with serve_app(answering(status, body)) as url, provider(url) as cog:
        with pytest.raises(JobCallFault):
            await cog.poll("task_01", 1, None)


@pytest.mark.parametrize(
    ("status", "body", "outcome"),
    [
        (200, b"{}", "requested"),
        (200, b"", "requested"),
        (202, b'{"status":"processing"}', "requested"),
        (200, b'{"status":"failed"}', "too_late"),
        (405, b"", "unsupported"),
        (501, b"", "unsupported"),
    ],
)
async def test_answers_to_a_cancel(serve_app: ServeApp, status: int, body: bytes, outcome: str) -> None:
    async with serve_app(answering(status, body)) as url, provider(url) as cog:
        assert await cog.cancel("task_01", 1, None) == outcome


@pytest.mark.parametrize(
    ("polling", "status", "outcome", "asks_again"),
    [
        ("always", 404, "unknown", True),
        ("always", 405, "fault", True),
        ("until_unsupported", 404, "fault", True),
        ("until_unsupported", 410, "fault", True),
        ("until_unsupported", 405, "fault", False),
        ("until_unsupported", 501, "fault", False),
        ("until_unsupported", 500, "fault", True),
        ("until_unsupported", 200, "updates", True),
    ],
)
async def test_what_a_server_does_not_know_is_lost_only_where_it_keeps_every_job(
    serve_app: ServeApp, polling: Polling, status: int, outcome: str, asks_again: bool
) -> None:
    async with serve_app(answering(status, b'{"status":"processing"}')) as url:
        cog = CogProvider("studio", url, polling=polling)
        try:
            if outcome == "fault":
                with pytest.raises(JobCallFault):
                    await cog.poll("task_01", 1, None)
            else:
                assert (await cog.poll("task_01", 1, None) is None) is (outcome == "unknown")
            assert cog.polls is asks_again
        finally:
            await cog.close()


def test_a_server_that_is_said_not_to_answer_is_never_asked() -> None:
    assert not CogProvider("studio", "http://127.0.0.1:9", polling="never").polls


@pytest.mark.parametrize("url", ["", "studio:9", "ftp://a/", "http://"])
def test_provider_needs_a_web_address(url: str) -> None:
    with pytest.raises(ValueError, match="url of provider"):
        CogProvider("studio", url)
