"""Measure MP3 by its frames, except for the header frame of the encoder (Xing, Info or VBRI).

The silence that the encoder added at the start and the end is subtracted if the header frame gives its length.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.providers.storage.durations.reading import Contradiction, MediaBytes

_BITRATES_1 = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
_BITRATES_2 = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
_RATES = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000), 0: (11_025, 12_000, 8_000)}
"""Sample rates by version: 3 is MPEG 1, 2 is MPEG 2, 0 is MPEG 2.5."""
_LAYER_3 = 1
_HEAD_BYTES = 200
"""How much of the first frame is searched for the encoder's header."""


class _Frame(NamedTuple):
    size_bytes: int
    samples: int
    rate: int


def mp3_duration_s(media: MediaBytes) -> float:
    """Return the length of all whole frames in seconds."""
    offset, seconds, frames = _behind_tags(media), 0.0, 0
    rate = trimmed = 0
    while (offset := media.find(b"\xff", offset)) >= 0:
        media.step()
        frame = _frame(media, offset)
        if frame is None or not _goes_on(media, offset + frame.size_bytes):
            offset += 1
            continue
        if offset + frame.size_bytes > media.size_bytes:
            break
        if not rate:
            rate = frame.rate
            head = media.span(offset, offset + min(_HEAD_BYTES, frame.size_bytes))
            mark = max(head.find(mark) for mark in (b"Xing", b"Info", b"VBRI"))
            if mark >= 0:
                trimmed = _trimmed_samples(head[mark:])
                offset += frame.size_bytes
                continue
        frames += 1
        seconds += frame.samples / frame.rate
        offset += frame.size_bytes
    if not frames:
        raise Contradiction("the audio has no frames")
    return max(seconds - trimmed / rate, 0.0)


def _behind_tags(media: MediaBytes) -> int:
    """Return where the audio may begin: after the tags."""
    offset = 0
    while media.span(offset, offset + 3) == b"ID3":
        media.step()
        length = 0
        for byte in media.span(offset + 6, offset + 10):
            length = length << 7 | byte & 0x7F
        offset += 10 + length
    return offset


def _frame(media: MediaBytes, offset: int) -> _Frame | None:
    head = media.span(offset, offset + 4)
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE0 != 0xE0 or head[1] >> 1 & 3 != _LAYER_3:
        return None
    version, bitrate, rate = head[1] >> 3 & 3, head[2] >> 4, head[2] >> 2 & 3
    if version not in _RATES or not 0 < bitrate < 15 or rate == 3:
        return None
    is_first = version == 3
    kbit = (_BITRATES_1 if is_first else _BITRATES_2)[bitrate]
    samples = 1152 if is_first else 576
    hertz = _RATES[version][rate]
    return _Frame(samples * kbit * 125 // hertz + (head[2] >> 1 & 1), samples, hertz)


def _goes_on(media: MediaBytes, offset: int) -> bool:
    """Whether a frame, a tag or the end is at ``offset``. Behind random bytes like a frame there is none."""
    rest = media.size_bytes - offset
    return (
        rest < 4 or _frame(media, offset) is not None or media.span(offset, offset + 3) in {b"TAG", b"APE", b"ID3"}
    )


def _trimmed_samples(head: bytes) -> int:
    """Return the encoder's silence in samples, from the end of the description."""
    if head[:4] == b"VBRI" or len(head) < 8:
        return 0
    flags = head[7]
    offset = 8 + 4 * (flags & 1) + 4 * (flags >> 1 & 1) + 100 * (flags >> 2 & 1) + 4 * (flags >> 3 & 1) + 21
    packed = int.from_bytes(head[offset : offset + 3], "big") if len(head) >= offset + 3 else 0
    return (packed >> 12) + (packed & 0xFFF)
