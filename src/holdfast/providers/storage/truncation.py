"""Detect truncated media files: their beginning is that of a complete one.

The structure is walked and never decoded, so a file needs no memory for the sizes it declares. Formats without a
length or an end marker (MP3, Ogg, FLAC, WebM) are not checked.
"""

from __future__ import annotations

import struct

from holdfast.providers.storage.durations.reading import LENGTH_UNKNOWN_MIN
from holdfast.providers.storage.sniffing import MediaData

_JPEG_ALONE = frozenset({0x01, *range(0xD0, 0xD8)})
"""Markers without a length."""
_NEEDED_BOX = {"image/avif": b"meta", "video/mp4": b"moov"}
"""The box that is required; it may be the last."""


def is_complete(data: MediaData, content_type: str) -> bool:
    """Return False if media of a sniffed type are certainly truncated; blocking."""
    try:
        if content_type == "image/png":
            return _png(data)
        if content_type == "image/jpeg":
            return _jpeg(data)
        if content_type == "image/gif":
            return data.rfind(b"\x3b", len(data) - 1024 if len(data) > 1024 else 0) >= 0
        if content_type in {"image/webp", "audio/wav"}:
            return _riff(data)
        needed = _NEEDED_BOX.get(content_type)
        return needed is None or _boxes(data, needed)
    except struct.error:
        return False


def _png(data: MediaData) -> bool:
    """Walk the chunks to the closing one."""
    place = 8
    while True:
        length, name = struct.unpack_from(">I4s", data, place)
        place += 12 + length
        if place > len(data):
            return False
        if name == b"IEND":
            return True


def _jpeg(data: MediaData) -> bool:
    """Walk the segments to the image data, and find the end marker after it."""
    place = 2
    while True:
        start, mark = struct.unpack_from(">BB", data, place)
        if start != 0xFF:
            return False
        if mark == 0xFF:
            place += 1
        elif mark in _JPEG_ALONE:
            place += 2
        elif mark == 0xDA:
            return data.rfind(b"\xff\xd9", place) >= 0
        else:
            (length,) = struct.unpack_from(">H", data, place + 2)
            place += 2 + max(2, length)


def _riff(data: MediaData) -> bool:
    (length,) = struct.unpack_from("<I", data, 4)
    return not 0 < length < LENGTH_UNKNOWN_MIN or 8 + length <= len(data)


def _boxes(data: MediaData, needed: bytes) -> bool:
    """Walk the boxes, none of which may exceed the file; other bytes after them are ignored."""
    place, is_there = 0, False
    while place + 8 <= len(data):
        length, name = struct.unpack_from(">I4s", data, place)
        if length == 1:
            (length,) = struct.unpack_from(">Q", data, place + 8)
        is_there = is_there or name == needed
        if length < 8:
            # 0: up to the end.
            break
        place += length
    return is_there and place <= len(data)
