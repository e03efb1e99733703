"""Measure the duration of sounds and clips from the frames, blocks and samples in the file.

The duration in a file's header is ignored: a provider could change it to be paid more, and programs that write to a
pipe omit it. Each format has its own reader, which walks the file without decoding it.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from typing import Final

from holdfast.providers.storage.durations.flac import flac_duration_s
from holdfast.providers.storage.durations.matroska import webm_duration_s
from holdfast.providers.storage.durations.mp4 import mp4_duration_s
from holdfast.providers.storage.durations.mpeg_audio import mp3_duration_s
from holdfast.providers.storage.durations.ogg import ogg_duration_s
from holdfast.providers.storage.durations.reading import STEPS_MAX, Contradiction, MediaBytes
from holdfast.providers.storage.durations.riff_wave import wave_duration_s

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


def duration_of(data: mmap.mmap | bytes, content_type: str, *, steps_max: int = STEPS_MAX) -> float | None:
    """Return the duration of media of a sniffed type in seconds, to the millisecond; blocking.

    None if it would have to be decoded for it. Raises :class:`Contradiction` if the media are truncated, contradict
    themselves or have nothing to play, :class:`TooManySteps` if measuring them takes too long.
    """
    found_s = _READERS[content_type](MediaBytes(data, steps_max=steps_max))
    if found_s is None:
        return None
    if found_s > max(1, len(data)):
        # Less than one byte per second: the times in the file are false.
        raise Contradiction("the content is far too short for its times")
    return max(DURATION_S_MIN, round(found_s, 3))
