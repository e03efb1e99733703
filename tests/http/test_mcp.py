"""The Model Context Protocol as bytes: messages, errors, tools, what an agent may not do, and streams."""

from __future__ import annotations

import base64
import hashlib
from datetime import timedelta
from functools import partial
from typing import Any

import httpx2
import jsonschema
import msgspec
import pytest
import trio
from tests.clients import ok
from tests.event_streams import StreamReader

from holdfast.actors.account.messages import CreateTask, TaskAccepted
from holdfast.actors.runtime.faults import OutcomeUnknown
from holdfast.actors.runtime.messages import Replayed
from holdfast.http.kit.waiting_calls import WaitingCalls
from holdfast.ledger.api_keys import ALL_SCOPES
from holdfast.ledger.credit.limits import Spending
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.task import OutputItem, Task
from holdfast.persistence.records import tables
from holdfast.telemetry import logs
from holdfast_compat.mcp.results import IMAGES_BYTES_MAX
from holdfast_compat.mcp.tools import TOOLS

from .api import Api
from .identities import ACCOUNT, NOW, OTHER_ACCOUNT
from .stage import Stage, make_task
from .test_override_calls import act

ID = "task_" + "1" * 32
ACCEPTED = TaskAccepted(ID, "quo_" + "1" * 32, "queued", None, 12_000, "1 image", NOW)
NEW = {"model": "studio/image-1", "input": {"prompt": "a lighthouse"}, "max_credits": "0.05"}
PNG = b"\x89PNG\r\n\x1a\n" + bytes(64)
READS = {"list_models", "get_model", "quote", "wait_for_task", "get_task", "list_tasks", "list_files", "get_file"}
WRITES = {"create_task", "cancel_task", "upload_file"}


async def post(api: Stage, body: object, **options: Any) -> httpx2.Response:
    """Send a body, of bytes as they are, with the headers that the protocol's clients send."""
    content = body if isinstance(body, bytes) else msgspec.json.encode(body)
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        **options.pop("headers", {}),
    }
    credential = options.pop("credential", api.key)
    return await api.call("POST", "/mcp", credential=credential, content=content, headers=headers, **options)


def message(method: str, params: object = None, *, number: object = 1) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": number, "method": method} | ({} if params is None else {"params": params})


async def asked(api: Stage, method: str, params: object = None, **options: Any) -> dict[str, Any]:
    """Send a request, and return its result."""
    response = await post(api, message(method, params), **options)
    assert response.status_code == 200, response.text
    answer = response.json()
    assert answer.keys() == {"jsonrpc", "id", "result"}, answer
    return dict(answer["result"])


async def tool(api: Stage, name: str, arguments: object = None, **options: Any) -> dict[str, Any]:
    params = {"name": name} | ({} if arguments is None else {"arguments": arguments})
    return await asked(api, "tools/call", params, **options)


async def refused(api: Stage, name: str, arguments: object, code: str, **options: Any) -> str:
    """Call a tool that must refuse, and return the text that an agent reads."""
    result = await tool(api, name, arguments, **options)
    assert result["isError"] is True, result
    assert result["structuredContent"]["error"]["code"] == code, result
    [part] = result["content"]
    text = part["text"]
    assert isinstance(text, str)
    assert text.startswith(f"{code}: ")
    return text


def error_of(response: httpx2.Response, status: int, code: int, number: object = None) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["Content-Type"] == "application/json"
    answer = response.json()
    assert answer.keys() == {"jsonrpc", "id", "error"}
    assert (answer["jsonrpc"], answer["id"], answer["error"]["code"]) == ("2.0", number, code)
    error: dict[str, Any] = answer["error"]
    return error


# ----------------------------------------------------------------------------------------------- messages


