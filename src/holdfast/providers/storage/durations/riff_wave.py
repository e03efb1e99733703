"""Measure WAV by its sample data, the size of a sample and the sample rate.

A program that writes to a pipe cannot fill in the lengths afterwards; then the data extends to the end of the file.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.providers.storage.durations.reading import LENGTH_UNKNOWN_MIN, Contradiction, MediaBytes

_PLAIN_CODINGS = frozenset({0x0001, 0x0003, 0x0006, 0x0007})
"""Integers, floats, A-law, µ-law: each sample has the same number of bytes."""
_EXTENSIBLE = 0xFFFE
_RATE_MIN, _RATE_MAX = 1_000, 1_000_000


def wave_duration_s(media: MediaBytes) -> float | None:
    """Return the length in seconds; None for encodings whose blocks do not determine it."""
    offset, form = 12, None
    while offset + 8 <= media.size_bytes:
        media.step()
        name, length = media.read("<4sI", offset)
        begin = offset + 8
        if name == b"fmt ":
            form = _form(media, begin, length)
        elif name == b"data":
            if form is None:
                raise Contradiction("the audio does not declare its encoding")
            there = media.size_bytes - begin
            if length == 0 or length >= LENGTH_UNKNOWN_MIN:
                length = there
            if length > there:
                raise Contradiction("the content is truncated")
            return _length_s(form, length)
        offset = begin + length + (length & 1)
    raise Contradiction("the audio has no samples")


class _Form(NamedTuple):
    coding: int
    channels: int
    rate: int
    frame_bytes: int
    bits: int


def _form(media: MediaBytes, begin: int, length: int) -> _Form:
    if length < 16:
        raise Contradiction("the audio does not declare its encoding")
    coding, channels, rate, _, frame_bytes, bits = media.read("<HHIIHH", begin)
    if coding == _EXTENSIBLE and length >= 26:
        (coding,) = media.read("<H", begin + 24)
    return _Form(coding, channels, rate, frame_bytes, bits)


def _length_s(form: _Form, length: int) -> float | None:
    coding, channels, rate, frame_bytes, bits = form
    if coding not in _PLAIN_CODINGS:
        return None
    if not _RATE_MIN <= rate <= _RATE_MAX or not frame_bytes or frame_bytes != channels * -(-bits // 8):
        raise Contradiction("the audio's sample rate or size is not valid")
    if length < frame_bytes:
        raise Contradiction("the audio has no samples")
    return length // frame_bytes / rate
