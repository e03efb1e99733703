"""The hosted service's adapter, against a stand-in that the service's own client library takes for the real one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import httpx
import pytest
import trio
from quart import Response
from quart_trio import QuartTrio
from replicate.client import Client
from replicate.exceptions import ReplicateError
from replicate.webhook import Webhooks, WebhookSigningSecret, WebhookValidationError

from holdfast.ledger.tasks.provider_update import Output
from holdfast.providers.media.base import Accepted, Ambiguous, Job, JobCallFault, NotSent, Rejected
from holdfast.providers.media.callbacks import hook_address, names_same_job, read_hook_query
from holdfast.providers.media.predictions import percent_of
from holdfast.providers.media.replicate import ReplicateProvider, target_of
from holdfast.providers.signatures import verify_standard

from .conftest import ServeApp
from .replicate_server import SECRET, TOKEN, VERSION, Hosted, hosted_service

KEY = b"k" * 32
TASK = "task_01"


@pytest.fixture
def hosted() -> Iterator[Hosted]:
    """The service, on loopback."""
    with hosted_service() as found:
        yield found


@asynccontextmanager
async def adapter(
    url: str, *, token: str = TOKEN, secrets: tuple[str, ...] = (SECRET,)
) -> AsyncIterator[ReplicateProvider]:
    """An adapter that seals addresses with a key of the tests."""

    def address(base: str, request_id: str, attempt: int) -> str:
        return hook_address(base, KEY, "hosted", request_id, attempt)

    provider = ReplicateProvider("hosted", url, secrets, token=token, seal_callback_url=address)
    try:
        yield provider
    finally:
        await provider.close()


def answering(status: int, body: bytes, **headers: str) -> QuartTrio:
    """A server that gives one answer to everything."""
    app = QuartTrio("odd", static_folder=None)

    async def answer(path: str) -> Response:
        del path
        return Response(body, status, {name.replace("_", "-"): value for name, value in headers.items()})

    app.add_url_rule("/<path:path>", "any", answer, methods=["GET", "POST"])
    return app


def job(model: str = "studio/image", prompt: object = "a pier") -> Job:
    return Job(TASK, 1, model, {"prompt": prompt}, "http://127.0.0.1:9/v2/callback/hosted")


async def test_a_job_runs_from_submit_to_poll_under_the_services_own_name(hosted: Hosted) -> None:
    async with adapter(hosted.url) as provider:
        assert not provider.idempotent_submit
        taken = await provider.submit(job())
        created = hosted.only("a pier")
        assert taken == Accepted(created["id"], "queued")
        assert hosted.filters[created["id"]] == ("start", "completed")
        query = hosted.hooks[created["id"]].partition("?")[2]
        assert read_hook_query(query, [KEY], "hosted") == (TASK, 1)
        hosted.predictions[created["id"]].update(status="processing", logs="10%|#\n 55%|#####     | 11/20")
        update = await provider.poll(TASK, 1, created["id"])
        assert update is not None
        assert (update.status, update.percent, update.provider_ref) == ("processing", 55, created["id"])
        hosted.predictions[created["id"]].update(
            status="succeeded", output=["https://x.example/a.png"], metrics={"predict_time": 2.5}
        )
        done = await provider.poll(TASK, 1, created["id"])
        assert done is not None
        assert (done.outputs, done.percent) == ((Output(index=0, url="https://x.example/a.png"),), 100)
        assert done.usage is not None
        assert done.usage.provider_ms == 2500


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("owner/name", ("/v1/models/owner/name/predictions", None)),
        ("owner/name:abc123", ("/v1/predictions", "abc123")),
        (f"owner/name:{VERSION}", ("/v1/predictions", VERSION)),
        (VERSION, ("/v1/predictions", VERSION)),
        ("name", None),
        ("../name", None),
        ("owner/name/more", None),
        ("owner/na me", None),
        (VERSION[:-1], None),
    ],
)
def test_the_upstream_model_says_where_a_job_is_posted(model: str, expected: object) -> None:
    assert target_of(model) == expected


async def test_a_model_that_names_nothing_is_rejected_without_asking(hosted: Hosted) -> None:
    async with adapter(hosted.url) as provider:
        assert isinstance(await provider.submit(job("nothing")), Rejected)
    assert hosted.predictions == {}


async def test_a_version_is_in_the_body_and_no_secret_means_no_webhook(hosted: Hosted) -> None:
    async with adapter(hosted.url, secrets=()) as provider:
        await provider.submit(job(VERSION))
    created = hosted.only("a pier")
    assert (created["version"], created["model"]) == (VERSION, "studio/image")
    assert hosted.hooks == {}


async def test_a_cut_answer_is_ambiguous_and_the_job_runs(hosted: Hosted) -> None:
    hosted.accidents.append("cut")
    async with adapter(hosted.url) as provider:
        assert isinstance(await provider.submit(job()), Ambiguous)
    assert hosted.only("a pier")["status"] == "starting"


async def test_a_wrong_token_leaves_the_job_unsent(hosted: Hosted) -> None:
    async with adapter(hosted.url, token="r8_another_token") as provider:
        assert await provider.submit(job()) == NotSent("the provider answered 401", 10, answered=True)
        with pytest.raises(JobCallFault):
            await provider.poll(TASK, 1, "abc")


@pytest.mark.parametrize(
    ("status", "body", "headers", "expected"),
    [
        (201, b'{"id":"p1","status":"processing"}', {}, Accepted("p1", "processing")),
        (201, b'{"status":"starting"}', {}, Ambiguous),
        (201, b"<html>", {}, Ambiguous),
        (422, b'{"detail":"bad"}', {}, Rejected("invalid_upstream_input", "the provider answered 422: bad")),
        (400, b"", {}, Rejected("invalid_upstream_input", "the provider answered 400: no reason given")),
        (404, b"", {}, Rejected("provider_error", "the provider answered 404: no reason given")),
        (401, b"", {}, NotSent("the provider answered 401", 10, answered=True)),
        (402, b"", {}, NotSent("the provider answered 402", 10, answered=True)),
        (403, b"", {"Retry_After": "60"}, NotSent("the provider answered 403", 60, answered=True)),
        (307, b"", {"Location": "http://127.0.0.1:9/"}, NotSent("the provider answered 307", 10, answered=True)),
        (429, b"", {"Retry_After": "7"}, NotSent("provider busy: 429", 7, answered=True)),
        (503, b"", {"Retry_After": "7"}, NotSent("provider busy: 503", 7, answered=True)),
        (503, b"", {}, Ambiguous("the provider answered 503")),
        (500, b"", {"Retry_After": "7"}, Ambiguous("the provider answered 500")),
        (504, b"", {}, Ambiguous),
    ],
)  # fmt: skip
async def test_answers_to_a_submission(
    serve_app: ServeApp, status: int, body: bytes, headers: dict[str, str], expected: object
) -> None:
    with trio.fail_after(60):
        async with serve_app(answering(status, body, **headers)) as url, adapter(url) as provider:
            submitted = await provider.submit(job())
            assert isinstance(submitted, expected) if isinstance(expected, type) else submitted == expected


async def test_a_refused_connection_is_reported_as_not_sent() -> None:
    async with adapter("http://127.0.0.1:9") as provider:
        assert isinstance(await provider.submit(job()), NotSent)
        for ask in (provider.poll, provider.cancel):
            with pytest.raises(JobCallFault):
                await ask(TASK, 1, "p1")
            with pytest.raises(JobCallFault, match="not known"):
                await ask(TASK, 1, None)


async def test_another_jobs_answer_is_not_believed(serve_app: ServeApp) -> None:
    app = answering(200, b'{"id":"p2","status":"succeeded"}')
    async with serve_app(app) as url, adapter(url) as provider:
        with pytest.raises(JobCallFault, match="another job"):
            await provider.poll(TASK, 1, "p1")


async def test_cancel_stops_the_job_and_tells_what_became_of_it(hosted: Hosted) -> None:
    async with adapter(hosted.url) as provider:
        taken = await provider.submit(job())
        assert isinstance(taken, Accepted)
        assert await provider.cancel(TASK, 1, taken.provider_ref) == "confirmed"
        assert hosted.canceled == [taken.provider_ref]
        assert await provider.cancel(TASK, 1, "unknown") == "too_late"
        assert await provider.poll(TASK, 1, "unknown") is None


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("https://x.example/a", (Output(index=0, url="https://x.example/a"),)),
        ({"image": "https://x.example/a", "seed": 7, "prompt": "x"}, (Output(index=0, url="https://x.example/a"),)),
        (
            {
                "images": ["https://x.example/a", "https://x.example/b"],
                "more": {"mask": "data:image/png;base64,aGk="},
            },
            (
                Output(index=0, url="https://x.example/a"),
                Output(index=1, url="https://x.example/b"),
                Output(index=2, data="aGk=", content_type="image/png"),
            ),
        ),
        ("data:image/png;base64,aGk=", (Output(index=0, data="aGk=", content_type="image/png"),)),
        (None, ()),
    ],
)
async def test_outputs_of_every_form_are_read(hosted: Hosted, output: Any, expected: tuple[Output, ...]) -> None:
    async with adapter(hosted.url) as provider:
        taken = await provider.submit(job())
        assert isinstance(taken, Accepted)
        hosted.predictions[taken.provider_ref].update(status="succeeded", output=output)
        update = await provider.poll(TASK, 1, taken.provider_ref)
        assert update is not None
        assert update.outputs == expected


@pytest.mark.parametrize(
    ("logs", "percent"),
    [(None, None), ("", None), ("no figures", None), ("5%|", 5), ("1% 2%\n100%", 100), ("250%", None), ("7.5%", 7)],
)
def test_progress_is_the_last_percentage_of_the_log(logs: str | None, percent: int | None) -> None:
    assert percent_of(logs) == percent


@pytest.mark.parametrize(
    "change",
    [
        lambda query: query.replace("task_01", "task_02"),
        lambda query: query.replace("attempt=1", "attempt=2"),
        lambda query: query.replace("attempt=1", "attempt=01"),
        lambda query: query[:-1] + ("0" if query[-1] != "0" else "1"),
        lambda query: query + "&attempt=1",
        lambda query: query + "&more=1",
        lambda query: query.partition("&seal")[0],
        lambda query: query.partition("seal=")[0] + "seal=%C3%A9",
        lambda query: "",
        lambda query: query + "x" * 1000,
    ],
)
def test_an_address_holds_only_as_it_was_given(change: Any) -> None:
    query = hook_address("http://a/b", KEY, "hosted", TASK, 1).partition("?")[2]
    assert read_hook_query(query, [KEY], "hosted") == (TASK, 1)
    assert read_hook_query(change(query), [KEY], "hosted") is None
    assert read_hook_query(query, [KEY], "other") is None
    assert read_hook_query(query, [b"j" * 32], "hosted") is None
    assert read_hook_query(query, [b"j" * 32, KEY], "hosted") == (TASK, 1)


def test_a_repeated_address_must_name_the_same_job() -> None:
    same = partial(names_same_job, job=(TASK, 1), keys=[KEY], provider="hosted")
    assert same(hook_address("https://elsewhere.example/x", KEY, "hosted", TASK, 1))
    assert not same(hook_address("https://elsewhere.example/x", KEY, "hosted", "task_02", 1))
    assert not same("https://[")
    assert not same("")


# ------------------------------------------------------------------------------- the stand-in itself


async def test_the_services_own_library_takes_the_stand_in_for_the_service(hosted: Hosted) -> None:
    def use_it() -> None:
        client = Client(api_token=TOKEN, base_url=hosted.url, timeout=httpx.Timeout(60), transport=connections)
        created = client.predictions.create(
            version=VERSION,
            input={"prompt": "by version"},
            webhook="http://127.0.0.1:9/x",
            webhook_events_filter=["completed"],
        )
        assert (created.status, created.version) == ("starting", VERSION)
        assert created.urls is not None
        assert created.urls["cancel"].endswith(f"/v1/predictions/{created.id}/cancel")
        by_model = client.models.predictions.create(model="studio/image", input={"prompt": "by model"})
        assert by_model.model == "studio/image"
        hosted.predictions[created.id].update(logs=" 55%|#####     | 11/20")
        created.reload()
        assert created.progress is not None
        assert created.progress.percentage == 0.55
        assert client.predictions.cancel(created.id).status == "canceled"
        with pytest.raises(ReplicateError):
            client.predictions.get("unknown")
        with pytest.raises(ReplicateError):
            client.predictions.create(version=VERSION, input={})
        assert client.webhooks.default.secret().key == SECRET

    # The library gives no connection back by itself.
    with httpx.HTTPTransport() as connections:
        await trio.to_thread.run_sync(use_it)


async def test_the_librarys_check_of_webhooks_and_ours_agree(hosted: Hosted) -> None:
    async with adapter(hosted.url) as provider:
        taken = await provider.submit(job())
    assert isinstance(taken, Accepted)
    body, headers = hosted.signed(taken.provider_ref, "msg_1")
    secret = WebhookSigningSecret(key=SECRET)
    now = datetime.now(UTC)
    for content, agreed in ((body, True), (body + b" ", False)):
        if agreed:
            Webhooks.validate(headers=headers, body=content.decode(), secret=secret)
        else:
            with pytest.raises(WebhookValidationError):
                Webhooks.validate(headers=headers, body=content.decode(), secret=secret)
        assert (verify_standard(headers, content, [SECRET], now=now) == "valid") is agreed
