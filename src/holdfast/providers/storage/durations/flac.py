"""Measure FLAC by its frames, found in sequence by their numbers.

The number of samples in the header is ignored. A frame does not contain its size, so the next one is searched for;
the checksum of a frame's header and its consecutive number make a false match practically impossible.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.providers.storage.durations.reading import Contradiction, MediaBytes

_BLOCK_SIZES = {1: 192, **{code: 576 << code - 2 for code in range(2, 6)},
                **{code: 256 << code - 8 for code in range(8, 16)}}  # fmt: skip
_HEAD_BYTES_MAX = 16


def _crc_table() -> bytes:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte << 1) ^ (0x107 if byte & 0x80 else 0)  # noqa: PLW2901  # shifted out bit by bit
        table.append(byte)
    return bytes(table)


_CRC = _crc_table()


class _Frame(NamedTuple):
    number: int
    """The frame's number, or that of its first sample if frames differ in size."""
    samples: int


def flac_duration_s(media: MediaBytes) -> float:
    """Return the length of all frames in seconds."""
    offset, rate = _after_metadata(media)
    mark = media.span(offset, offset + 2)
    if mark not in {b"\xff\xf8", b"\xff\xf9"}:
        raise Contradiction("the audio has no frames")
    counts_samples = mark == b"\xff\xf9"
    total, awaited = 0, None
    while (offset := media.find(mark, offset)) >= 0:
        media.step()
        frame = _frame(media.span(offset, offset + _HEAD_BYTES_MAX))
        if frame is None or frame.number != (frame.number if awaited is None else awaited):
            offset += 1
            continue
        total += frame.samples
        awaited = frame.number + (frame.samples if counts_samples else 1)
        offset += 2
    if not total:
        raise Contradiction("the audio has no frames")
    return total / rate


def _after_metadata(media: MediaBytes) -> tuple[int, int]:
    """Return where the frames begin, and the sample rate."""
    offset, rate, is_last = 4, 0, False
    while not is_last:
        media.step()
        (head,) = media.read(">I", offset)
        is_last, kind, length = bool(head >> 31), head >> 24 & 0x7F, head & 0xFFFFFF
        if kind == 0:
            rate = int.from_bytes(media.span(offset + 14, offset + 17), "big") >> 4
        offset += 4 + length
    if not rate:
        raise Contradiction("the audio has no sample rate")
    return offset, rate


def _frame(head: bytes) -> _Frame | None:
    if len(head) < 6:
        return None
    size_code, rate_code = head[2] >> 4, head[2] & 15
    if size_code == 0 or rate_code == 15 or head[3] >> 4 > 10 or head[3] & 1:
        return None
    number, offset = _coded_number(head)
    if offset < 0:
        return None
    samples = _BLOCK_SIZES.get(size_code, 0)
    if size_code in {6, 7}:
        width = size_code - 5
        samples = 1 + int.from_bytes(head[offset : offset + width], "big")
        offset += width
    offset += {12: 1, 13: 2, 14: 2}.get(rate_code, 0)
    if offset >= len(head) or _crc(head[:offset]) != head[offset]:
        return None
    return _Frame(number, samples)


def _coded_number(head: bytes) -> tuple[int, int]:
    """Return the number after the first four bytes, encoded like a UTF-8 character, and where it ends; or -1."""
    first = head[4]
    if first < 0x80:
        return first, 5
    ones = 8 - (first ^ 0xFF).bit_length()
    rest = head[5 : 4 + ones]
    if not 2 <= ones <= 7 or len(rest) < ones - 1 or any(byte >> 6 != 2 for byte in rest):
        return 0, -1
    number = first & (0x7F >> ones)
    for byte in rest:
        number = number << 6 | byte & 0x3F
    return number, 4 + ones


def _crc(head: bytes) -> int:
    crc = 0
    for byte in head:
        crc = _CRC[crc ^ byte]
    return crc