@pytest.mark.parametrize(
    ("wanted", "given"),
    [(each, each) for each in ("2025-11-25", "2025-06-18", "2025-03-26")]
    + [("2024-11-05", "2025-11-25"), ("2031-01-01", "2025-11-25"), (7, "2025-11-25")],
)
async def test_a_client_gets_the_revision_that_it_asks_for_if_it_is_known(
    api: Api, wanted: object, given: str
) -> None:
    result = await asked(
        api,
        "initialize",
        {"protocolVersion": wanted, "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}},
    )
    assert result["protocolVersion"] == given
    assert result["capabilities"] == {"tools": {}}
    assert result["serverInfo"]["name"] == "holdfast"
    done = await post(api, {"jsonrpc": "2.0", "method": "notifications/initialized"})
    assert (done.status_code, done.content) == (202, b"")
    assert "mcp-session-id" not in done.headers


async def test_a_message_is_answered_in_these_bytes(api: Api) -> None:
    response = await post(api, b'{"jsonrpc":"2.0","id":"a","method":"ping"}')
    assert response.content == b'{"jsonrpc":"2.0","id":"a","result":{}}'
    assert response.headers["Content-Type"] == "application/json"
    for taken in (
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}},
        {"jsonrpc": "2.0", "id": 1, "result": {}},
    ):
        assert ((await post(api, taken)).status_code, (await post(api, taken)).content) == (202, b"")
    unknown = error_of(await post(api, message("resources/list")), 200, -32601, 1)
    assert unknown["message"] == "There is no method 'resources/list'."
    error_of(await post(api, message("tools/list", {"cursor": "a"})), 200, -32602, 1)
    error_of(await post(api, message("tools/call", {"name": "make_money"})), 200, -32602, 1)
    error_of(await post(api, message("tools/call", {"name": "quote", "arguments": []})), 200, -32602, 1)


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT"])
async def test_there_is_no_stream_and_no_session_to_get_or_delete(api: Api, method: str) -> None:
    response = await api.as_key(method, "/mcp")
    assert response.status_code == 405
    assert response.headers["Allow"] == "OPTIONS, POST"


@pytest.mark.parametrize(
    ("body", "code", "number"),
    [
        (b"", -32700, None),
        (b"{", -32700, None),
        (b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}', -32700, None),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"\\u0000"}}', -32700, None),
        (b'{"a":' * 90 + b"1" + b"}" * 90, -32700, None),
        (b"[" * 5000, -32700, None),
        (b"\xff", -32700, None),
        (b"1", -32600, None),
        (b'"ping"', -32600, None),
        (b"[]", -32600, None),
        (b"{}", -32600, None),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600, 1),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":1,"method":7}', -32600, 1),
        (b'{"jsonrpc":"2.0","id":1}', -32600, 1),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[1]}', -32602, 1),
    ],
)  # fmt: skip
async def test_what_is_no_message_is_an_error_of_the_protocol(
    api: Api, body: bytes, code: int, number: object
) -> None:
    error_of(await post(api, body), 400, code, number)


async def test_batches_are_of_one_revision(api: Api) -> None:
    batch = [
        message("ping", number=1),
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        message("initialize", {}, number=2),
        7,
        message("tools/call", {"name": "list_tasks"}, number="c"),
    ]
    for headers in ({}, {"MCP-Protocol-Version": "2025-03-26"}):
        response = await post(api, batch, headers=headers)
        assert response.status_code == 200
        answers = response.json()
        assert [each["id"] for each in answers] == [1, 2, None, "c"]
        assert [each.get("error", {}).get("code") for each in answers] == [None, -32600, -32700, None]
        assert answers[3]["result"]["structuredContent"] == {"tasks": []}
    only_notes = await post(api, batch[1:2])
    assert (only_notes.status_code, only_notes.content) == (202, b"")
    error_of(await post(api, [message("ping")] * 21), 400, -32600)
    for version in ("2025-06-18", "2025-11-25"):
        error_of(await post(api, batch, headers={"MCP-Protocol-Version": version}), 400, -32600)


async def test_a_later_revision_is_refused_with_those_that_are_known(api: Api) -> None:
    headers = {"MCP-Protocol-Version": "2026-07-28"}
    error = error_of(await post(api, message("server/discover"), headers=headers), 400, -32022, 1)
    assert error["data"] == {
        "supported": ["2025-11-25", "2025-06-18", "2025-03-26"],
        "requested": "2026-07-28",
    }
    found = await asked(api, "initialize", {"protocolVersion": "2026-07-28"}, headers=headers)
    assert found["protocolVersion"] == "2025-11-25"


async def test_the_body_is_json_of_limited_size(api: Api) -> None:
    response = await post(api, b"a=1", headers={"Content-Type": "text/plain"})
    assert (response.status_code, response.json()["error"]["code"]) == (415, "unsupported_media_type")
    api.configure(body_bytes_max=1024)
    response = await post(api, message("ping", {"a": "b" * 1024}))
    assert (response.status_code, response.json()["error"]["code"]) == (413, "request_too_large")


