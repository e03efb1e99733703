"""The studio over real HTTP: orders, progress, callbacks, files, cancel, and every fault it can inject."""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from PIL import Image
from quart import request
from quart_trio import QuartTrio
from tests.clients import until
from torture.service import reserve_port

from holdfast_emulators.studio.app import serve_studio
from holdfast_emulators.studio.model import OutputFile, RenderContext, finished
from holdfast_emulators.studio.renderer import Renderer

from .conftest import (
    SECRET,
    CallbackReceiver,
    ReceivedCallback,
    RunningStudio,
    ServeApp,
    Stalled,
    StartStudio,
    is_last,
)

POSTER = {"model": "poster", "input": {"prompt": "A harbour at sunset", "seed": 7, "width": 128, "height": 256}}


class Slow:
    """A model whose work goes on only as the test lets it."""

    def __init__(self) -> None:
        self.go = threading.Semaphore(0)
        self.begun = trio.Event()

    def prepare(self, data: Mapping[str, object]) -> Slow:
        return self

    def render(self, context: RenderContext) -> list[OutputFile]:
        trio.from_thread.run_sync(self.begun.set)
        path = context.new_file(".bin")
        path.write_bytes(b"half")
        for step in range(10):
            context.step(step / 10, "render")
            assert self.go.acquire(timeout=60)
        return [finished(path)]


