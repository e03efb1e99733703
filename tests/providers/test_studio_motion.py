"""The tone and clip models: sound and moving pictures of the length that was ordered."""

from __future__ import annotations

import io
import wave
from pathlib import Path
from typing import Any

import msgspec
import pytest
from PIL import Image

from holdfast.providers.storage.sniffing import HEAD_BYTES, measure, sniff
from holdfast_emulators.studio.drawing import Clip, vp8_frame
from holdfast_emulators.studio.model import OutputFile, RenderContext
from holdfast_emulators.studio.tone import Tone


def make(model: type[Clip | Tone], directory: Path, **order: Any) -> tuple[OutputFile, list[int]]:
    percents: list[int] = []
    data = {"prompt": "rain on a tin roof", "seed": 3, **order}
    context = RenderContext(directory, lambda percent, stage: percents.append(percent))
    (one,) = msgspec.convert(data, model).render(context)
    return one, percents


@pytest.mark.parametrize("mood", ["calm", "bright", "dark", "playful"])
def test_tone_is_a_sound_of_the_length_ordered(tmp_path: Path, mood: str) -> None:
    one, percents = make(Tone, tmp_path, duration=1.5, mood=mood)
    with wave.open(str(one.path)) as sound:
        frames = sound.readframes(sound.getnframes())
        assert sound.getnframes() / sound.getframerate() == pytest.approx(1.5, abs=0.001)
        assert (sound.getnchannels(), sound.getsampwidth()) == (1, 2)
    assert max(abs(value) for value in memoryview(frames).cast("h")) > 2000
    assert one.content_type == sniff(one.path.read_bytes()[:HEAD_BYTES]) == "audio/wav"
    assert one.duration_s == measure(one.path.read_bytes(), "audio/wav").duration_s == 1.5
    assert percents == sorted(percents)


def test_same_tone_again_sounds_the_same(tmp_path: Path) -> None:
    first = make(Tone, tmp_path, duration=1)[0].path.read_bytes()
    assert make(Tone, tmp_path, duration=1)[0].path.read_bytes() == first
    assert make(Tone, tmp_path, duration=1, seed=4)[0].path.read_bytes() != first


def test_each_voice_sounds_different(tmp_path: Path) -> None:
    sounds = {voice: make(Tone, tmp_path, duration=1, voice=voice)[0].sha256 for voice in (None, "alloy", "onyx")}
    assert len(set(sounds.values())) == 3
    assert make(Tone, tmp_path, duration=1, voice="alloy")[0].sha256 == sounds["alloy"]


@pytest.mark.parametrize("model", [Tone, Clip])
@pytest.mark.parametrize(
    "order", [{"prompt": ""}, {"duration": 0.5}, {"duration": 61}, {"duration": True}, {"seed": -1}]
)
def test_what_cannot_be_made_is_refused(model: type[Clip | Tone], order: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"prompt": "rain", **order}, model)


@pytest.mark.parametrize("order", [{"mood": "angry"}, {"duration": "auto"}])
def test_tone_knows_its_moods_and_lengths(order: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"prompt": "rain", **order}, Tone)


@pytest.mark.parametrize(
    ("resolution", "size"), [("360p", (640, 360)), ("480p", (854, 480)), ("720p", (1280, 720))]
)
def test_clip_has_the_resolution_ordered(tmp_path: Path, resolution: str, size: tuple[int, int]) -> None:
    one, _ = make(Clip, tmp_path, duration=1, resolution=resolution)
    assert (one.width, one.height) == size


def test_clip_takes_auto_for_a_length(tmp_path: Path) -> None:
    assert make(Clip, tmp_path, duration="auto")[0].duration_s == 4.0
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"prompt": "rain", "resolution": "8k"}, Clip)


def test_frame_comes_out_of_a_lossy_picture_alone() -> None:
    for lossless in (False, True):
        stream = io.BytesIO()
        Image.new("RGB", (16, 16), "red").save(stream, "WEBP", lossless=lossless)
        if lossless:
            with pytest.raises(ValueError, match="lossy"):
                vp8_frame(stream.getvalue())
        else:
            assert vp8_frame(stream.getvalue())[3:6] == b"\x9d\x01\x2a"