# ------------------------------------------------------------------------------------- who may do what


async def test_only_a_key_that_works_is_let_in(api: Api) -> None:
    new = partial(api.add_key, ACCOUNT, scopes=ALL_SCOPES)
    paused = await new("key_" + "2" * 32, is_paused=True)
    expired = await new("key_" + "3" * 32, expires_at=NOW)
    revoked = await new("key_" + "4" * 32, revoked_at=NOW - timedelta(days=1))
    for credential, code in {
        "": "missing_credentials",
        api.session: "wrong_credential_type",
        paused.secret: "api_key_paused",
        expired.secret: "api_key_expired",
        revoked.secret: "invalid_api_key",
        "hk_test_" + "a" * 38: "invalid_api_key",
    }.items():
        for body in (message("initialize", {}), message("tools/call", {"name": "create_task", "arguments": NEW})):
            response = await post(api, body, credential=credential)
            assert (response.status_code, response.json()["error"]["code"]) == (401, code)
            assert response.headers["WWW-Authenticate"] == "Bearer"
    assert not api.accounts.asked


async def test_a_page_of_another_origin_is_refused(api: Api) -> None:
    own = {"Origin": api.public_url}
    assert await asked(api, "ping", headers=own) == {}
    for origin in ("https://evil.example", "null", f"{api.public_url}.evil.example", "http://holdfast.example", ""):
        response = await post(api, message("ping"), headers={"Origin": origin})
        assert (response.status_code, response.json()["error"]["code"]) == (403, "cross_origin_request")


async def test_a_key_sees_and_calls_the_tools_of_its_scopes(api: Api) -> None:
    listed: dict[str, set[str]] = {}
    for digit, scope in enumerate(("tasks:read", "tasks:write", "account:read", "usage:read"), start=2):
        key = await api.add_key(ACCOUNT, "key_" + f"{digit}" * 32, scopes=(scope,))
        tools = (await asked(api, "tools/list", credential=key.secret))["tools"]
        listed[scope] = {each["name"] for each in tools}
        for name in TOOLS.keys() - listed[scope]:
            text = await refused(api, name, {}, "insufficient_scope", credential=key.secret)
            assert "Do not repeat this" in text
    assert listed == {
        "tasks:read": READS, "tasks:write": WRITES, "account:read": {"get_account"}, "usage:read": set(),
    }  # fmt: skip
    assert not api.accounts.asked
    assert not api.tasks.asked


async def test_what_another_account_has_does_not_exist(api: Api) -> None:
    await api.add_task(api.task(ID, account_id=OTHER_ACCOUNT))
    for name in ("get_task", "wait_for_task", "cancel_task"):
        await refused(api, name, {"request_id": ID}, "task_not_found")
        await refused(api, name, {"request_id": "'; drop table tasks"}, "task_not_found")
    assert (await tool(api, "list_tasks"))["structuredContent"] == {"tasks": []}
    await refused(api, "get_file", {"file_id": "file_" + "1" * 32}, "file_not_found")
    assert not api.tasks.asked


async def test_tools_are_described_with_the_prices_for_the_key(api: Api) -> None:
    tools = {each["name"]: each for each in (await asked(api, "tools/list"))["tools"]}
    assert tools.keys() == READS | WRITES
    described = tools["create_task"]["description"]
    assert "studio/image-1 (image): 0.012 credits per image" in described
    for each in tools.values():
        jsonschema.Draft202012Validator.check_schema(each["inputSchema"])
        assert each["inputSchema"]["type"] == "object"
        assert each["inputSchema"]["additionalProperties"] is False
        assert all("description" in field for field in each["inputSchema"]["properties"].values()), each
        assert each["description"]
    assert tools["create_task"]["inputSchema"]["required"] == ["model", "input", "max_credits"]
    assert {name for name, each in tools.items() if each["annotations"]["readOnlyHint"]} == READS
    narrow = await api.add_key(ACCOUNT, "key_" + "2" * 32, models=("studio/tone-1",))
    for credential, models in ((narrow.secret, ["studio/tone-1"]), (api.key, None)):
        listed = (await tool(api, "list_models", credential=credential))["structuredContent"]["models"]
        assert models is None or [each["model"] for each in listed] == models
        tools = {each["name"]: each for each in (await asked(api, "tools/list", credential=credential))["tools"]}
        assert ("studio/image-1" in tools["create_task"]["description"]) is (models is None)


