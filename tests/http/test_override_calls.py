"""What operators set for a time: recorded, shown where it acts, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Connection
from tests.clients import ok, refused

from holdfast.persistence.claims.expired import delete_expired
from holdfast.persistence.operators.overrides import Overrides, find_overrides, write_override
from holdfast.persistence.records.operator_tables import Override
from holdfast.supervision.control.messages import OverridesKnown, RereadOverrides

from .identities import ACCOUNT, NOW
from .page_reader import PageReader
from .test_media_tasks import CREATE, POSTER, accept

if TYPE_CHECKING:
    from tests.http.api import Api

MODEL = "studio/image-1"
WHY = {"reason": "ticket 7", "for_s": 90}
PAUSE = {**WHY, "new_tasks": "refuse", "note": "the maker's machines are full"}


async def act(api: Api, path: str, **body: Any) -> Any:
    headers = {"Authorization": f"Bearer {api.deps.settings.operator_token}"}
    return await api.call("POST", f"/ops/api/{path}", json=body, headers=headers)


async def shown_pause(api: Api) -> list[Any]:
    """The pause as the list of models, the model and a quote show it."""
    models = ok(await api.call("GET", "/v2/models"))["data"]
    compatible = ok(await api.call("GET", "/v1/models"))["data"]
    one = ok(await api.call("GET", f"/v1/models/{MODEL}"))
    quote = ok(await api.call("POST", "/v2/quote", json=POSTER))
    listed = [next(each for each in of if each["id"] == MODEL) for of in (models, compatible)]
    return [each["paused"] for each in (*listed, one, quote)]


@pytest.mark.parametrize("path", [f"models/{MODEL}/pause", "providers/studio/pause"])
async def test_a_pause_refuses_new_tasks_with_its_end_and_is_shown(api: Api, path: str) -> None:
    api.accounts.answer = accept
    ok(await api.call("POST", CREATE, credential=api.key, json=POSTER))
    ok(await act(api, path, **PAUSE))
    until = "2026-11-20T12:01:30.000Z"
    assert await shown_pause(api) == [{"until": until, "new_tasks": "refuse", "note": PAUSE["note"]}] * 4
    response = await api.call("POST", CREATE, credential=api.key, json=POSTER)
    error = refused(response, 503, "model_paused")
    assert response.headers["Retry-After"] == "90"
    assert error["message"] == f"The model '{MODEL}' is paused until {until}: the maker's machines are full"
    other = {"model": "studio/clip-1", "input": {"prompt": "x"}}
    if path.startswith("models"):
        ok(await api.call("POST", CREATE, credential=api.key, json=other))
    else:
        refused(await api.call("POST", CREATE, credential=api.key, json=other), 503, "model_paused")
    kind = "model_pause" if path.startswith("models") else "provider_pause"
    subject = MODEL if path.startswith("models") else "studio"
    ended = ok(await act(api, "overrides/end", kind=kind, subject=subject, reason="it works"))
    assert ended["data"] == []
    assert await shown_pause(api) == [None] * 4
    ok(await api.call("POST", CREATE, credential=api.key, json=POSTER))
    headers = {"Authorization": f"Bearer {api.deps.settings.operator_token}"}
    actions = ok(await api.call("GET", "/ops/api/actions", headers=headers))["data"]
    assert [(each["reason"], each["result"]) for each in actions] == [("it works", "done"), ("ticket 7", "done")]
    assert actions[1]["target"] == subject


async def test_a_pause_by_which_tasks_wait_takes_them(api: Api) -> None:
    api.accounts.answer = accept
    ok(await act(api, f"models/{MODEL}/pause", **{**PAUSE, "new_tasks": "wait"}))
    assert [each["new_tasks"] for each in await shown_pause(api)] == ["wait"] * 4
    ok(await api.call("POST", CREATE, credential=api.key, json=POSTER))
    # A provider that refuses comes before a model that waits.
    ok(await act(api, "providers/studio/pause", **PAUSE))
    assert [each["new_tasks"] for each in await shown_pause(api)] == ["refuse"] * 4
    refused(await api.call("POST", CREATE, credential=api.key, json=POSTER), 503, "model_paused")


async def test_slots_and_creates_are_set_for_what_exists_and_within_bounds(api: Api) -> None:
    ok(await act(api, "providers/studio/slots", **WHY, slots=3))
    found = ok(await act(api, f"accounts/{ACCOUNT}/creates", **WHY, per_s=0.5))
    assert [(each["kind"], each["subject"], each["number"]) for each in found["data"]] == [
        ("account_creates", ACCOUNT, 0.5),
        ("provider_slots", "studio", 3),
    ]
    overrides = api.deps.operating.overrides
    assert overrides.slots({"studio": 8, "other": 5}) == {"studio": 3, "other": 5}
    ok(await act(api, "providers/studio/pause", **PAUSE))
    assert overrides.slots({"studio": 8, "other": 5}) == {"studio": 0, "other": 5}
    refused(await act(api, "providers/gone/slots", **WHY, slots=3), 404, "provider_not_found")
    refused(await act(api, "models/gone/x/pause", **PAUSE), 404, "model_not_found")
    refused(await act(api, "accounts/acct_gone/creates", **WHY, per_s=1), 404, "account_not_found")
    for path, wrong in (
        ("providers/studio/slots", {"slots": 0}),
        ("providers/studio/slots", {"slots": 3, "for_s": 0}),
        ("providers/studio/slots", {"slots": 3, "for_s": 31 * 86_400}),
        (f"accounts/{ACCOUNT}/creates", {"per_s": -1}),
        (f"models/{MODEL}/pause", {"new_tasks": "later"}),
        (f"models/{MODEL}/pause", {"new_tasks": "wait", "reason": " "}),
    ):
        assert (await act(api, path, **{**WHY, **wrong})).status_code == 400


async def test_every_process_reads_again_and_others_find_it(api: Api) -> None:
    controls: Any = api.deps.operating.controls
    controls.answer = lambda _: OverridesKnown(1)
    assert ok(await act(api, "providers/studio/slots", **WHY, slots=3))["unreachable"] == []
    assert controls.asked == [(controls.me, RereadOverrides())]
    # Rows that were written elsewhere: the sum of their versions says that there are others than those known.
    elsewhere = Overrides(lambda: api.database.look(find_overrides), lambda: NOW)
    await elsewhere.reread()
    assert (elsewhere.seen, elsewhere.slots({"studio": 8})) == (1, {"studio": 3})
    # A process that answers, but could not read the rows, knows no more than before.
    assert ok(await act(api, "providers/studio/slots", **WHY, slots=4))["unreachable"] == [controls.me]
    assert api.deps.operating.overrides.seen == 2
    assert elsewhere.slots({"studio": 8}) == {"studio": 3}


async def test_long_after_its_end_one_is_deleted_and_the_next_is_found(api: Api) -> None:
    controls: Any = api.deps.operating.controls
    controls.answer = lambda _: OverridesKnown(1)
    for slots in (3, 4):
        ok(await act(api, "providers/studio/slots", **WHY, slots=slots))
    ok(await act(api, f"models/{MODEL}/pause", reason="ticket 7", new_tasks="wait", for_s=7_200))
    known = Overrides(lambda: api.database.look(find_overrides), lambda: NOW)
    await known.reread()
    assert known.seen == 3

    def sweep(*, days: int) -> Callable[[Connection], int]:
        at = NOW + timedelta(days=days)
        return lambda rows: delete_expired(rows, "overrides", retention_s=30 * 86_400, now=at, most=100)

    assert await api.database.work(sweep(days=29)) == 0
    # The one that ends last stays, and has the versions of the other: no process has to read again.
    assert await api.database.work(sweep(days=90)) == 1
    [last] = await api.database.look(find_overrides)
    assert (last.subject, last.version) == (MODEL, 3)
    assert await api.database.work(sweep(days=90)) == 0
    ok(await act(api, "providers/studio/slots", **WHY, slots=5))
    await known.reread()
    assert (known.seen, known.slots({"studio": 8})) == (4, {"studio": 5})


async def test_what_another_process_has_just_set_is_ended(api: Api) -> None:
    until = NOW + timedelta(seconds=60)
    pause = Override("model_pause", MODEL, None, "refuse", "why", None, "ops", "act_1", NOW, until)
    await api.deps.write_record(lambda rows: write_override(rows, pause))
    ok(await act(api, "overrides/end", kind="model_pause", subject=MODEL, reason="it works"))
    elsewhere = Overrides(lambda: api.database.look(find_overrides), lambda: NOW)
    assert elsewhere.slots({"studio": 8}) == {"studio": 0}, "no job is started before the first read"
    await elsewhere.reread()
    assert (elsewhere.slots({"studio": 8}), elsewhere.in_force()) == ({"studio": 8}, [])


async def test_what_has_ended_counts_no_more(api: Api) -> None:
    clock = [NOW]
    overrides = Overrides(lambda: api.database.look(find_overrides), lambda: clock[0])
    until = NOW + timedelta(seconds=5)
    pause = Override("model_pause", MODEL, None, "refuse", "why", None, "ops", "act_1", NOW, until)
    await api.deps.write_record(lambda rows: write_override(rows, pause))
    await overrides.reread()
    refusal = overrides.refuse_new(MODEL, "studio")
    assert refusal is not None
    assert (refusal.retry_after_s, overrides.paused_models()) == (5, [MODEL])
    clock[0] = until
    assert overrides.refuse_new(MODEL, "studio") is None
    assert (overrides.paused_models(), overrides.in_force()) == ([], [])


async def test_pages_show_what_is_set_where_it_acts_and_end_it(api: Api, browser: PageReader) -> None:
    token = await browser.hidden("/ops/log-levels")
    fields = {"csrf_token": token, "return_to": "/ops/overrides", "reason": "<b>"}
    for path, values in (
        ("/ops/models/studio%2Fimage-1/pause", {"new_tasks": "refuse", "for_s": "600", "note": "full"}),
        (f"/ops/accounts/{ACCOUNT}/creates", {"per_s": "0.5", "for_s": "600"}),
        ("/ops/providers/studio/slots", {"slots": "3", "for_s": "600"}),
    ):
        done = await browser.send(path, **fields, **values)
        assert (done.status_code, done.headers["Location"]) == (303, "/ops/overrides")
    for path, said in (
        ("/ops/overrides", ("Model paused", "Creates a second", "Slots", "<b>", "full")),
        ("/ops", ("Model paused", "Creates a second", "Slots")),
        (f"/ops/accounts/{ACCOUNT}", ("Creates a second", "0.5")),
    ):
        page = await browser.read(path)
        assert [each for each in said if each not in page.text] == []
    await browser.send("/ops/overrides/end", **fields, kind="model_pause", subject=MODEL)
    assert "Model paused" not in (await browser.read("/ops/overrides")).text
