"""Lists of tasks and of usage: pages, filters and cursors."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from sqlalchemy import text
from tests.clients import ok, refused

from holdfast.ledger.api_keys import TASKS_WRITE
from holdfast.persistence.queries import filtered_usage
from holdfast.persistence.records import tables

if TYPE_CHECKING:
    from tests.http.api import Api


async def pages(api: Api, path: str, query: str, *, between: Any = None) -> list[str]:
    """Every id of a list, page by page; ``between`` runs after each page."""
    seen: list[str] = []
    cursor = ""
    while True:
        call = api.as_key if "task" in path else api.as_session
        answer = (await call("GET", f"{path}?{query}{cursor}")).json()
        assert "error" not in answer, answer
        seen += [each["request_id"] for each in answer["data"]]
        if answer["next_cursor"] is None:
            return seen
        cursor = f"&cursor={answer['next_cursor']}"
        if between is not None:
            await between(len(seen))


@pytest.mark.parametrize("path", ["/v2/task/list", "/v2/usage/logs"])
async def test_pages_have_every_entry_once_while_others_are_added(api: Api, path: str) -> None:
    for number in range(7):
        # Three moments for seven entries, a microsecond apart: ties and neighbours.
        at = api.now + timedelta(microseconds=number // 3)
        await api.add_task(api.task(f"task_{number}", at=at))
    await api.add_task(api.task("task_x", account_id=api.other_account_id))

    async def arrive(seen: int) -> None:
        await api.add_task(api.task(f"task_new{seen}", at=api.now + timedelta(seconds=seen)))

    expected = [f"task_{number}" for number in (6, 5, 4, 3, 2, 1, 0)]
    assert await pages(api, path, "limit=2", between=arrive) == expected


async def test_a_first_page_is_read_together_with_the_credential(api: Api) -> None:
    await api.add_task(api.task("task_1"))
    reads = []
    for query in ("", "", "?limit=20", "?limit=21", "?status=queued"):
        before = api.rows.reads
        assert [each["request_id"] for each in ok(await api.as_key("GET", f"/v2/task/list{query}"))["data"]]
        reads.append(api.rows.reads - before)
    # At first it is not known whose the key is.
    assert reads == [2, 1, 1, 2, 2]


@pytest.mark.parametrize("path", ["/v2/task/list", "/v2/usage/logs"])
@pytest.mark.parametrize("damaged", [{4}, {0}, {6, 5}, {1, 2, 3}])
async def test_an_unreadable_row_is_named_by_its_page(api: Api, path: str, damaged: set[int]) -> None:
    """Anywhere on a page, also as its last row, from which the cursor is created."""
    for number in range(7):
        await api.add_task(api.task(f"task_{number}", at=api.now + timedelta(seconds=number)))
    for number in damaged:
        name = f"task_{number}"
        spoilt = {"unknown": "field"}
        await api.write(tables.tasks.update().where(tables.tasks.c.request_id == name).values(state=spoilt))
        await api.write(
            tables.usage_entries.update()
            .where(tables.usage_entries.c.request_id == name)
            .values(status_history=spoilt)
        )
    expected = [f"task_{number}" for number in (6, 5, 4, 3, 2, 1, 0) if number not in damaged]
    assert await pages(api, path, "limit=2") == expected
    call = api.as_key if path == "/v2/task/list" else api.as_session
    whole = (await call("GET", path)).json()
    assert whole["unreadable"] == [f"task_{number}" for number in sorted(damaged, reverse=True)]
    after = (await call("GET", f"{path}?to={api.now.isoformat().replace('+00:00', 'Z')}")).json()
    assert after == {"data": [], "next_cursor": None, "unreadable": []}


@pytest.mark.parametrize("value", ["infinity", "-infinity", "12000-01-01"])
@pytest.mark.parametrize("filters", ["", "model=studio/image-1"])
@pytest.mark.parametrize("path", ["/v2/task/list", "/v2/usage/logs"])
async def test_a_time_that_cannot_be_read_closes_no_list(api: Api, path: str, filters: str, value: str) -> None:
    for number in range(5):
        await api.add_task(api.task(f"task_{number}", at=api.now + timedelta(seconds=number)))
    await api.write(text(f"update tasks set created_at = '{value}' where request_id in ('task_2', 'task_3')"))
    await api.write(text(f"update usage_entries set ts = '{value}' where request_id in ('task_2', 'task_3')"))
    call = api.as_key if path == "/v2/task/list" else api.as_session
    whole = (await call("GET", f"{path}?{filters}")).json()
    assert [each["request_id"] for each in whole["data"]] == [f"task_{number}" for number in (4, 1, 0)]
    assert whole["unreadable"] == ["task_3", "task_2"]
    # Each is on one page, though a page ends with such a row and the next begins with another.
    found, query = list[str](), f"{filters}&limit=1"
    for _ in range(5):
        one = (await call("GET", f"{path}?{query}")).json()
        found += [*(each["request_id"] for each in one["data"]), *one["unreadable"]]
        query = f"{filters}&limit=1&cursor={one['next_cursor']}"
    assert one["next_cursor"] is None
    assert sorted(found) == [f"task_{number}" for number in range(5)]


@pytest.mark.parametrize("path", ["/v2/task/list", "/v2/usage/logs"])
async def test_lists_can_be_filtered(api: Api, path: str) -> None:
    for number in range(4):
        status = "failed" if number % 2 else "queued"
        task = api.task(f"task_{number}", at=api.now + timedelta(hours=number), status=status)
        await api.add_task(task)
    assert await pages(api, path, "status=failed&limit=1") == ["task_3", "task_1"]
    assert await pages(api, path, "model=studio/image-1") == ["task_3", "task_2", "task_1", "task_0"]
    assert await pages(api, path, "model=nope") == []
    assert await pages(api, path, f"api_key_id={api.key_id}&status=failed") == ["task_3", "task_1"]
    assert await pages(api, path, "api_key_id=key_other") == []
    inside = "from=2026-11-20T13:00:00Z&to=2026-11-20T15:00:00%2B00:00&limit=1"
    assert await pages(api, path, inside) == ["task_2", "task_1"]
    assert await pages(api, path, "from=2026-11-20T14:00:00+01:00&to=2026-11-21") == [
        "task_3",
        "task_2",
        "task_1",
    ]


async def test_tasks_can_be_filtered_by_whom_and_what_they_are_for(api: Api) -> None:
    path, bea = "/v2/task/list", "b" * 512  # as long as a text of the metadata may be
    for number in range(6):
        task = api.task(f"task_{number}", at=api.now + timedelta(hours=number))
        metadata = {"end_user": "ann" if number % 2 else bea, "project": f"p & {number % 3}"}
        request = msgspec.structs.replace(task.request, metadata=metadata, api_key_id=f"key_{number // 3}")
        await api.add_task(msgspec.structs.replace(task, request=request))
    assert await pages(api, path, "end_user=ann&limit=2") == ["task_5", "task_3", "task_1"]
    assert await pages(api, path, "metadata[end_user]=ann&limit=2") == ["task_5", "task_3", "task_1"]
    assert await pages(api, path, "metadata%5Bproject%5D=p+%26+0") == ["task_3", "task_0"]
    assert await pages(api, path, f"metadata[project]=p%20%26%200&end_user={bea}&api_key_id=key_0") == ["task_0"]
    assert await pages(api, path, f"metadata[end_user]=ann&end_user={bea}") == []
    assert await pages(api, path, "metadata[none]=") == []
    assert await pages(api, "/v2/usage/logs", "end_user=ann&limit=2") == ["task_5", "task_3", "task_1"]
    [newest, *_] = (await api.as_key("GET", f"{path}?end_user=ann")).json()["data"]
    assert (newest["api_key_id"], newest["metadata"]["end_user"]) == ("key_1", "ann")
    cursor = (await api.as_key("GET", f"{path}?metadata[end_user]=ann&limit=2")).json()["next_cursor"]
    other = await api.as_key("GET", f"{path}?metadata[end_user]=bea&cursor={cursor}")
    refused(other, 400, "invalid_cursor")


@pytest.mark.parametrize(
    ("query", "param", "said"),
    [
        ("metadata=ann", "metadata", "does not exist here"),
        ("metadata[]=ann", "metadata[]", "does not exist here"),
        ("metadata[a]=1&metadata[a]=2", "metadata[a]", "was sent 2 times"),
        ("metadata[a]=%00", "metadata[a]", "no NUL"),
        ("metadata[a]=" + "x" * 513, "metadata[a]", "at most 512"),
        (f"metadata[{'a' * 513}]=x", "metadata[" + "a" * 71, "at most 512"),
        ("&".join(f"metadata[{number}]=x" for number in range(17)), "metadata", "at most 16 names"),
        ("end_user=" + "x" * 513, "end_user", "at most 512"),
    ],
)
async def test_a_filter_by_metadata_has_limits(api: Api, query: str, param: str, said: str) -> None:
    for path in ("/v2/task/list", "/v2/usage/totals"):
        call = api.as_key if "task" in path else api.as_session
        error = refused(await call("GET", f"{path}?{query}"), 400, "invalid_parameter")
        assert error["param"] == param
        assert said in error["message"]


async def test_a_page_that_a_filter_leaves_empty_goes_on(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filtered_usage, "SCANNED_MAX", 2)
    for number in range(7):
        status = "failed" if number < 2 else "queued"
        await api.add_task(api.task(f"task_{number}", at=api.now + timedelta(hours=number), status=status))
    for path, call in (("/v2/task/list", api.as_key), ("/v2/usage/logs", api.as_session)):
        first = (await call("GET", f"{path}?status=failed")).json()
        assert (first["data"], first["next_cursor"] is not None) == ([], True)
        assert await pages(api, path, "status=failed") == ["task_1", "task_0"]
        assert await pages(api, path, "status=succeeded") == []
    lines = (await api.as_session("GET", "/v2/usage/logs?status=failed&format=csv")).text.splitlines()
    assert [line.partition(",")[0] for line in lines] == ["request_id", "task_1", "task_0"]


@pytest.mark.parametrize("path", ["/v2/task/list", "/v2/usage/logs"])
@pytest.mark.parametrize(
    ("query", "code", "param"),
    [
        ("limit=0", "invalid_parameter", "limit"),
        ("limit=101", "invalid_parameter", "limit"),
        ("limit=ten", "invalid_parameter", "limit"),
        ("limit=1.5", "invalid_parameter", "limit"),
        ("limit=", "invalid_parameter", "limit"),
        ("limit=%EF%BC%91", "invalid_parameter", "limit"),
        ("limit=1&limit=2", "invalid_parameter", "limit"),
        ("from=yesterday", "invalid_parameter", "from"),
        ("from=2026-11-20T12:00:00", "invalid_parameter", "from"),
        ("from=2026-13-01", "invalid_parameter", "from"),
        ("from=0001-01-01T00:00:00%2B23:59", "invalid_parameter", "from"),
        ("to=2026-11-20T25:00:00Z", "invalid_parameter", "to"),
        ("from=2026-11-21&to=2026-11-20", "invalid_parameter", "from"),
        ("from=2026-11-20T12:00:00%2B02:00&to=2026-11-20T10:00:00Z", "invalid_parameter", "from"),
        ("status=done", "invalid_parameter", "status"),
        ("model=%00", "invalid_parameter", "model"),
        ("cursor=", "invalid_cursor", "cursor"),
        ("cursor=abc", "invalid_cursor", "cursor"),
        ("cursor=%00%ff", "invalid_cursor", "cursor"),
        ("cursor=" + "A" * 5000, "invalid_cursor", "cursor"),
        ("cursor=WzEsMSwidGFza18xIiwieCJd", "invalid_cursor", "cursor"),
    ],
)
async def test_invalid_queries_are_refused_and_named(
    api: Api, path: str, query: str, code: str, param: str
) -> None:
    call = api.as_key if "task" in path else api.as_session
    error = refused(await call("GET", f"{path}?{query}"), 400, code)
    assert error["param"] == param


@pytest.mark.parametrize("path", ["/v2/task/list", "/v2/usage/logs"])
async def test_a_cursor_is_valid_for_its_filters_and_account_only(api: Api, path: str) -> None:
    for number in range(3):
        await api.add_task(api.task(f"task_{number}"))
    call = api.as_key if "task" in path else api.as_session
    cursor = (await call("GET", f"{path}?limit=1")).json()["next_cursor"]
    refused(await call("GET", f"{path}?cursor={cursor}&status=queued"), 400, "invalid_cursor")
    assert (await call("GET", f"{path}?cursor={cursor}&limit=2")).status_code == 200
    api.key = (await api.add_key(api.other_account_id, "key_other")).secret
    await api.add_session(api.other_account_id, "ses_other", "hst_" + "E" * 43)
    headers = {"Authorization": f"Bearer {api.key if 'task' in path else 'hst_' + 'E' * 43}"}
    response = await api.call("GET", f"{path}?cursor={cursor}", headers=headers)
    refused(response, 400, "invalid_cursor")


async def test_a_cursor_is_valid_for_its_list_only(api: Api) -> None:
    for number in range(3):
        await api.add_task(api.task(f"task_{number}"))
        await api.add_order(api.order(f"ord_{number}"))
    tasks, *others = "/v2/task/list", "/v2/usage/logs", "/v2/control/payments", "/v2/control/ledger"
    cursor = (await api.as_key("GET", f"{tasks}?limit=1")).json()["next_cursor"]
    for path in others:
        refused(await api.as_session("GET", f"{path}?cursor={cursor}"), 400, "invalid_cursor")
    cursor = (await api.as_session("GET", f"{others[0]}?limit=1")).json()["next_cursor"]
    for path in others[1:]:
        refused(await api.as_session("GET", f"{path}?cursor={cursor}"), 400, "invalid_cursor")
    refused(await api.as_key("GET", f"{tasks}?cursor={cursor}"), 400, "invalid_cursor")


@pytest.mark.parametrize("path", ["/v2/task/list?limit=21", "/v2/usage/logs"])
async def test_a_page_is_one_read_beside_that_of_its_credential(api: Api, path: str) -> None:
    await api.add_task(api.task("task_1"))
    call = api.as_key if "task" in path else api.as_session
    for _ in range(2):
        api.rows.reads = 0
        assert [each["request_id"] for each in (await call("GET", path)).json()["data"]] == ["task_1"]
        assert api.rows.reads == 2


async def test_a_credential_that_has_ended_lists_nothing(api: Api) -> None:
    """Also one that the process knows already, as its calls have shown."""
    await api.add_task(api.task("task_1"))
    keys, sessions = tables.api_keys, tables.sessions
    for call, path in ((api.as_key, "/v2/task/list"), (api.as_session, "/v2/usage/logs")):
        assert len((await call("GET", path)).json()["data"]) == 1
    await api.write(keys.update().where(keys.c.key_id == api.key_id).values(revoked_at=api.now))
    refused(await api.as_key("GET", "/v2/task/list"), 401, "invalid_api_key")
    await api.write(sessions.update().values(revoked_at=api.now))
    refused(await api.as_session("GET", "/v2/usage/logs"), 401, "invalid_session")


async def test_a_key_without_the_scope_lists_nothing(api: Api) -> None:
    api.key = (await api.add_key(api.account_id, "key_writer", scopes=(TASKS_WRITE,))).secret
    refused(await api.as_key("GET", "/v2/task/list"), 403, "insufficient_scope")
    refused(await api.as_key("GET", "/v2/control/payments"), 403, "insufficient_scope")


async def test_a_usage_entry_has_its_cost_and_history(api: Api) -> None:
    await api.add_usage(msgspec.structs.replace(api.usage_of(api.task("task_a")), cost_micro=12_000, latency_ms=7))
    (line,) = (await api.as_session("GET", "/v2/usage/logs?limit=100")).json()["data"]
    assert line == {
        "request_id": "task_a", "model": "studio/image-1", "api_key_id": api.key_id, "status": "queued",
        "modality": "image", "ts": "2026-11-20T12:00:00.000Z", "billable_units": 0, "tokens_in": 0, "tokens_out": 0,
        "latency_ms": 7, "cost_credits": "0.012", "error": None, "operation_id": None, "end_user": None,
        "status_history": [
            {"status": "queued", "ts": "2026-11-20T12:00:00.000Z", "cost_credits": "0.00", "error": None}
        ],
    }  # fmt: skip
