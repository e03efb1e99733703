"""The studio's gallery: what it shows, to whom, and that nothing a customer wrote becomes part of the page."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from html.parser import HTMLParser

import httpx2
import pytest
import trio

from .conftest import StartStudio
from .studio_faults import StudioFaults

POSTER = {"model": "poster", "input": {"prompt": "A harbour at sunset", "seed": 7, "width": 128, "height": 128}}
TONE = {"model": "tone", "input": {"prompt": "a bell", "duration": 1}}
CLIP = {"model": "clip", "input": {"prompt": "waves", "duration": 1, "resolution": "360p"}}
HOSTILE = """</style><script>alert(1)</script><img src="https://evil.example/x" onerror='x'>"""


class Elements(HTMLParser):
    """Every element of a page with its attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def sources(self, tag: str) -> list[str]:
        return [str(attributes["src"]) for name, attributes in self.found if name == tag]


async def test_the_gallery_shows_playable_results_newest_first(start_studio: StartStudio) -> None:
    with trio.fail_after(60):
        async with start_studio(token="a token", gallery=True) as studio:
            asked = {"Authorization": "Bearer a token"}
            for job_id, order in (("a.1", POSTER), ("b.1", TONE), ("c.1", CLIP)):
                await studio.http.put(f"/predictions/{job_id}", json=order, headers=asked)
                job = studio.shop.get(job_id)
                assert job is not None
                await job.ended.wait()
            answer = await studio.http.get("/")
            page = Elements(answer.text)
            assert [answer.text.index(job_id) for job_id in ("c.1", "b.1", "a.1")] == sorted(
                answer.text.index(job_id) for job_id in ("a.1", "b.1", "c.1")
            )
            for tag, kind in (("img", "image/png"), ("audio", "audio/wav"), ("video", "video/webm")):
                (source,) = page.sources(tag)
                assert source.startswith("/files/")
                file = await studio.http.get(source)
                assert (file.status_code, file.headers["Content-Type"]) == (200, kind)
            assert "A harbour at sunset" in answer.text


async def test_what_customers_write_is_text_and_nothing_is_loaded_from_elsewhere(start_studio: StartStudio) -> None:
    with trio.fail_after(20):
        async with start_studio(gallery=True) as studio:
            order = {**POSTER, "input": {**POSTER["input"], "prompt": HOSTILE}}  # type: ignore[dict-item]
            await studio.http.put("/predictions/a.1", json=order)
            await studio.finished("a.1")
            answer = await studio.http.get("/")
            page = Elements(answer.text)
            assert html.escape(HOSTILE) in answer.text
            assert {tag for tag, _ in page.found} <= {
                "html", "head", "meta", "title", "style", "body", "header", "h1", "p", "main", "article", "div",
                "a", "img", "h2", "span", "small",
            }  # fmt: skip
            assert not any(name.startswith("on") for _, attributes in page.found for name in attributes)
            style = re.search("<style>(.*?)</style>", answer.text, re.DOTALL)
            assert style is not None
            digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
            policy = answer.headers["Content-Security-Policy"]
            assert policy.startswith("default-src 'none'; ")
            assert f"style-src 'sha256-{digest}'" in policy
            assert "http" not in policy + " ".join(page.sources("img"))


async def test_the_gallery_shows_running_and_failed_jobs(start_studio: StartStudio) -> None:
    with trio.fail_after(20):
        async with start_studio(gallery=True, faults=StudioFaults(stall=True)) as studio:
            assert "Nothing yet" in (await studio.http.get("/")).text
            await studio.put("a.1", **POSTER)
            assert "progress" in dict(Elements((await studio.http.get("/")).text).found)
        async with start_studio(gallery=True, faults=StudioFaults(fail="out of <b>paint</b>")) as studio:
            await studio.put("a.1", **POSTER)
            await studio.finished("a.1")
            page = (await studio.http.get("/")).text
            assert "failed" in page
            assert "out of &lt;b&gt;paint&lt;/b&gt;" in page
            assert Elements(page).sources("img") == []


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "[::2]"])
async def test_another_name_for_this_machine_opens_nothing(start_studio: StartStudio, host: str) -> None:
    with trio.fail_after(20):
        async with start_studio(gallery=True) as studio:
            assert (await studio.http.get("/", headers={"Host": host})).status_code == 404
            assert (await studio.http.get("/", headers={"Host": "localhost"})).status_code == 200


async def test_there_is_no_gallery_unless_it_was_asked_for(start_studio: StartStudio) -> None:
    with trio.fail_after(20):
        async with start_studio(token="a token") as closed:
            assert (await closed.http.get("/")).status_code == 401
            asked = await closed.http.get("/", headers={"Authorization": "Bearer a token"})
            assert isinstance(asked, httpx2.Response)
            assert asked.status_code == 404
