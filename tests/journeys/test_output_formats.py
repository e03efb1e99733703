"""The studio's outputs open in picture libraries, audio and video decoders, and a browser."""

from __future__ import annotations

import base64
import io
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import av
import pytest
import trio
from PIL import Image
from playwright.sync_api import Browser, sync_playwright
from tests.clients import IMAGE, Customer, loopback_client, ok
from tests.tools import path_of

from .page_browser import FLAGS
from .service_process import Service

FRAMES_PER_S = 12
CLIP_S = 3.0
TONE_S = 1.5
WAIT_MS = 60_000

PROBE = """([kind, url, wait]) => new Promise((resolve, reject) => {
  const media = document.createElement(kind);
  media.muted = true;
  media.preload = "auto";
  media.onerror = () => reject(new Error(`${kind} error ${media.error.code}: ${media.error.message}`));
  media.oncanplaythrough = () => {
    media.oncanplaythrough = null;
    const described = {duration: media.duration, width: media.videoWidth, height: media.videoHeight};
    media.onseeked = () => {
      described.soughtTo = media.currentTime;
      media.onended = () => resolve({...described, endedAt: media.currentTime});
      media.play().catch(reject);
    };
    media.currentTime = media.duration / 2;
  };
  document.body.append(media);
  media.src = url;
  setTimeout(() => reject(new Error(`${kind} still in state ${media.readyState}`)), wait);
})"""
"""Load a medium until it can be played through, seek to its middle, and play it to its end."""


@dataclass
class StoredOutput:
    """One result: its description in the task, and its bytes."""

    described: dict[str, Any]
    content: bytes

    @property
    def url(self) -> str:
        """Its URL."""
        return str(self.described["url"])


def picture(image: Image.Image | None = None) -> str:
    """Return a picture to edit, in base64."""
    stream = io.BytesIO()
    (image or Image.linear_gradient("L").convert("RGB")).save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode()


async def make_all(shared_service: Service) -> dict[str, StoredOutput]:
    """Create and download a result of each model."""
    change = {"image": picture(), "operation": "resize", "width": 96, "height": 64}
    # As large as the model's schema says it may be, and no more compressible.
    pixels = random.Random(1).randbytes(548 * 548 * 3)
    image = picture(Image.frombytes("RGB", (548, 548), pixels))
    assert len(image) > 1_200_000
    large = {**change, "image": image}
    orders: dict[str, tuple[str, dict[str, Any]]] = {
        "poster": ("studio/image-1", IMAGE),
        **{f"edited {form}": ("studio/edit-1", {**change, "format": form}) for form in ("png", "jpeg", "webp")},
        "edited large": ("studio/edit-1", large),
        "tone": ("studio/tone-1", {"prompt": "rain", "duration": TONE_S}),
        "clip": ("studio/clip-1", {"prompt": "a lighthouse", "duration": CLIP_S}),
        "large clip": ("studio/clip-1", {"prompt": "a lighthouse", "duration": 1, "resolution": "720p"}),
    }
    async with loopback_client(base_url=shared_service.url, timeout=60) as http:
        ada = Customer(http)
        await ada.sign_in()
        await ada.recharge("10.00")
        outputs = {}
        for name, (model, wanted) in orders.items():
            created = await ada.as_key("POST", "/v2/task/create", {"model": model, "input": wanted})
            outputs[name] = ok(created)["request_id"]
        tasks = await ada.all_ended()
        found = {}
        for name, request_id in outputs.items():
            assert tasks[request_id]["status"] == "succeeded", tasks[request_id]
            [described] = tasks[request_id]["output"]
            answer = await http.get(described["url"])
            assert (answer.status_code, answer.headers["Content-Type"]) == (200, described["content_type"])
            found[name] = StoredOutput(described, answer.content)
        return found


