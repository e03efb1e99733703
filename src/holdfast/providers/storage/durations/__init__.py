"""Measure the duration of sounds and clips from the frames, blocks and samples in the file.

What a header says of the length is never believed: it is what a provider would change to be paid more, and what
programs that write to a pipe leave out. Each format has a reader of its own, which walks the file and decodes
nothing.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from holdfast.providers.storage.durations.flac import flac_duration_s
from holdfast.providers.storage.durations.matroska import webm_duration_s
from holdfast.providers.storage.durations.mp4 import mp4_duration_s
from holdfast.providers.storage.durations.mpeg_audio import mp3_duration_s
from holdfast.providers.storage.durations.ogg import ogg_duration_s
from holdfast.providers.storage.durations.reading import STEPS_MAX, Contradiction, MediaBytes, TooManySteps
from holdfast.providers.storage.durations.riff_wave import wave_duration_s

__all__ = ["Contradiction", "TooManySteps", "duration_of", "duration_of_file"]

_READERS: Final[Mapping[str, Callable[[MediaBytes], float | None]]] = {
    "audio/wav": wave_duration_s,
    "audio/mpeg": mp3_duration_s,
    "audio/ogg": ogg_duration_s,
    "audio/flac": flac_duration_s,
    "video/mp4": mp4_duration_s,
    "video/webm": webm_duration_s,
}

DURATION_S_MIN: Final = 0.001
"""The duration of a file with a single frame."""


def duration_of_file(path: Path, content_type: str) -> float | None:
    """Return the duration of a file of a sniffed type in seconds, to the millisecond; blocking.

    None where the format's coding does not tell it without decoding. Raises :class:`Contradiction` where the file
    is cut short, contradicts itself or holds nothing, :class:`TooManySteps` where it would take too long to tell.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return duration_of(data, content_type)


def duration_of(data: mmap.mmap | bytes, content_type: str, *, steps_max: int = STEPS_MAX) -> float | None:
    """Return the duration of media in memory, like :func:`duration_of_file`."""
    found_s = _READERS[content_type](MediaBytes(data, steps_max=steps_max))
    if found_s is None:
        return None
    if found_s > max(1, len(data)):
        # Less than a byte for a second: the times in it are made up.
        raise Contradiction("the content is far shorter than the times it tells")
    return max(DURATION_S_MIN, round(found_s, 3))