async def test_models_and_quotes_are_those_of_the_catalog(api: Api) -> None:
    images = (await tool(api, "list_models", {"modality": "image"}))["structuredContent"]["models"]
    assert {each["modality"] for each in images} == {"image"}
    shown = (await tool(api, "get_model", {"model": "studio/image-1"}))["structuredContent"]
    same = await api.call("GET", "/v1/models/studio/image-1")
    assert shown == same.json()
    await refused(api, "get_model", {"model": "studio/none"}, "model_not_found")
    sent = {"model": "studio/image-1", "input": {"prompt": "a pier", "n": 3}}
    quoted = (await tool(api, "quote", sent))["structuredContent"]
    assert (quoted["estimate"]["max_credits"], quoted["account_id"]) == ("0.036", ACCOUNT)
    text = await refused(api, "quote", {**sent, "input": {"prompt": ""}}, "invalid_input")
    assert "input.prompt must not be blank" in text


# ------------------------------------------------------------------------------------------------- tasks


async def test_a_paused_model_is_listed_with_its_pause(api: Api) -> None:
    ok(await act(api, "models/studio/image-1/pause", reason="ticket 7", for_s=90, new_tasks="wait", note="at noon"))
    listed = (await tool(api, "list_models"))["structuredContent"]["models"]
    paused = {each["model"]: each["paused"] for each in listed}
    assert paused.pop("studio/image-1") == {
        "until": "2026-11-20T12:01:30.000Z",
        "new_tasks": "wait",
        "note": "at noon",
    }
    assert {*paused.values()} == {None}


async def test_a_task_is_created_as_the_native_api_does(api: Api) -> None:
    api.accounts.answer = ACCEPTED
    result = await tool(api, "create_task", {**NEW, "deadline_s": 60, "metadata": {"end_user": "ann"}})
    shown = result["structuredContent"]
    assert (shown["request_id"], shown["status"], shown["ended"]) == (ID, "queued", False)
    assert shown["next_step"] == "Call wait_for_task with this request_id."
    assert msgspec.json.decode(result["content"][0]["text"]) == shown
    [(account_id, command)] = api.accounts.asked
    assert account_id == ACCOUNT
    assert isinstance(command, CreateTask)
    assert command.idempotency is None
    request = command.request
    assert (request.deadline_s, request.hold_micro, request.metadata) == (60, 12_000, {"end_user": "ann"})


@pytest.mark.parametrize(
    ("change", "code", "names"),
    [
        ({"max_credits": None}, "missing_parameter", "max_credits"),
        ({"max_credits": 0.05}, "invalid_parameter", "max_credits"),
        ({"max_credits": "0.011999"}, "max_credits_exceeded", "0.012"),
        ({"max_credits": "-1"}, "invalid_amount", "max_credits"),
        ({"max_credit": "1"}, "invalid_parameter", "max_credit"),
        ({"deadline_s": 0}, "invalid_parameter", "deadline_s"),
        ({"idempotency_key": ""}, "invalid_idempotency_key", "idempotency_key"),
        ({"model": "studio/none"}, "model_not_found", "studio/none"),
        ({"input": {"prompt": "a", "colour": "red"}}, "invalid_input", "input.colour"),
        ({"input": "a lighthouse"}, "invalid_parameter", "input"),
        ({"quote_id": "quo_none"}, "quote_mismatch", "quote"),
    ],
)
async def test_nothing_is_created_of_arguments_that_are_wrong(
    api: Api, change: dict[str, object], code: str, names: str
) -> None:
    arguments = {name: value for name, value in {**NEW, **change}.items() if value is not None}
    result = await tool(api, "create_task", arguments)
    assert result["isError"] is True
    error = result["structuredContent"]["error"]
    assert error["code"] == code
    assert names in error["message"] or names == error["param"]
    assert not api.accounts.asked


