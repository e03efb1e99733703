"""The poster model: sizes, sameness, progress and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from holdfast_emulators.studio.drawing import Poster
from holdfast_emulators.studio.model import OutputFile, RenderContext

STYLES = ("gradient", "mosaic", "plasma")


def prepare(data: dict[str, Any]) -> Poster:
    return msgspec.convert(data, Poster)


def render(directory: Path, **order: Any) -> tuple[list[OutputFile], list[int]]:
    percents: list[int] = []
    context = RenderContext(directory, lambda percent, stage: percents.append(percent))
    return prepare({"prompt": "A harbour at sunset", "seed": 7, **order}).render(context), percents


def pixels(rendered: OutputFile) -> bytes:
    with Image.open(rendered.path) as image:
        return image.tobytes()


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(("width", "height"), [(512, 512), (64, 2048), (700, 129), (65, 64)])
def test_picture_has_the_size_that_was_ordered(tmp_path: Path, style: str, width: int, height: int) -> None:
    (one,), percents = render(tmp_path, style=style, width=width, height=height)
    with Image.open(one.path) as image:
        assert image.format == "PNG"
        assert image.size == (width, height) == (one.width, one.height)
        assert len(image.convert("RGB").resize((16, 16)).getcolors() or ()) > 20
    assert percents == sorted(percents)
    assert percents[0] == 0
    assert len(percents) == 3
    assert one.content_type == "image/png"


@pytest.mark.parametrize("style", STYLES)
def test_same_input_and_seed_give_the_same_pixels(tmp_path: Path, style: str) -> None:
    order = {"style": style, "width": 200, "height": 160}
    first = pixels(render(tmp_path, **order)[0][0])
    assert pixels(render(tmp_path, **order)[0][0]) == first
    assert pixels(render(tmp_path, **{**order, "seed": 8})[0][0]) != first
    assert pixels(render(tmp_path, **{**order, "prompt": "A harbour at dawn"})[0][0]) != first


def test_each_of_several_pictures_differs_and_counts(tmp_path: Path) -> None:
    results, percents = render(tmp_path, n=3, width=128, height=128)
    assert len({pixels(one) for one in results}) == 3
    assert percents == sorted(percents)
    assert {percent // 34 for percent in percents} == {0, 1, 2}


@pytest.mark.parametrize(
    "order",
    [
        {"prompt": ""},
        {"prompt": 5},
        {"prompt": None},
        {"width": 63},
        {"width": 2049},
        {"height": 512.5},
        {"n": 0},
        {"n": 9},
        {"n": True},
        {"seed": -1},
        {"style": "oil"},
        {"style": ["mosaic"]},
    ],
)
def test_what_cannot_be_painted_is_refused(order: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        prepare({"prompt": "A harbour", **order})


def test_raising_from_progress_stops_the_work(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def report(percent: int, stage: str) -> None:
        if percent > 20:
            raise Stop

    context = RenderContext(tmp_path, report)
    with pytest.raises(Stop):
        prepare({"prompt": "A harbour"}).render(context)
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(min_size=1, max_size=80).filter(str.strip), st.integers(0, 2**63 - 1), st.sampled_from(STYLES))
def test_no_prompt_or_seed_breaks_it(tmp_path: Path, prompt: str, seed: int, style: str) -> None:
    (one,), _ = render(tmp_path, prompt=prompt, seed=seed, style=style, width=96, height=64)
    assert (one.width, one.height) == (96, 64)
