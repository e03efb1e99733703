"""Write WebM: one VP8 video track in which every frame is a key frame."""

from __future__ import annotations

import struct
from collections.abc import Sequence


def vp8_frame(webp: bytes) -> bytes:
    """Return the VP8 key frame of a lossy WebP file. Raises ``ValueError`` if there is none."""
    place = 12
    while place + 8 <= len(webp):
        size = int.from_bytes(webp[place + 4 : place + 8], "little")
        if webp[place : place + 4] == b"VP8 ":
            return webp[place + 8 : place + 8 + size]
        place += 8 + size + size % 2
    raise ValueError("not a lossy WebP file")


def write_webm(frames: Sequence[bytes], width: int, height: int, frames_per_s: int) -> bytes:
    """Return a whole file. Clusters are one second long."""
    groups = [frames[place : place + frames_per_s] for place in range(0, len(frames), frames_per_s)]
    clusters = []
    for second, group in enumerate(groups):
        blocks = [
            _element(0xA3, b"\x81" + struct.pack(">hB", round(i * 1000 / frames_per_s), 0x80) + frame)
            for i, frame in enumerate(group)
        ]
        clusters.append(_element(0x1F43B675, _number(0xE7, second * 1000) + b"".join(blocks)))
    information = _element(
        0x1549A966,
        _number(0x2AD7B1, 1_000_000)
        + _element(0x4489, struct.pack(">d", len(frames) * 1000 / frames_per_s))
        + _element(0x4D80, b"holdfast studio")
        + _element(0x5741, b"holdfast studio"),
    )
    tracks = _element(
        0x1654AE6B,
        _element(
            0xAE,
            _number(0xD7, 1)
            + _number(0x73C5, 1)
            + _number(0x83, 1)
            + _number(0x9C, 0)
            + _element(0x86, b"V_VP8")
            + _number(0x23E383, round(1_000_000_000 / frames_per_s))
            + _element(0xE0, _number(0xB0, width) + _number(0xBA, height)),
        ),
    )
    return _ebml_head() + _element(0x18538067, information + tracks + b"".join(clusters))


def _ebml_head() -> bytes:
    return _element(
        0x1A45DFA3,
        _number(0x4286, 1)
        + _number(0x42F7, 1)
        + _number(0x42F2, 4)
        + _number(0x42F3, 8)
        + _element(0x4282, b"webm")
        + _number(0x4287, 2)
        + _number(0x4285, 2),
    )


def _element(mark: int, content: bytes) -> bytes:
    name = mark.to_bytes((mark.bit_length() + 7) // 8, "big")
    for width in range(1, 9):
        if len(content) < (1 << 7 * width) - 1:
            return name + (len(content) | 1 << 7 * width).to_bytes(width, "big") + content
    raise ValueError("an element this large cannot be written")


def _number(mark: int, value: int) -> bytes:
    return _element(mark, value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big"))