async def test_a_repeated_call_with_its_key_has_the_same_task(api: Api) -> None:
    await api.add_task(api.task(ID, status="processing"))
    api.accounts.answer = OutcomeUnknown("no reply")
    keyed = {**NEW, "idempotency_key": "mine"}
    text = await refused(api, "create_task", keyed, "temporarily_unavailable")
    assert "with the same idempotency_key" in text
    api.accounts.answer = Replayed(ACCEPTED)
    result = (await tool(api, "create_task", keyed))["structuredContent"]
    assert (result["request_id"], result["replayed"]) == (ID, True)
    await tool(api, "create_task", {**keyed, "max_credits": "0.06"})
    first, second, third = [command.idempotency for _, command in api.accounts.asked]
    assert first == second
    assert first is not None
    assert third is not None
    assert (first.key, third.key) == ("mine", "mine")
    assert first.fingerprint != third.fingerprint

    api.accounts.answer = OutcomeUnknown("no reply")
    text = await refused(api, "create_task", NEW, "outcome_unknown")
    assert "list_tasks before you create it again" in text


async def test_a_spent_limit_tells_an_agent_to_stop(api: Api) -> None:
    day = Spending("key_" + "1" * 32, "day", 5_000_000, starts_at=NOW.replace(hour=0), captured_micro=4_990_000)
    api.accounts.answer = day.refusal(12_000)
    text = await refused(api, "create_task", NEW, "key_limit_exceeded")
    assert text == (
        "key_limit_exceeded: The hold of 0.012 exceeds the API key's limit of 5.00 a day, of which 4.99 is spent "
        "until 2026-11-21T00:00:00.000Z. Stop creating tasks: nothing was created or charged, and repeating this "
        "changes nothing. 0.01 credits are left of the limit; it resets at 2026-11-21T00:00:00.000Z."
    )
    api.accounts.answer = Spending("", "total", 1_000_000, captured_micro=1_000_000).refusal(12_000)
    text = await refused(api, "create_task", NEW, "account_limit_exceeded")
    assert text.endswith("0.00 credits are left of the limit; it does not reset.")
    api.accounts.answer = Refusal(code="insufficient_credit", message="Too little.", required_micro=1)
    text = await refused(api, "create_task", NEW, "insufficient_credit")
    assert text.endswith("Stop creating tasks and ask the owner of the account for credit.")


async def test_a_task_is_shown_canceled_and_listed(api: Api) -> None:
    await api.add_task(api.task(ID, status="processing"))
    shown = (await tool(api, "get_task", {"request_id": ID}))["structuredContent"]
    assert (shown["status"], shown["held_credits"], shown["cost_credits"]) == ("processing", "0.012", "0.00")
    assert shown["next_step"] == "It has not ended: call wait_for_task again."
    listed = (await tool(api, "list_tasks", {"limit": 1}))["structuredContent"]["tasks"]
    assert [each["request_id"] for each in listed] == [ID]
    await refused(api, "list_tasks", {"limit": 51}, "invalid_parameter")
    api.tasks.answer = Refusal(code="task_already_terminal", message="It has ended.")
    await refused(api, "cancel_task", {"request_id": ID}, "task_already_terminal")


def ended(content: bytes, *, content_type: str = "image/png") -> Task:
    """A task that has made two results: one that is stored, and one that is at its provider."""
    stored = OutputItem(
        index=0,
        asset_id="asset_" + "1" * 32,
        sha256=hashlib.sha256(content).hexdigest(),
        content_type=content_type,
        bytes=len(content),
        expires_at=NOW + timedelta(days=1),
    )
    elsewhere = OutputItem(index=1, url="https://provider.example/b.png")
    task = make_task(ID, status="succeeded", wake_at=None)
    return msgspec.structs.replace(task, state=msgspec.structs.replace(task.state, output=(stored, elsewhere)))


async def test_results_are_links(api: Api) -> None:
    await api.add_task(ended(PNG))
    [text, link, other] = (await tool(api, "wait_for_task", {"request_id": ID}))["content"]
    assert text["type"] == "text"
    assert link["uri"].startswith(f"{api.public_url}/v2/assets/asset_")
    assert {**link, "uri": ""} == {
        "type": "resource_link", "uri": "", "name": f"{ID}-0", "mimeType": "image/png", "size": len(PNG),
    }  # fmt: skip
    assert other == {"type": "resource_link", "uri": "https://provider.example/b.png", "name": f"{ID}-1"}


