"""Tasks over HTTP: quotes, creation, retries, cancels, and what a task shows."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import trio
from tests.clients import refused

from holdfast.actors.account.messages import CreateTask, RefuseTask, TaskAccepted
from holdfast.actors.runtime.messages import Replayed
from holdfast.actors.task.messages import CancelTask, TaskReply
from holdfast.http.kit.bodies import fingerprint
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.task import HostingState, OutputItem, Review
from holdfast.persistence.records import tables
from holdfast.persistence.server.lookups import GroupedLookups

from .fake_rows import AwayRows
from .identities import KEY, NOW

if TYPE_CHECKING:
    from tests.http.api import Api
    from tests.http.stage import Stage


CREATE = "/v2/task/create"


POSTER = {"model": "studio/image-1", "input": {"prompt": "a lighthouse at dusk"}}


NEW_TASK: dict[str, Any] = {
        "request_id": "task_1",
        "quote_id": "quo_" + "1" * 32,
        "status": "queued",
        "model": "studio/image-1",
        "api_key_id": KEY,
        "created_at": "2026-11-20T12:00:00.000Z",
        "updated_at": "2026-11-20T12:00:00.000Z",
        "completed_at": None,
        "canceled_at": None,
        "deadline_at": None,
        "retry_of": None,
        "estimated_cost": {"credits": "0.012", "basis": "per_image: 1 x 0.012"},
        "usage": {},
        "output": [],
        "hosting": {
            "status": "pending", "mode": "rehost", "source": "provider", "final_url_ready": False,
            "assets_ready_event": "pending", "error": None,
        },
        "provider_progress": [],
        "review_case_id": None,
        "review_reason": None,
        "review_hold_decision": None,
        "error": None,
        "metadata": {},
        "urls": {
            name: "https://holdfast.example/v2/task/task_1" + end
            for name, end in (("get", ""), ("cancel", "/cancel"), ("retry", "/retry"))
        },
    }  # fmt: skip
"""What is read of `task_1` before it was dispatched."""


def accepted(request_id: str = "task_1", retry_of: str | None = None) -> TaskAccepted:
    return TaskAccepted(request_id, "quo_1", "queued", retry_of, 12_000, "per_image: 1 x 0.012", NOW)


async def accept(key: str, command: object) -> TaskAccepted:
    assert isinstance(command, CreateTask)
    return accepted(retry_of=command.request.retry_of)


async def quote(stage: Stage, body: dict[str, Any] = POSTER, **kwargs: Any) -> dict[str, Any]:
    answer = (await stage.call("POST", "/v2/quote", json=body, **kwargs)).json()
    assert isinstance(answer, dict)
    return answer


async def test_a_quote_writes_nothing_and_adds_up(stage: Stage) -> None:
    answer = await quote(stage)
    assert answer["estimate"]["credits"] == answer["estimate"]["max_credits"] == "0.012"
    assert (answer["exact"], answer["account_id"], answer["currency"]) == (True, None, "USD")
    assert answer["expires_at"] == "2026-11-20T12:15:00.000Z"
    assert answer["quote_id"].startswith("quo_")
    assert set(answer["estimate"]) == {
        "credits", "max_credits", "min", "max", "currency", "basis", "unit", "unit_price", "max_units"
    }  # fmt: skip


async def test_unit_price_is_always_an_amount(stage: Stage) -> None:
    async def price_of(model: str, **wanted: object) -> object:
        return (await quote(stage, {"model": model, "input": wanted}))["estimate"]["unit_price"]

    assert await price_of("studio/image-1", prompt="x") == "0.012"
    assert await price_of("studio/clip-1", prompt="x") == "0.06"
    # Of what tokens cost on their way in and out, the higher.
    message = [{"role": "user", "content": "x"}]
    assert await price_of("gateway/chat-1", messages=message) == "1.80"


async def test_results_not_hosted_here_have_their_final_urls(api: Api) -> None:
    item = OutputItem(index=0, url="https://elsewhere.example/a.png")
    task = api.task("task_a")
    for status, is_ready in (("succeeded", True), ("failed", False)):
        # As a version wrote it that had no such event.
        hosting = HostingState(mode="passthrough", status="skipped")
        state = msgspec.structs.replace(task.state, hosting=hosting, output=(item,))
        written = msgspec.structs.replace(task, request_id=f"task_{status}", status=status, state=state)
        await api.add_task(written)
        answer = (await api.as_key("GET", f"/v2/task/task_{status}")).json()
        assert answer["hosting"]["final_url_ready"] is is_ready


async def test_a_valid_credential_binds_the_quote(api: Api) -> None:
    async def account_of(token: str) -> object:
        return (await quote(api, headers={"Authorization": f"Bearer {token}"}))["account_id"]

    assert await account_of(api.session) == await account_of(api.key) == api.account_id
    assert await account_of("hst_" + "B" * 43) is None
    assert await account_of("nonsense") is None


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        ({"model": "nope", "input": {}}, 404, "model_not_found", "model"),
        ({"model": "studio/image-1", "input": {}}, 400, "invalid_input", None),
        ({"model": "studio/image-1", "input": {"prompt": "x", "n": 10**15}}, 400, "invalid_input", "input.n"),
        ({"model": "studio/image-1"}, 400, "missing_parameter", "input"),
    ],
)
async def test_inputs_that_cannot_be_priced_are_refused(
    stage: Stage, body: dict[str, Any], status: int, code: str, param: str | None
) -> None:
    error = refused(await stage.call("POST", "/v2/quote", json=body), status, code)
    assert param is None or error["param"] == param


async def test_creating_with_a_cached_key_reads_no_row(stage: Stage) -> None:
    stage.know_key()
    stage.accounts.answer = accept
    sent = {**POSTER, "metadata": {"end_user": "ann"}}
    response = await stage.as_key("POST", CREATE, json=sent, headers={"Idempotency-Key": "k"})
    quote_id = response.json()["quote_id"]
    assert response.json() == {**NEW_TASK, "quote_id": quote_id, "metadata": {"end_user": "ann"}}
    ((account_id, command),) = stage.accounts.asked
    assert isinstance(command, CreateTask)
    assert (account_id, command.request.api_key_id, command.scope) == (
        stage.account_id, stage.key_id, "tasks:write"
    )  # fmt: skip
    assert command.idempotency is not None
    assert command.idempotency.fingerprint == fingerprint(CREATE, sent)
    assert command.request.quote_id == quote_id
    assert stage.accounts.deadlines_s == [stage.deps.settings.ask_deadline_s]


async def test_a_key_seen_for_the_first_time_is_read_once(api: Api) -> None:
    api.accounts.answer = accept
    for _ in range(3):
        assert (await api.as_key("POST", CREATE, json=POSTER)).status_code == 200
    assert api.rows.reads == 1


async def test_a_key_that_many_requests_bring_at_once_is_read_once(api: Api) -> None:
    api.accounts.answer = accept
    statuses: list[int] = []

    async def create() -> None:
        statuses.append((await api.as_key("POST", CREATE, json=POSTER)).status_code)

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(create)
    assert statuses == [200] * 50
    assert api.rows.reads == 1


async def test_a_key_whose_reading_fails_is_read_by_those_that_waited(api: Api) -> None:
    api.accounts.answer = accept
    statuses: list[int] = []

    async def create() -> None:
        statuses.append((await api.as_key("POST", CREATE, json=POSTER)).status_code)

    reads = iter([AwayRows().read])

    async def read(query: Any, /) -> Any:
        await trio.lowlevel.checkpoint()
        return await next(reads, api.rows.read)(query)

    api.change(lookups=GroupedLookups(read))
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(create)
    assert sorted(statuses) == [200] * 4 + [503]


async def test_create_requires_a_live_key_that_may_write(api: Api) -> None:
    reader = await api.add_key(api.account_id, "key_reader", scopes=("tasks:read",))
    gone = await api.add_key(api.account_id, "key_gone", revoked_at=api.now)

    async def call(secret: str) -> Any:
        return await api.call("POST", CREATE, json=POSTER, credential=secret)

    refused(await api.call("POST", CREATE, json=POSTER), 401, "missing_credentials")
    refused(await call(api.session), 401, "wrong_credential_type")
    refused(await call(api.key[:-1] + "_"), 401, "invalid_api_key")
    refused(await call(gone.secret), 401, "invalid_api_key")
    refused(await call(reader.secret), 403, "insufficient_scope")
    for code, status in (("invalid_api_key", 401), ("insufficient_scope", 403)):
        api.accounts.answer = Refusal(code=code, message="The actor knows better.")
        refused(await call(api.key), status, code)


async def test_the_use_of_a_key_is_recorded_once_a_minute(api: Api) -> None:
    for _ in range(3):
        await api.as_key("GET", "/v2/task/list")

    assert [(key, note.key_id) for key, note in api.accounts.tells] == [(api.account_id, api.key_id)]


async def test_insufficient_credit_is_402_with_both_amounts(stage: Stage) -> None:
    stage.know_key()
    stage.accounts.answer = Refusal(
        code="insufficient_credit", message="Too little.", required_micro=12_000, available_micro=0
    )
    error = refused(await stage.as_key("POST", CREATE, json=POSTER), 402, "insufficient_credit")
    assert (error["required"], error["available"]) == ("0.012", "0.00")
    where = "Credit is added by POST https://holdfast.example/v2/control/sandbox/recharge."
    assert error["message"] == f"Too little. {where}"
    stage.accounts.answer = Replayed(Refusal(code="insufficient_credit", message="Too little before."))
    response = await stage.as_key("POST", CREATE, json=POSTER, headers={"Idempotency-Key": "k"})
    assert response.headers["Idempotent-Replayed"] == "true"
    assert refused(response, 402, "insufficient_credit")["message"] == f"Too little before. {where}"
    # Accounts cannot add credit by themselves here.
    settings = msgspec.structs.replace(stage.deps.settings, sandbox_enabled=False)
    stage.change(settings=settings, card=None)
    error = refused(await stage.as_key("POST", CREATE, json=POSTER), 402, "insufficient_credit")
    assert error["message"] == "Too little before."


async def test_a_task_that_could_cost_more_than_max_credits_is_refused(api: Api) -> None:
    api.accounts.answer = accept
    for allowed in ("0.011999", "0.000001"):
        response = await api.as_key("POST", CREATE, json={**POSTER, "max_credits": allowed})
        error = refused(response, 402, "max_credits_exceeded")
        assert (error["param"], error["required"], "available" in error) == ("max_credits", "0.012", False)
        assert error["message"] == f"The task can cost 0.012 credits; max_credits is {allowed}."
    for wrong in ("0", "-1", "1e3", "0.0000001"):
        response = await api.as_key("POST", CREATE, json={**POSTER, "max_credits": wrong})
        assert refused(response, 400, "invalid_amount")["param"] == "max_credits"
    assert api.accounts.asked == []
    response = await api.as_key("POST", CREATE, json={**POSTER, "max_credits": "0.012"})
    assert response.status_code == 200


async def test_a_deadline_is_shown_and_counts_from_the_creation(api: Api) -> None:
    api.accounts.answer = accept
    for wrong in (0, -1, 604_801, "30", 1.5, True):
        response = await api.as_key("POST", CREATE, json={**POSTER, "deadline_s": wrong})
        assert refused(response, 400, "invalid_parameter")["param"] == "deadline_s"
    assert api.accounts.asked == []
    made = (await api.as_key("POST", CREATE, json={**POSTER, "deadline_s": 90})).json()
    ((_, command),) = api.accounts.asked
    assert isinstance(command, CreateTask)
    assert command.request.deadline_s == 90
    assert (made["created_at"], made["deadline_at"]) == ("2026-11-20T12:00:00.000Z", "2026-11-20T12:01:30.000Z")


async def test_a_retry_has_bounds_of_its_own(api: Api) -> None:
    api.accounts.answer = accept
    task = api.task("task_a", status="canceled", wake_at=None)
    await api.add_task(msgspec.structs.replace(task, request=msgspec.structs.replace(task.request, deadline_s=5)))
    retry = "/v2/task/task_a/retry"
    refused(await api.as_key("POST", retry, json={"max_credits": "0.001"}), 402, "max_credits_exceeded")
    assert api.accounts.asked == []
    for sent, deadline_s in (({}, None), ({"json": {}}, None), ({"json": {"deadline_s": 60}}, 60)):
        assert (await api.as_key("POST", retry, **sent)).status_code == 200
        command = api.accounts.asked[-1][1]
        assert isinstance(command, CreateTask)
        assert command.request.deadline_s == deadline_s


async def test_a_quoted_task_has_its_quotes_price(stage: Stage) -> None:
    stage.know_key()
    stage.accounts.answer = accept
    quoted = await quote(stage)
    body = {**POSTER, "quote_id": quoted["quote_id"]}
    assert (await stage.as_key("POST", CREATE, json=body)).status_code == 200
    command = stage.accounts.asked[0][1]
    assert isinstance(command, CreateTask)
    assert command.request.quote_id == quoted["quote_id"]
    assert command.request.terms.input_hash == quoted["input_hash"]


async def test_mismatching_and_expired_quotes_are_refused(api: Api) -> None:
    quoted = (await quote(api))["quote_id"]
    other = {"model": "studio/image-1", "input": {"prompt": "another"}, "quote_id": quoted}
    refused(await api.as_key("POST", CREATE, json=other), 400, "quote_mismatch")
    forged = {**POSTER, "quote_id": quoted[:-2]}
    refused(await api.as_key("POST", CREATE, json=forged), 400, "quote_mismatch")
    later = api.now + timedelta(minutes=15)
    api.change(now=lambda: later)
    response = await api.as_key("POST", CREATE, json={**POSTER, "quote_id": quoted})
    refused(response, 409, "quote_expired")
    assert response.headers["X-Should-Retry"] == "false"
    assert api.accounts.asked == []


async def test_a_replay_is_returned_above_the_rate_of_creates(api: Api) -> None:
    """The account remembers few replies; the rows have all."""
    api.accounts.answer = Refusal(code="rate_limit_exceeded", message="Too fast.", retry_after_s=9)
    values = {"fingerprint": fingerprint(CREATE, POSTER), "reply": msgspec.json.encode(accepted())}
    record = {"account_id": api.account_id, "route": f"POST {CREATE}", "key": "k", "created_at": api.now}
    await api.write(tables.idempotency_records.insert().values(record | values))
    await api.add_task(api.task("task_1"))
    response = await api.as_key("POST", CREATE, json=POSTER, headers={"Idempotency-Key": "k"})
    assert (response.status_code, response.headers["Idempotent-Replayed"]) == (200, "true")
    refused(
        await api.as_key("POST", CREATE, json=POSTER, headers={"Idempotency-Key": "l"}), 429, "rate_limit_exceeded"
    )


async def test_a_replay_is_returned_after_the_model_was_removed(api: Api) -> None:
    body = {**POSTER, "model": "studio/removed"}
    record = tables.idempotency_records.insert().values(
        account_id=api.account_id, route=f"POST {CREATE}", key="k", fingerprint=fingerprint(CREATE, body),
        reply=msgspec.json.encode(accepted()), created_at=api.now,
    )  # fmt: skip
    await api.write(record)
    # It has ended since, and was created with another key.
    task = api.task("task_1", status="canceled", wake_at=None, updated_at=api.now + timedelta(hours=1))
    other = msgspec.structs.replace(task.request, api_key_id="key_other")
    await api.add_task(msgspec.structs.replace(task, request=other))
    response = await api.as_key("POST", CREATE, json=body, headers={"Idempotency-Key": "k"})
    assert (response.status_code, response.headers.get("Idempotent-Replayed")) == (200, "true")
    assert response.json() == {**NEW_TASK, "api_key_id": "key_other"}
    changed = {**body, "metadata": {"a": "b"}}
    response = await api.as_key("POST", CREATE, json=changed, headers={"Idempotency-Key": "k"})
    refused(response, 422, "idempotency_key_reused")
    await api.write(tables.api_keys.update().values(revoked_at=api.now))
    response = await api.as_key("POST", CREATE, json=body, headers={"Idempotency-Key": "k"})
    refused(response, 401, "invalid_api_key")


@pytest.mark.parametrize(
    "sent",
    [{"json": {}}, {"content": b"x"}, {"json": {"model": "m", "input": {}}, "headers": {"Idempotency-Key": ""}}],
)
async def test_a_revoked_cached_key_with_an_invalid_body_is_401(api: Api, sent: dict[str, Any]) -> None:
    api.accounts.answer = accepted()
    assert (await api.as_key("POST", CREATE, json=POSTER)).status_code == 200
    assert (await api.as_key("POST", CREATE, **sent)).status_code in {400, 415}
    await api.write(tables.api_keys.update().values(revoked_at=api.now))
    refused(await api.as_key("POST", CREATE, **sent), 401, "invalid_api_key")


async def test_a_language_model_does_not_run_as_a_task(api: Api) -> None:
    body = {"model": "gateway/chat-1", "input": {}}
    refused(await api.as_key("POST", CREATE, json=body), 400, "model_not_async")


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"metadata": {str(number): "x" for number in range(17)}}, "metadata"),
        ({"metadata": {"": "x"}}, "metadata."),
        ({"metadata": {"a": "b", "k" * 65: "x"}}, f"metadata.{'k' * 65}"),
        ({"metadata": {"a": "b", "k": "v" * 513}}, "metadata.k"),
        ({"metadata": {"a": "b", "k": 1}}, "metadata.k"),
        ({"metadata": {"a\nb": None}}, "metadata.a?b"),
        ({"metadata": {"k" * 1000: 1}}, f"metadata.{'k' * 110}…"),
        ({"metadata": ["k"]}, "metadata"),
        ({"webhook_url": "ftp://example.com"}, "webhook_url"),
        ({"webhook_url": "https://example.com/" + "a" * 1024}, "webhook_url"),
        ({"webhook_url": 7}, "webhook_url"),
    ],
)
async def test_invalid_metadata_and_webhooks_are_refused_by_name(
    api: Api, extra: dict[str, Any], param: str
) -> None:
    error = refused(await api.as_key("POST", CREATE, json={**POSTER, **extra}), 400, "invalid_parameter")
    assert error["param"] == param
    assert param in error["message"]


async def test_local_webhooks_are_for_development_only(api: Api) -> None:
    api.accounts.answer = accept
    body = {**POSTER, "webhook_url": "http://127.0.0.1:9000/hook", "metadata": {"a": "b"}}
    assert (await api.as_key("POST", CREATE, json=body)).status_code == 200
    command = api.accounts.asked[0][1]
    assert isinstance(command, CreateTask)
    assert (command.request.webhook_url, command.request.metadata) == (body["webhook_url"], {"a": "b"})
    api.configure(webhook_local_allowed=False)
    refused(await api.as_key("POST", CREATE, json=body), 400, "invalid_parameter")


async def test_a_task_has_every_field(api: Api) -> None:
    await api.add_task(api.task("task_1"))
    assert (await api.as_key("GET", "/v2/task/task_1")).json() == NEW_TASK


async def test_links_to_results_are_valid_for_an_hour(api: Api) -> None:
    task = api.task(status="succeeded", wake_at=None)
    items = (
        OutputItem(index=0, asset_id="asset_a", sha256="0" * 64, bytes=5, content_type="image/png",
                   width=2, height=3, expires_at=api.now + timedelta(days=7)),
        OutputItem(index=1, asset_id="asset_b", expires_at=api.now - timedelta(seconds=1)),
        OutputItem(index=2, url="https://provider.example/x.png"),
    )  # fmt: skip
    review = Review(case_id="rev_1", reason="manual", decision="capture_approved", deadline_at=api.now)
    state = msgspec.structs.replace(task.state, output=items, review=review, completed_at=api.now)
    await api.add_task(msgspec.structs.replace(task, state=state))
    answer = (await api.as_key("GET", f"/v2/task/{task.request_id}")).json()
    first, second, third = answer["output"]
    assert first["url"].startswith("https://holdfast.example/v2/assets/asset_a?exp=")
    assert (first["index"], first["width"], first["expires_at"]) == (0, 2, "2026-11-20T13:00:00.000Z")
    assert second["url"] is None
    assert third["url"] == "https://provider.example/x.png"
    assert (answer["review_case_id"], answer["review_hold_decision"]) == ("rev_1", "capture_approved")
    assert answer["usage"]["cost_credits"] == "0.00"


@pytest.mark.parametrize("status", ["processing", "review"])
async def test_results_have_no_links_before_success(api: Api, status: str) -> None:
    stored = OutputItem(
        index=0, asset_id="asset_a", sha256="0" * 64, bytes=5, content_type="image/png",
        expires_at=api.now + timedelta(days=1),
    )  # fmt: skip
    task = api.task(status=status)
    await api.add_task(msgspec.structs.replace(task, state=msgspec.structs.replace(task.state, output=(stored,))))
    (shown,) = (await api.as_key("GET", f"/v2/task/{task.request_id}")).json()["output"]
    assert (shown["url"], shown["sha256"]) == (None, "0" * 64)


async def test_expired_results_have_all_fields_but_links(api: Api) -> None:
    task = api.task(status="succeeded", wake_at=None)
    available = OutputItem(
        index=0, asset_id="asset_a", sha256="0" * 64, bytes=5, content_type="image/png",
        expires_at=api.now + timedelta(days=1),
    )  # fmt: skip
    over = msgspec.structs.replace(available, index=1, expires_at=api.now)
    ready = HostingState(status="ready", final_url_ready=True)
    gone = HostingState(status="expired")
    shown: dict[str, Any] = {}
    for hosting, items in ((ready, (available,)), (ready, (available, over)), (gone, (available,))):
        state = msgspec.structs.replace(task.state, output=items, hosting=hosting)
        request_id = f"task_{len(shown)}"
        await api.add_task(msgspec.structs.replace(task, request_id=request_id, state=state))
        answer = (await api.as_key("GET", f"/v2/task/{request_id}")).json()
        links = [item["url"] is not None for item in answer["output"]]
        shown[request_id] = (answer["hosting"]["status"], answer["hosting"]["final_url_ready"], links)
    assert list(shown.values()) == [
        ("ready", True, [True]),
        # Before the sweeper has come by, the clock alone ends a link.
        ("ready", False, [True, False]),
        ("expired", False, [False]),
    ]
    last = answer["output"][0]
    assert (last["sha256"], last["bytes"], last["expires_at"]) == ("0" * 64, 5, "2026-11-21T12:00:00.000Z")


@pytest.mark.parametrize("request_id", ["task_nope", "%00", "..", "TASK", "a" * 200, "task_%F0%9F%98%80"])
@pytest.mark.parametrize(("method", "end"), [("GET", ""), ("POST", "/retry"), ("POST", "/cancel")])
async def test_unknown_and_malformed_task_ids_are_404(api: Api, request_id: str, method: str, end: str) -> None:
    response = await api.as_key(method, f"/v2/task/{request_id}{end}")
    assert response.status_code == 404


async def test_another_accounts_task_is_404(api: Api) -> None:
    await api.add_task(api.task("task_other", account_id=api.other_account_id, status="failed", wake_at=None))
    for method, end in (("GET", ""), ("POST", "/retry"), ("POST", "/cancel")):
        response = await api.as_key(method, f"/v2/task/task_other{end}")
        refused(response, 404, "task_not_found")
    assert api.accounts.asked == api.tasks.asked == []


async def test_a_key_with_read_scope_may_only_read(api: Api) -> None:
    api.key = (await api.add_key(api.account_id, "key_reader", scopes=("tasks:read",))).secret
    await api.add_task(api.task("task_a"))
    assert (await api.as_key("GET", "/v2/task/task_a")).status_code == 200
    assert (await api.as_key("GET", "/v2/task/list")).status_code == 200
    for end in ("retry", "cancel"):
        refused(await api.as_key("POST", f"/v2/task/task_a/{end}"), 403, "insufficient_scope")


async def test_a_retry_creates_a_new_task_with_the_same_input(api: Api) -> None:
    api.accounts.answer = accept
    await api.add_task(api.task("task_a", status="failed", wake_at=None))
    answer = (await api.as_key("POST", "/v2/task/task_a/retry", headers={"Idempotency-Key": "k"})).json()
    assert answer == {**NEW_TASK, "quote_id": answer["quote_id"], "retry_of": "task_a"}
    command = api.accounts.asked[0][1]
    assert isinstance(command, CreateTask)
    assert command.request.input == api.task().request.input
    assert command.idempotency is not None
    assert command.idempotency.route == "POST /v2/task/{request_id}/retry"
    assert command.idempotency.fingerprint == fingerprint("/v2/task/task_a/retry", {})


@pytest.mark.parametrize("status", ["queued", "processing", "review"])
async def test_a_running_task_cannot_be_retried(api: Api, status: str) -> None:
    await api.add_task(api.task("task_a", status=status))
    response = await api.as_key("POST", "/v2/task/task_a/retry")
    refused(response, 409, "task_not_terminal")
    assert response.headers["X-Should-Retry"] == "false"
    assert api.accounts.asked == []


async def test_a_conflict_under_a_key_is_stored_by_the_account(api: Api) -> None:
    await api.add_task(api.task("task_a", status="processing"))

    async def store(_: str, command: object) -> Refusal:
        assert isinstance(command, RefuseTask)
        return command.refusal

    api.accounts.answer = store
    response = await api.as_key("POST", "/v2/task/task_a/retry", headers={"Idempotency-Key": "k"})
    refused(response, 409, "task_not_terminal")
    command = api.accounts.asked[0][1]
    assert isinstance(command, RefuseTask)
    assert (command.api_key_id, command.scope) == (api.key_id, "tasks:write")
    assert command.idempotency.fingerprint == fingerprint("/v2/task/task_a/retry", {})
    api.accounts.answer = Replayed(command.refusal)
    response = await api.as_key("POST", "/v2/task/task_a/retry", headers={"Idempotency-Key": "k"})
    refused(response, 409, "task_not_terminal")
    assert (response.headers["Idempotent-Replayed"], response.headers["X-Should-Retry"]) == ("true", "false")


async def test_routes_without_a_body_ignore_a_json_object(api: Api) -> None:
    api.tasks.answer = TaskReply(api.task("task_a"))
    await api.add_task(api.task("task_a"))
    path = "/v2/task/task_a/cancel"
    assert (await api.as_key("POST", path)).status_code == 200
    assert (await api.as_key("POST", path, json={})).status_code == 200
    assert (await api.as_key("POST", path, json={"x": 1})).status_code == 200
    refused(await api.as_key("POST", path, json=[1]), 400, "invalid_json")
    refused(await api.as_key("POST", path, content="{}"), 415, "unsupported_media_type")
    assert api.tasks.asked == [("task_a", CancelTask())] * 3


async def test_cancel_returns_the_task_as_stored_afterwards(api: Api) -> None:
    await api.add_task(api.task("task_a"))
    api.tasks.answer = TaskReply(api.task("task_a", status="canceled"))
    assert (await api.as_key("POST", "/v2/task/task_a/cancel")).json()["status"] == "canceled"
    api.tasks.answer = Refusal(code="task_already_terminal", message="It has succeeded.", final=True)
    response = await api.as_key("POST", "/v2/task/task_a/cancel")
    refused(response, 409, "task_already_terminal")


@pytest.mark.parametrize("replayed", [True, False])
async def test_the_reply_of_another_release_is_completed_by_the_tasks_row(api: Api, replayed: bool) -> None:
    reply = msgspec.structs.replace(accepted(), created_at=None)
    api.accounts.answer = Replayed(reply) if replayed else reply
    await api.add_task(api.task("task_1", status="processing", version=3))
    response = await api.as_key("POST", CREATE, json=POSTER, headers={"Idempotency-Key": "k"})
    assert response.json() == NEW_TASK
    assert response.headers.get("Idempotent-Replayed") == ("true" if replayed else None)