def names_in(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


def reached(percent: int, received: list[ReceivedCallback]) -> bool:
    return bool(received) and received[-1].body["percent"] >= percent


async def test_a_poster_is_ordered_rendered_reported_and_fetched(
    studio: RunningStudio, receiver: CallbackReceiver
) -> None:
    client = {"request_id": "task_01", "attempt": 2}
    answer = await studio.put("task_01.2", **POSTER, webhook=receiver.url, client=client)
    assert answer.status_code == 202
    assert answer.json()["id"] == "task_01.2"
    last = await receiver.terminal_callback()
    assert all(callback.verdict == "valid" for callback in receiver.received)
    assert last.header is not None
    assert last.header.startswith("k=studio,t=")
    assert last.body["status"] == "succeeded"
    assert (last.body["request_id"], last.body["attempt"]) == ("task_01", 2)
    assert last.body["provider_ref"] == "task_01.2"
    assert last.body["percent"] == 100
    (output,) = last.body["outputs"]
    content = (await studio.http.get(output["url"])).content
    assert hashlib.sha256(content).hexdigest() == output["sha256"]
    assert len(content) == output["bytes"]
    with Image.open(io.BytesIO(content)) as image:
        assert image.size == (128, 256) == (output["width"], output["height"])
    shown = await studio.get("task_01.2")
    assert shown["status"] == "succeeded"
    assert shown["output"][0]["sha256"] == output["sha256"]
    sequences = [callback.body["sequence"] for callback in receiver.received]
    assert sequences == sorted(set(sequences))
    assert len({callback.body["event_id"] for callback in receiver.received}) == len(receiver.received)


async def test_progress_is_reported_while_a_job_runs(start_studio: StartStudio, receiver: CallbackReceiver) -> None:
    slow = Slow()
    async with start_studio(models={"slow": slow.prepare}, progress_every_s=0) as studio:
        await studio.put("a.1", model="slow", input={}, webhook=receiver.url)
        for percent in range(0, 100, 10):
            await receiver.until(partial(reached, percent))
            slow.go.release()
        assert (await receiver.terminal_callback()).body["status"] == "succeeded"
        assert receiver.received[0].body["status"] in ("queued", "processing")


async def test_the_end_of_a_job_hangs_up_on_no_receiver_of_its_progress(
    start_studio: StartStudio, serve_app: ServeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast_emulators.studio.jobs.OVERTAKE_S", 0.01)
    slow, app = Slow(), QuartTrio("slow receiver", static_folder=None)
    has_progress, has_result, may_answer, has_answered = trio.Event(), trio.Event(), trio.Event(), trio.Event()

    @app.post("/callback")
    async def take() -> str:
        if json.loads(await request.get_data())["status"] == "succeeded":
            has_result.set()
        else:
            has_progress.set()
            await may_answer.wait()
            has_answered.set()
        return ""

    async with serve_app(app) as url, start_studio(models={"slow": slow.prepare}) as studio:
        await studio.put("a.1", model="slow", input={}, webhook=f"{url}/callback")
        await has_progress.wait()
        slow.go.release(10)
        await has_result.wait()
        may_answer.set()
        await has_answered.wait()


async def test_same_order_again_is_the_same_job(studio: RunningStudio) -> None:
    assert (await studio.put("a.1", **POSTER)).status_code == 202
    done = await studio.finished("a.1")
    again = await studio.put("a.1", **POSTER)
    assert again.status_code == 200
    assert again.json()["output"][0]["sha256"] == done["output"][0]["sha256"]
    other = await studio.put("a.1", model="poster", input={"prompt": "other"})
    assert other.status_code == 409


@pytest.mark.parametrize(
    ("job_id", "order", "status"),
    [
        ("a.1", {"model": "poster", "input": {}}, 422),
        ("a.1", {"model": "poster", "input": []}, 422),
        ("a.1", {"model": "poster"}, 422),
        ("a.1", {"model": "oil", "input": {}}, 404),
        ("a.1", {**POSTER, "webhook": "file:///etc/passwd"}, 422),
        ("a.1", {**POSTER, "webhook_events_filter": ["everything"]}, 422),
        ("a%20b", POSTER, 400),
    ],
)
async def test_orders_out_of_shape_are_refused(
    studio: RunningStudio, job_id: str, order: dict[str, Any], status: int
) -> None:
    answer = await studio.http.put(f"/predictions/{job_id}", json=order)
    assert answer.status_code == status
    assert isinstance(answer.json()["detail"], str)
    assert (await studio.http.get("/predictions/a.1")).status_code == 404


async def test_body_must_be_json(studio: RunningStudio) -> None:
    for body in (b"", b"\xff", b"[", b'{"input":' + b"[" * 50_000):
        assert (await studio.http.put("/predictions/a.1", content=body)).status_code == 422


async def test_cancel_stops_the_work_at_its_next_step(
    start_studio: StartStudio, receiver: CallbackReceiver, tmp_path: Path
) -> None:
    slow = Slow()
    async with start_studio(models={"slow": slow.prepare}) as studio:
        await studio.put("a.1", model="slow", input={}, webhook=receiver.url)
        await slow.begun.wait()
        answer = await studio.http.post("/predictions/a.1/cancel")
        assert answer.json()["status"] == "canceled"
        assert (await receiver.terminal_callback()).body["status"] == "canceled"
        slow.go.release()
        while names_in(studio.shop._files_dir):  # noqa: ASYNC110 - a file's end rings no bell
            await trio.sleep(0.01)
        again = await studio.http.post("/predictions/a.1/cancel")
        assert again.json()["status"] == "canceled"


async def test_a_terminal_callback_is_retried_under_one_event_id(
    start_studio: StartStudio, receiver: CallbackReceiver
) -> None:
    receiver.answers = [500, 302, 404, 500]
    async with start_studio(retry_delays_s=(0, 0, 0, 0, 0)) as studio:
        order = {**POSTER, "webhook": receiver.url, "webhook_events_filter": ["completed"]}
        await studio.put("a.1", **order)
        await receiver.until(lambda all_: len(all_) == 5)
        assert {callback.body["event_id"] for callback in receiver.received} == {
            receiver.received[0].body["event_id"]
        }
        assert all(is_last(callback) for callback in receiver.received)


async def test_too_many_waiting_jobs_are_turned_away_with_a_time(start_studio: StartStudio) -> None:
    async with start_studio(waiting_max_count=1, models={"poster": lambda _: Stalled()}) as studio:
        assert (await studio.put("a.1", **POSTER)).status_code == 202
        busy = await studio.put("a.2", **POSTER)
        assert (busy.status_code, busy.headers["Retry-After"]) == (503, "2")


async def test_files_open_by_their_urls_alone(start_studio: StartStudio) -> None:
    async with (
        start_studio(token="a-token") as studio,
        httpx2.AsyncClient(trust_env=False, verify=False) as http,
    ):
        headers = {"Authorization": "Bearer a-token"}
        put = await http.put(f"{studio.url}/predictions/a.1", json=POSTER, headers=headers)
        assert put.status_code == 202
        job = studio.shop.get("a.1")
        assert job is not None
        await job.ended.wait()
        url = studio.shop.link(job.results[0])
        good = await http.get(url)
        assert good.status_code == 200
        assert good.headers["Content-Type"] == "image/png"
        assert good.headers["X-Content-Type-Options"] == "nosniff"
        other = url.replace(job.results[0].path.stem, "0" * 32)
        assert (await http.get(other)).status_code == 404
        assert (await http.get(f"{studio.url}/files/..%2f..%2fetc%2fpasswd")).status_code == 404


async def test_old_jobs_and_their_files_are_forgotten(start_studio: StartStudio) -> None:
    moment = [datetime.now(UTC)]
    async with start_studio(now=lambda: moment[0], keep_s=100) as studio:
        await studio.put("a.1", **POSTER)
        shown = await studio.finished("a.1")
        await studio.shop.expire()
        assert (await studio.http.get(shown["output"][0]["url"])).status_code == 200
        moment[0] += timedelta(seconds=101)
        await studio.shop.expire()
        assert (await studio.http.get("/predictions/a.1")).status_code == 404
        assert (await studio.http.get(shown["output"][0]["url"])).status_code == 404
        assert names_in(studio.shop._files_dir) == []


async def test_number_of_remembered_jobs_is_bounded(start_studio: StartStudio) -> None:
    async with start_studio(kept_max_count=2) as studio:
        for number in range(4):
            await studio.put(f"a.{number}", **POSTER)
            await studio.finished(f"a.{number}")
        await studio.shop.expire()
        known = [number for number in range(4) if studio.shop.get(f"a.{number}") is not None]
        assert known == [2, 3]


@pytest.mark.slow
async def test_broken_model_fails_its_job_alone(start_studio: StartStudio) -> None:
    class Broken:
        def render(self, context: RenderContext) -> list[OutputFile]:
            raise ZeroDivisionError

    models = {"broken": lambda data: Broken(), "slow": (slow := Slow()).prepare}
    async with start_studio(models=models) as studio:
        await studio.put("a.1", model="broken", input={})
        assert (await studio.finished("a.1"))["status"] == "failed"
        slow.go.release(10)
        await studio.put("a.2", model="slow", input={})
        assert (await studio.finished("a.2"))["status"] == "succeeded"


async def test_stopping_mid_work_leaves_nothing_running_and_the_port_free(tmp_path: Path) -> None:
    slow = Slow()
    for _ in range(2):
        shop = Renderer(SECRET, tmp_path, models={"slow": slow.prepare})
        async with trio.open_nursery() as nursery:

            async def run(
                *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED, shop: Renderer = shop
            ) -> None:
                await serve_studio(secret=SECRET, files_dir=tmp_path, renderer=shop, task_status=task_status)

            port = await nursery.start(run)
            async with httpx2.AsyncClient(trust_env=False, verify=False) as http:
                url = f"http://127.0.0.1:{port}/predictions/a.1"
                assert (await http.put(url, json={"model": "slow", "input": {}})).status_code == 202
                await slow.begun.wait()
            slow.go.release()
            nursery.cancel_scope.cancel()
        with pytest.raises(OSError):
            await trio.open_tcp_stream("127.0.0.1", port)
    assert names_in(tmp_path) == []


async def test_files_of_an_earlier_life_stay_for_a_while(start_studio: StartStudio, tmp_path: Path) -> None:
    directory = tmp_path / "studio-files"
    directory.mkdir()
    fresh, old = "0" * 32 + ".png", "1" * 32 + ".png"
    for name in (fresh, old, "secrets.json"):
        (directory / name).write_bytes(b"a picture")
    os.utime(directory / old, (0, 0))
    async with start_studio() as studio, httpx2.AsyncClient(trust_env=False, verify=False) as http:
        assert names_in(directory) == sorted([fresh, "secrets.json"])
        for name, status in ((fresh, 200), (old, 404), ("secrets.json", 404)):
            answer = await http.get(f"{studio.url}/files/{name}")
            assert answer.status_code == status
            if status == 200:
                assert (answer.content, answer.headers["content-type"]) == (b"a picture", "image/png")


def test_studio_without_a_secret_does_not_open(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="secret"):
        Renderer(" ", tmp_path)


async def test_without_a_parent_it_serves_at_its_url_until_it_is_stopped(tmp_path: Path) -> None:
    owner = trio.Event()
    url = f"http://localhost:{reserve_port(owner)}"
    secret = tmp_path / "secret"
    secret.write_text(f"{SECRET}\n")
    program = [sys.executable, "-m", "holdfast_emulators.studio", url, str(secret), str(tmp_path / "files")]
    process = await trio.lowlevel.open_process(program)
    try:
        async with httpx2.AsyncClient(base_url=url, verify=False) as http:

            async def prediction() -> dict[str, Any] | None:
                with suppress(httpx2.ConnectError):
                    shown: dict[str, Any] = (await http.put("/predictions/a.1", json=POSTER)).json()
                    return shown if shown["output"] else None
                return None

            [output] = (await until(prediction))["output"]
            assert output["url"].startswith(f"{url}/files/")
            assert (await http.get(output["url"])).headers["Content-Type"] == "image/png"
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    finally:
        process.kill()