async def test_an_image_that_is_small_is_part_of_the_result(api: Api) -> None:
    await api.add_task(ended(PNG))
    await trio.to_thread.run_sync(api.store.put, PNG, hashlib.sha256(PNG).hexdigest(), "png")
    for name in ("get_task", "wait_for_task"):
        image = (await tool(api, name, {"request_id": ID}))["content"][-1]
        assert image == {"type": "image", "data": base64.b64encode(PNG).decode(), "mimeType": "image/png"}
        parts = (await tool(api, name, {"request_id": ID, "images": False}))["content"]
        assert [each["type"] for each in parts] == ["text", "resource_link", "resource_link"]


@pytest.mark.parametrize("case", ["large", "sound", "missing"])
async def test_other_results_are_links_alone(api: Api, case: str) -> None:
    content = PNG + bytes(IMAGES_BYTES_MAX if case == "large" else 0)
    await api.add_task(ended(content, content_type="audio/wav" if case == "sound" else "image/png"))
    if case != "missing":
        extension = "wav" if case == "sound" else "png"
        await trio.to_thread.run_sync(api.store.put, content, hashlib.sha256(content).hexdigest(), extension)
    parts = (await tool(api, "get_task", {"request_id": ID}))["content"]
    assert [each["type"] for each in parts] == ["text", "resource_link", "resource_link"]


async def test_files_are_uploaded_listed_and_shown(api: Api) -> None:
    sent = {"data": base64.b64encode(PNG).decode(), "filename": "a/cat.png"}
    stored = (await tool(api, "upload_file", sent))["structuredContent"]
    assert (stored["filename"], stored["content_type"], stored["bytes"]) == ("cat.png", "image/png", len(PNG))
    listed = (await tool(api, "list_files"))["structuredContent"]["files"]
    assert [each["file_id"] for each in listed] == [stored["file_id"]]
    result = await tool(api, "get_file", {"file_id": stored["file_id"]})
    assert [each["type"] for each in result["content"]] == ["text", "resource_link", "image"]
    assert base64.b64decode(result["content"][2]["data"]) == PNG
    for data in ("not base64!", ""):
        assert "data" in await refused(api, "upload_file", {"data": data}, "invalid_parameter")
    api.configure(file_bytes_max=16)
    await refused(api, "upload_file", sent, "request_too_large")
    api.configure(files_max=1)
    await refused(api, "upload_file", sent, "file_limit_reached")