@pytest.fixture(scope="module")
def outputs(shared_service: Service) -> dict[str, StoredOutput]:
    """Results of each kind."""
    return trio.run(make_all, shared_service)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Run a headless browser."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path_of("chromium"),
            args=[*FLAGS, "--autoplay-policy=no-user-gesture-required"],
            timeout=WAIT_MS,
        )
        yield browser
        browser.close()


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("poster", "PNG"),
        ("edited png", "PNG"),
        ("edited jpeg", "JPEG"),
        ("edited webp", "WEBP"),
        ("edited large", "PNG"),
    ],
)
def test_pictures_match_their_content_type(outputs: dict[str, StoredOutput], name: str, form: str) -> None:
    one = outputs[name]
    with Image.open(io.BytesIO(one.content)) as image:
        image.verify()
    with Image.open(io.BytesIO(one.content)) as image:
        image.load()
        assert (image.format, image.get_format_mimetype()) == (form, one.described["content_type"])
        assert image.size == (one.described["width"], one.described["height"])
        lows_and_highs = image.convert("L").getextrema()
    assert lows_and_highs[0] != lows_and_highs[1]


@pytest.mark.parametrize(
    ("name", "length_s", "size"), [("clip", CLIP_S, (640, 360)), ("large clip", 1.0, (1280, 720))]
)
def test_a_clip_is_decoded_frame_by_frame(
    outputs: dict[str, StoredOutput], name: str, length_s: float, size: tuple[int, int]
) -> None:
    with av.open(io.BytesIO(outputs[name].content), "r") as container:
        stream = container.streams.video[0]
        assert stream.codec_context.name == "vp8"
        assert container.duration is not None
        assert container.duration / 1_000_000 == pytest.approx(length_s, abs=0.001)
        frames = list(container.decode(stream))
        assert len(frames) == round(length_s * FRAMES_PER_S)
        assert {(frame.width, frame.height) for frame in frames} == {size}
        times = [frame.time for frame in frames]
        assert times == pytest.approx([number / FRAMES_PER_S for number in range(len(frames))], abs=0.001)
        pictures = {bytes(frame.planes[0]) for frame in frames}
        assert len(pictures) > len(frames) / 2
        container.seek(int(length_s / 2 * 1_000_000), backward=True, any_frame=False)
        sought = next(container.decode(stream))
        assert sought.time == pytest.approx(length_s / 2, abs=2 / FRAMES_PER_S)
    assert outputs[name].described["duration_s"] == length_s


@pytest.mark.parametrize(
    ("name", "kind", "length_s"),
    [("clip", "video", CLIP_S), ("large clip", "video", 1.0), ("tone", "audio", TONE_S)],
)
@pytest.mark.slow
def test_a_browser_plays_and_seeks_outputs(
    outputs: dict[str, StoredOutput], browser: Browser, name: str, kind: str, length_s: float
) -> None:
    page = browser.new_page()
    page.set_content("<!doctype html><title>a customer's page</title><body>")
    seen = page.evaluate(PROBE, [kind, outputs[name].url, WAIT_MS])
    page.close()
    assert seen["duration"] == pytest.approx(length_s, abs=0.01)
    assert seen["soughtTo"] == pytest.approx(length_s / 2, abs=0.01)
    assert seen["endedAt"] == pytest.approx(length_s, abs=0.05)
    if kind == "video":
        assert (seen["width"], seen["height"]) == (
            outputs[name].described["width"],
            outputs[name].described["height"],
        )


@pytest.mark.parametrize("name", ["clip", "tone"])
def test_a_browser_that_opens_a_link_gets_a_player(
    outputs: dict[str, StoredOutput], browser: Browser, name: str
) -> None:
    troubles: list[str] = []
    page = browser.new_page()
    page.on("console", lambda message: troubles.append(message.text))
    with page.expect_response(lambda answer: answer.request.resource_type == "media", timeout=WAIT_MS) as played:
        page.goto(outputs[name].url, timeout=WAIT_MS)
    assert (played.value.url, played.value.status) == (outputs[name].url, 206)
    page.close()
    assert troubles == []
