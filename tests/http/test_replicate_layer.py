"""What the API of Replicate's clients answers where these could be misled, or would create a task twice."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn, cast

import httpx2
import msgspec
import pytest
import trio
from replicate.prediction import Prediction
from tests.event_streams import reading
from trio.testing import MockClock, wait_all_tasks_blocked

from holdfast.actors.account.messages import CreateTask, TaskAccepted
from holdfast.actors.runtime.faults import OutcomeUnknown
from holdfast.actors.runtime.messages import Replayed
from holdfast.http.kit.waiting_calls import WaitingCalls
from holdfast.ledger.catalog.catalog import load_catalog
from holdfast.ledger.links import PublicUrls
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.events import public_snapshot
from holdfast.ledger.tasks.task import Progress, Task
from holdfast.persistence.records import tables
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.providers.media.kinds import kind_rules
from holdfast_compat import attempts
from holdfast_compat.attempts import LOST_S, RequestAttempts
from holdfast_compat.replicate.inputs import native_input
from holdfast_compat.replicate.schemas import log_lines, webhook_body

from .api import Api
from .identities import ACCOUNT, NOW
from .stage import Stage, in_process, make_task

BASE = "/replicate/v1"
IMAGE = f"{BASE}/models/studio/image-1/predictions"
INPUT = {"input": {"prompt": "a lighthouse"}}
ID = "task_" + "1" * 32
ACCEPTED = TaskAccepted(ID, "quo_" + "1" * 32, "queued", None, 12_000, "1 image")
JAVASCRIPT = {"User-Agent": "replicate-javascript/1.4.0"}


def problem(response: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    assert response.headers["Content-Type"] == "application/problem+json"
    found: dict[str, Any] = response.json()
    assert (response.status_code, found["status"], found["code"]) == (status, status, code), found
    assert found["title"] == code.replace("_", " ").capitalize()
    assert found["request_id"] == response.headers["X-Request-Id"]
    return found


def created(response: httpx2.Response) -> dict[str, Any]:
    assert response.status_code == 201, response.text
    found: dict[str, Any] = response.json()
    return found


def asked(stage: Stage) -> CreateTask:
    (_, command), *_ = stage.accounts.asked
    assert isinstance(command, CreateTask)
    return command


# --------------------------------------------------------------------------------------------- errors


async def test_every_error_is_a_problem(api: Api) -> None:
    problem(await api.call("GET", f"{BASE}/collections"), 404, "route_not_found")
    problem(await api.call("DELETE", f"{BASE}/models"), 405, "method_not_allowed")
    problem(await api.call("GET", f"{BASE}/predictions"), 401, "missing_credentials")
    problem(await api.as_session("POST", IMAGE, INPUT), 401, "wrong_credential_type")
    found = problem(await api.as_key("GET", f"{BASE}/predictions?status=failed"), 422, "invalid_parameter")
    assert found["param"] == "status"
    problem(await api.as_key("POST", IMAGE, {}), 422, "missing_parameter")
    problem(await api.as_key("GET", f"{BASE}/predictions/{ID}"), 404, "task_not_found")
    problem(await api.as_key("GET", f"{BASE}/account"), 403, "insufficient_scope")
    assert "error" in (await api.call("DELETE", "/v2/models")).json()


async def test_a_webhook_address_is_refused_under_the_name_it_was_sent_by(api: Api) -> None:
    api.configure(env="production")
    for name in ("webhook", "webhook_completed"):
        response = await api.as_key("POST", IMAGE, {**INPUT, name: "ftp://example.com"})
        assert problem(response, 422, "invalid_parameter")["detail"].startswith("The parameter webhook must be")


async def test_an_invalid_input_is_named_as_it_was_sent(api: Api) -> None:
    sent = {"prompt": "", "num_outputs": 9, "size": "8x512", "colour": "red"}
    found = problem(await api.as_key("POST", IMAGE, {"input": sent}), 422, "invalid_input")
    named = {each["param"]: each["message"] for each in found["errors"]}
    assert named["input.prompt"] == "input.prompt must not be blank."
    assert named["input.num_outputs"] == "input.num_outputs must be at most 4."
    assert named["input.size"] == "input.size has a width that must be at least 256."
    assert set(named) == {f"input.{name}" for name in sent}


async def test_a_prediction_has_a_deadline_and_a_cap(api: Api) -> None:
    api.accounts.answer = ACCEPTED
    for text, deadline_s in {"30s": 30, "5": 5, "1m30s": 90, "1h": 3600, "1h30m45s": 5445, "168h": 604_800}.items():
        created(await api.as_key("POST", IMAGE, INPUT, headers={"Cancel-After": text}))
        command = api.accounts.asked[-1][1]
        assert isinstance(command, CreateTask)
        assert command.request.deadline_s == deadline_s
    asked = len(api.accounts.asked)
    for text in ("", "4s", "soon", "-30s", "30 s", "1.5m", "169h", "30s, 40s", "99999999999"):
        response = await api.as_key("POST", IMAGE, INPUT, headers={"Cancel-After": text})
        assert problem(response, 422, "invalid_parameter")["param"] == "Cancel-After"
    cap = {"Max-Credits": "0.000001"}
    for path, body in ((IMAGE, INPUT), (f"{BASE}/predictions", {**INPUT, "version": "studio/image-1"})):
        assert problem(await api.as_key("POST", path, body, headers=cap), 402, "max_credits_exceeded")
    assert len(api.accounts.asked) == asked


async def test_metadata_is_that_of_the_task(api: Api) -> None:
    api.accounts.answer = ACCEPTED
    metadata = {"end_user": "ann", "job": "7"}
    created(await api.as_key("POST", IMAGE, {**INPUT, "metadata": metadata}))
    assert asked(api).request.metadata == metadata
    wrong = await api.as_key("POST", IMAGE, {**INPUT, "metadata": {"end_user": "ann", "job": 7}})
    assert problem(wrong, 422, "invalid_parameter")["param"] == "metadata.job"


# ------------------------------------------------------------------- nothing that was accepted is sent again


async def test_an_unknown_outcome_has_a_status_that_no_client_repeats(stage: Stage) -> None:
    stage.know_key()
    stage.accounts.answer = OutcomeUnknown("no reply")
    response = await stage.as_key("POST", IMAGE, INPUT)
    problem(response, 424, "outcome_unknown")
    assert response.headers["X-Should-Retry"] == "false"


async def test_a_created_task_is_answered_though_it_cannot_be_read(stage: Stage) -> None:
    stage.know_key()
    stage.accounts.answer = ACCEPTED
    stage.change(database=AwayRows())
    found = created(await stage.as_key("POST", IMAGE, INPUT, headers={"Prefer": "wait"}))
    assert (found["id"], found["status"], found["input"]) == (ID, "starting", INPUT["input"])


async def test_a_created_task_is_answered_though_too_many_requests_wait(api: Api) -> None:
    await api.add_task(api.task(ID))
    api.accounts.answer = ACCEPTED
    api.change(waiting=WaitingCalls(per_account_max=0, all_max=1))
    assert created(await api.as_key("POST", IMAGE, INPUT, headers={"Prefer": "wait"}))["status"] == "starting"


async def test_a_wait_that_ends_early_never_shows_processing(api: Api) -> None:
    await api.add_task(api.task(ID, status="processing"))
    api.accounts.answer = ACCEPTED
    api.deps.following.changes.end()
    assert created(await api.as_key("POST", IMAGE, INPUT, headers={"Prefer": "wait=30"}))["status"] == "starting"
    assert (await api.as_key("GET", f"{BASE}/predictions/{ID}")).json()["status"] == "processing"


async def test_the_wait_is_for_the_prediction_and_not_for_the_account(stage: Stage) -> None:
    stage.know_key()
    stage.accounts.answer = ACCEPTED
    stage.change(database=AwayRows())
    created(await stage.as_key("POST", IMAGE, INPUT, headers={"Prefer": "wait=1"}))
    assert stage.accounts.deadlines_s == [stage.deps.settings.ask_deadline_s]


async def test_a_key_that_may_not_read_gets_no_results(api: Api) -> None:
    await api.add_task(api.task(ID, status="canceled", wake_at=None))
    api.accounts.answer = ACCEPTED
    writer = (await api.add_key(ACCOUNT, "key_" + "7" * 32, scopes=("tasks:write",))).secret
    headers = {"Prefer": "wait"}
    response = await api.call("POST", IMAGE, INPUT, credential=writer, headers=headers)
    assert created(response)["status"] == "starting"
    assert created(await api.as_key("POST", IMAGE, INPUT, headers=headers))["status"] == "canceled"
    stream = created(response)["urls"]["stream"].removeprefix(api.public_url)
    problem(await api.call("GET", stream), 403, "insufficient_scope")


@pytest.mark.parametrize(
    "agent", ["replicate-javascript/1.4.0", "ai/7.0.173 ai-sdk/provider-utils/5.0.45 runtime/node.js/24"]
)
async def test_only_clients_that_resend_are_given_a_key_of_their_own(stage: Stage, agent: str) -> None:
    stage.know_key()
    stage.accounts.answer = ACCEPTED
    created(await stage.as_key("POST", IMAGE, INPUT, headers={"User-Agent": "replicate-python/1.0.7"}))
    assert asked(stage).idempotency is None
    stage.accounts.asked.clear()
    created(await stage.as_key("POST", IMAGE, INPUT, headers={"User-Agent": agent}))
    created(await stage.as_key("POST", IMAGE, INPUT, headers={"User-Agent": agent}))
    created(await stage.as_key("POST", IMAGE, INPUT, headers={"User-Agent": agent}, key="mine"))
    keys = [command.idempotency and command.idempotency.key for _, command in stage.accounts.asked]
    assert len(set(keys)) == 3
    assert keys[-1] == "mine"


async def test_a_resend_has_the_key_of_the_request_whose_answer_was_lost(stage: Stage) -> None:
    stage.know_key()
    replies = iter((OutcomeUnknown("the first reply is lost"), Replayed(ACCEPTED), ACCEPTED))

    async def reply(_: str, __: object) -> object:
        return next(replies)

    stage.accounts.answer = reply
    problem(await stage.as_key("POST", IMAGE, INPUT, headers=JAVASCRIPT), 424, "outcome_unknown")
    joined = await stage.as_key("POST", IMAGE, INPUT, headers=JAVASCRIPT)
    assert (created(joined)["id"], joined.headers["Idempotent-Replayed"]) == (ID, "true")
    created(await stage.as_key("POST", IMAGE, INPUT, headers=JAVASCRIPT))
    first, second, third = [command.idempotency for _, command in stage.accounts.asked]
    assert first == second != third


async def test_a_resend_has_the_key_of_what_was_not_delivered(stage: Stage) -> None:
    stage.know_key()
    stage.accounts.answer = ACCEPTED
    undelivered: list[Callable[[], None]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["extensions"] = {"holdfast.undelivered": undelivered}
        await stage.app(scope, receive, send)

    async with in_process(cast(Any, app)) as client:
        for _ in range(2):
            headers = {**JAVASCRIPT, "Authorization": f"Bearer {stage.key}"}
            created(await client.post(IMAGE, json=INPUT, headers=headers))
            undelivered.pop(0)()
    first, second = [command.idempotency for _, command in stage.accounts.asked]
    assert first == second


class AwayRows:
    """A database that cannot be reached."""

    async def read(self, query: object, /) -> NoReturn:
        raise DatabaseAway("no connection")

    scan = read


class Requests:
    """Equal requests to :class:`RequestAttempts`, answered when the test says so."""

    def __init__(self) -> None:
        self.attempts = RequestAttempts()
        self.keys: list[str] = []
        self.undelivered: list[Callable[[], None]] = []

    async def send(
        self, answer: trio.Event, *, group: str = "equal", task_status: Any = trio.TASK_STATUS_IGNORED
    ) -> None:
        with trio.CancelScope() as client:

            async def respond(key: str) -> None:
                self.keys.append(key)
                task_status.started(client)
                await answer.wait()

            await self.attempts.answer(group, respond, self.undelivered)


async def test_equal_requests_on_purpose_stay_apart(autojump_clock: MockClock) -> None:
    requests, answer = Requests(), trio.Event()
    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(requests.send, answer)
        await trio.sleep(1)
        answer.set()
    await requests.send(answer)
    assert len(set(requests.keys)) == 51


async def test_each_lost_answer_is_for_one_resend(autojump_clock: MockClock) -> None:
    requests, never, answered = Requests(), trio.Event(), trio.Event()
    answered.set()
    async with trio.open_nursery() as nursery:
        clients = [await nursery.start(requests.send, never) for _ in range(2)]
        for client in clients:
            client.cancel()
    lost = requests.keys[:]
    await requests.send(answered, group="other")
    for _ in range(3):
        await requests.send(answered)
    assert set(requests.keys[3:5]) == set(lost)
    assert requests.keys[5] not in lost
    assert requests.keys[2] not in lost


async def test_a_resend_may_come_before_the_break_is_noticed(autojump_clock: MockClock) -> None:
    requests, never, answered = Requests(), trio.Event(), trio.Event()
    answered.set()
    async with trio.open_nursery() as nursery:
        client = await nursery.start(requests.send, never)
        nursery.start_soon(requests.send, answered)
        await trio.sleep(0.9)
        client.cancel()
    assert len(set(requests.keys)) == 1


async def test_a_resend_finds_a_break_that_came_while_the_process_stood(mock_clock: MockClock) -> None:
    requests, never, answered = Requests(), trio.Event(), trio.Event()
    answered.set()
    async with trio.open_nursery() as nursery:
        client = await nursery.start(requests.send, never)
        nursery.start_soon(requests.send, answered)
        await wait_all_tasks_blocked()
        mock_clock.jump(60)
        await cancel_soon(client)
    assert len(set(requests.keys)) == 1


async def test_who_goes_while_the_answer_is_made_has_lost_it(autojump_clock: MockClock) -> None:
    requests, answer = Requests(), trio.Event()
    async with trio.open_nursery() as nursery:
        client = await nursery.start(requests.send, answer)
        answer.set()
        nursery.start_soon(cancel_soon, client)
    await requests.send(answer)
    assert len(set(requests.keys)) == 1


async def test_an_answer_that_was_not_delivered_is_lost(autojump_clock: MockClock) -> None:
    requests, answered = Requests(), trio.Event()
    answered.set()
    await requests.send(answered)
    requests.undelivered[0]()
    await requests.send(answered)
    await requests.send(answered)
    first, second, third = requests.keys
    assert first == second != third


async def cancel_soon(client: trio.CancelScope) -> None:
    """Cancel a request as its handler has its answer: as the end of the connection is read then."""
    await trio.lowlevel.checkpoint()
    client.cancel()


async def test_a_lost_answer_is_forgotten_in_time(autojump_clock: MockClock) -> None:
    requests, never, answered = Requests(), trio.Event(), trio.Event()
    answered.set()
    async with trio.open_nursery() as nursery:
        client = await nursery.start(requests.send, never)
        client.cancel()
    await trio.sleep(LOST_S)
    await requests.send(answered)
    assert len(set(requests.keys)) == 2


async def test_of_too_many_lost_answers_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "KEPT_MAX", 3)
    requests, never, answered = Requests(), trio.Event(), trio.Event()
    answered.set()
    async with trio.open_nursery() as nursery:
        for number in range(5):
            client = await nursery.start(partial(requests.send, never, group=str(number)))
            client.cancel()
    lost = requests.keys[:]
    for number in range(5):
        await requests.send(answered, group=str(number))
    assert [key in lost for key in requests.keys[5:]] == [False, False, True, True, True]


# ------------------------------------------------------------------------------------------- translation


@pytest.mark.parametrize(
    ("model", "given", "native"),
    [
        ("image-1", {"num_outputs": 2, "size": "768x512"}, {"n": 2, "width": 768, "height": 512}),
        ("edit-1", {"num_outputs": 1, "image": "data:image/png;base64,iVBO"}, {"image": "iVBO"}),
        ("edit-1", {"image_url": "data:image/png;base64,iVBO"}, {"image_url": "data:image/png;base64,iVBO"}),
        ("clip-1", {"duration": 3, "aspect_ratio": "16:9"}, {"duration": 3, "aspect_ratio": "16:9"}),
    ],
)
def test_an_input_has_the_names_of_the_models_schema(
    model: str, given: dict[str, object], native: dict[str, object]
) -> None:
    before = dict(given)
    found = native_input(load_catalog(None, kind_rules()).models[f"studio/{model}"], given)
    assert not isinstance(found, Refusal)
    assert (found.input, given) == (native, before)


@pytest.mark.parametrize(
    ("model", "given"),
    [
        ("image-1", {"num_outputs": 2, "n": 1}),
        ("image-1", {"size": "big"}),
        ("image-1", {"size": "768x512", "width": 300}),
        ("edit-1", {"num_outputs": 2}),
        ("clip-1", {"size": "640x360"}),
    ],
)
def test_what_a_model_does_not_take_is_refused_by_the_name_that_was_sent(
    model: str, given: dict[str, object]
) -> None:
    refusal = native_input(load_catalog(None, kind_rules()).models[f"studio/{model}"], given)
    assert isinstance(refusal, Refusal)
    assert refusal.param == f"input.{next(iter(given))}"


@pytest.mark.parametrize(
    ("wanted", "kinds"),
    [
        ({"webhook": "http://127.0.0.1/a"}, ["task.succeeded", "task.failed", "task.canceled"]),
        ({"webhook": "http://127.0.0.1/a", "webhook_events_filter": ["start"]}, ["task.processing"]),
        ({"webhook": "http://127.0.0.1/a", "webhook_events_filter": ["output", "start"]},
         ["task.processing", "task.succeeded"]),
        ({"webhook_completed": "http://127.0.0.1/a", "webhook_events_filter": ["start"]},
         ["task.succeeded", "task.failed", "task.canceled"]),
        ({"webhook": "http://127.0.0.1/a", "webhook_events_filter": ["logs"]}, None),
        ({}, None),
    ],
)  # fmt: skip
async def test_a_webhook_is_stored_with_the_form_of_its_body(
    stage: Stage, wanted: dict[str, object], kinds: list[str] | None
) -> None:
    stage.know_key()
    stage.accounts.answer = ACCEPTED
    created(await stage.as_key("POST", IMAGE, {**INPUT, **wanted}))
    request = asked(stage).request
    if kinds is None:
        assert (request.webhook_url, request.webhook_events, request.webhook_format) == (None, None, None)
    else:
        assert (request.webhook_url, request.webhook_format) == ("http://127.0.0.1/a", "prediction")
        assert request.webhook_events == tuple(kinds)


def test_what_is_stored_of_an_event_has_the_form_of_its_body() -> None:
    task = make_task(ID, status="canceled")
    request = msgspec.structs.replace(task.request, webhook_format="prediction")
    snapshot = public_snapshot(msgspec.structs.replace(task, request=request))
    stored = msgspec.json.decode(msgspec.json.encode(snapshot), type=Task)
    assert stored.request.webhook_format == "prediction"
    urls = PublicUrls(base="https://example.com", link_keys=(b"a key",), link_ttl_s=60)
    body = msgspec.json.decode(webhook_body(urls, stored, now=NOW))
    assert (body["id"], body["status"], body["output"]) == (ID, "canceled", None)
    assert body["urls"] == {
        "get": f"https://example.com{BASE}/predictions/{ID}",
        "cancel": f"https://example.com{BASE}/predictions/{ID}/cancel",
    }


def reporting(*percents: int | None, status: Any = "processing") -> Task:
    entries = tuple(
        Progress(ts=NOW + timedelta(seconds=index), status="processing", source_ref="s", percent=each, message="at")
        for index, each in enumerate(percents)
    )
    task = make_task(ID, status=status)
    return msgspec.structs.replace(task, state=msgspec.structs.replace(task.state, progress=entries))


@pytest.mark.parametrize("percent", [0, 1, 9, 40, 99, 100])
def test_progress_is_read_from_the_logs(percent: int) -> None:
    logs = "\n".join(log_lines(reporting(None, 0, percent, None)))
    progress = Prediction.Progress.parse(logs)
    assert progress is not None
    assert (progress.percentage, progress.current, progress.total) == (percent / 100, percent, 100)


async def test_a_stream_sends_each_line_once_and_needs_no_credential(api: Api) -> None:
    await api.add_task(reporting(10, 20, status="failed"))
    found = (await api.as_key("GET", f"{BASE}/predictions/{ID}")).json()
    path = found["urls"]["stream"].removeprefix(api.public_url)
    async with api.serving() as base, reading(base, "", path=path) as stream:
        events = []
        while (event := await stream.next()) is not None:
            events.append((event.fields["event"], event.fields["data"], event.fields["id"]))
    lines = found["logs"].splitlines()
    assert events[:-1] == [("logs", line, str(number)) for number, line in enumerate(lines, 1)]
    assert events[-1][0] == "error"


async def test_the_link_to_a_stream_is_as_good_as_its_key(api: Api) -> None:
    await api.add_task(api.task(ID))
    link = (await api.as_key("GET", f"{BASE}/predictions/{ID}")).json()["urls"]["stream"]
    path = link.removeprefix(api.public_url)
    altered = path.replace(ID, "task_" + "2" * 32)
    problem(await api.call("GET", altered), 403, "invalid_link")
    problem(await api.call("GET", path.replace("sig=", "sig=0")), 403, "invalid_link")
    problem(await api.call("GET", f"{BASE}/predictions/{ID}/stream"), 403, "invalid_link")
    await api.write(tables.api_keys.update().values(revoked_at=NOW))
    problem(await api.call("GET", path), 401, "invalid_api_key")