async def test_the_account_shows_what_is_left_of_each_limit(api: Api) -> None:
    key = await api.add_key(
        ACCOUNT,
        "key_" + "2" * 32,
        scopes=ALL_SCOPES,
        models=("studio/*",),
        max_credits_per_task_micro=50_000,
        limit_micro=5_000_000,
        limit_window="day",
        window_start=NOW.replace(hour=0),
        captured_micro=4_000_000,
    )
    await api.write(
        tables.account_limits.insert().values(
            account_id=ACCOUNT,
            limit_window="month",
            limit_micro=9_000_000,
            window_start=NOW.replace(day=1, hour=0),
            captured_micro=10_000_000,
        )
    )
    shown = (await tool(api, "get_account", {}, credential=key.secret))["structuredContent"]
    assert shown == {
        "account_id": ACCOUNT,
        "available_balance": "9.76",
        "held_total": "0.24",
        "balance": "10.00",
        "limits": [
            {
                "of": "api_key", "window": "day", "credits": "5.00", "spent": "4.00", "left": "1.00",
                "resets_at": "2026-11-21T00:00:00.000Z",
            },
            {
                "of": "account", "window": "month", "credits": "9.00", "spent": "10.00", "left": "0.00",
                "resets_at": "2026-12-01T00:00:00.000Z",
            },
        ],
        "max_credits_per_task": "0.05",
        "models": ["studio/*"],
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------ streams


def at_percent(percent: int | None, **fields: Any) -> Task:
    task = make_task(ID, **{"status": "processing", **fields})
    return msgspec.structs.replace(task, state=msgspec.structs.replace(task.state, percent=percent))


async def stream_of(base: str, key: str, arguments: dict[str, object], **meta: object) -> tuple[Any, StreamReader]:
    host, _, port = base.removeprefix("http://").partition(":")
    params: dict[str, object] = {"name": "wait_for_task", "arguments": {"request_id": ID, **arguments}}
    if meta:
        params["_meta"] = meta
    body = msgspec.json.encode(message("tools/call", params, number=9))
    stream = await trio.open_tcp_stream(host, int(port))
    head = (
        f"POST /mcp HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n"
        f"Accept: application/json, text/event-stream\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    await stream.send_all(head.encode() + body)
    reader = StreamReader(stream)
    await reader.read_head()
    return stream, reader


async def update(api: Api, task: Task) -> None:
    """Change the task's row, and say so as the journal does."""
    await api.write(
        tables.tasks.update()
        .where(tables.tasks.c.request_id == ID)
        .values(status=task.status, state=msgspec.to_builtins(task.state), version=task.version)
    )
    api.deps.following.changes.note_missed()


async def test_a_wait_sends_progress_and_then_the_result(api: Api) -> None:
    await api.add_task(at_percent(None))
    async with api.serving() as base:
        stream, reader = await stream_of(base, api.key, {"wait_s": 55}, progressToken="t")
        async with stream:
            assert reader.status == 200
            assert "content-type: text/event-stream" in reader.head
            first = await reader.next()
            assert first is not None
            assert first.fields == {
                "event": "message",
                "data": '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"t",'
                '"progress":0,"total":100,"message":"processing"}}',
            }
            await update(api, at_percent(40, version=2))
            second = await reader.next()
            assert second is not None
            assert second.data["params"]["progress"] == 40
            # Progress never decreases, and the same is not sent twice.
            await update(api, at_percent(40, version=3))
            done = ended(PNG)
            await update(api, msgspec.structs.replace(done, version=4))
            last = await reader.next()
            assert last is not None
            assert (last.data["id"], last.data["result"]["structuredContent"]["status"]) == (9, "succeeded")
            assert await reader.next() is None
            assert reader.is_complete


async def test_a_wait_ends_in_time_without_the_task(api: Api) -> None:
    await api.add_task(at_percent(10))
    async with api.serving() as base:
        stream, reader = await stream_of(base, api.key, {"wait_s": 0})
        async with stream:
            only = await reader.next()
            assert only is not None
            shown = only.data["result"]["structuredContent"]
            assert (shown["ended"], shown["percent"]) == (False, 10)
            assert await reader.next() is None


async def test_a_wait_of_a_key_that_is_revoked_meanwhile_ends_with_that(api: Api) -> None:
    await api.add_task(at_percent(10))
    async with api.serving() as base:
        stream, reader = await stream_of(base, api.key, {"wait_s": 55}, progressToken=1)
        async with stream:
            await reader.next()
            await api.write(tables.api_keys.update().values(revoked_at=NOW))
            await update(api, at_percent(20, version=2))
            last = await reader.next()
            assert last is not None
            assert last.data["result"]["structuredContent"]["error"]["code"] == "invalid_api_key"
            assert await reader.next() is None


async def test_a_client_without_streams_and_one_too_many_get_json(api: Api) -> None:
    await api.add_task(at_percent(10))
    arguments = {"request_id": ID, "wait_s": 0}
    shown = await tool(api, "wait_for_task", arguments, headers={"Accept": "application/json"})
    assert shown["structuredContent"]["ended"] is False
    api.change(waiting=WaitingCalls(per_account_max=0, all_max=1))
    text = await refused(api, "wait_for_task", arguments, "rate_limit_exceeded")
    assert "Wait 1 seconds" in text
    await refused(api, "wait_for_task", {"request_id": ID, "wait_s": 56}, "invalid_parameter")


async def test_a_call_that_changed_something_is_kept(api: Api) -> None:
    logs._lines.keep(100_000, 3600)
    try:
        sent = {"data": base64.b64encode(b"a note").decode(), "filename": "a.txt"}
        params = {"name": "upload_file", "arguments": sent}
        stored = await post(api, message("tools/call", params))
        read = await post(api, message("tools/call", {"name": "list_files", "arguments": {}}))
        wrong = await post(api, message("tools/call", {"name": "upload_file", "arguments": {"data": 1}}))
        ids = [each.headers["X-Request-Id"] for each in (stored, read, wrong)]
        found = [(await logs.find_lines([each], since="", until="9", limit=9)).lines for each in ids]
    finally:
        logs._lines.keep(0, 0)
    changed = [[line for line in lines if "changed something" in line] for lines in found]
    assert [len(each) for each in changed] == [1, 0, 0]
    assert api.account_id in changed[0][0]
