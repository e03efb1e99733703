"""Detect a file's media type by its first bytes, measure it, and detect that it is truncated.

The beginning of a truncated file is that of a complete one. Its structure is walked and never decoded, so a file
needs no memory for the sizes it declares. Formats without a length or an end marker (MP3, Ogg, FLAC, WebM) are
not checked.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import IO, TypeAlias, cast

from holdfast.providers.storage.durations import duration_of
from holdfast.providers.storage.durations.reading import LENGTH_UNKNOWN_MIN, Contradiction, TooManySteps
from holdfast.providers.storage.spool import Content

MediaData: TypeAlias = bytes | mmap.mmap

HEAD_BYTES = 4096
"""How much of a file's beginning :func:`sniff` needs."""
PIXELS_MAX_COUNT = 64_000_000

_EXTENSIONS = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/webp": "webp",
    "image/gif": "gif",
    "image/avif": "avif",
    "video/mp4": "mp4",
    "video/webm": "webm",
    "audio/wav": "wav",
    "audio/mpeg": "mp3",
    "audio/ogg": "ogg",
    "audio/flac": "flac",
}
MEDIA_TYPES = frozenset(_EXTENSIONS)
"""Every type that may be hosted; none that a browser would execute, such as HTML or SVG."""

UNKNOWN_TYPE = "application/octet-stream"
"""The type of an uploaded file that is of no other."""

EXTENSIONS = {**_EXTENSIONS, UNKNOWN_TYPE: "bin"}
"""The extension of every type that is stored."""

_ALIASES = {
    "image/jpg": "image/jpeg",
    "image/pjpeg": "image/jpeg",
    "audio/x-wav": "audio/wav",
    "audio/wave": "audio/wav",
    "audio/vnd.wave": "audio/wav",
    "audio/mp3": "audio/mpeg",
    "audio/x-flac": "audio/flac",
    "application/ogg": "audio/ogg",
}
_FORMATS = {f"image/{name.lower()}": name for name in ("PNG", "JPEG", "WEBP", "GIF", "AVIF")}
_STARTS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
    (b"ID3", "audio/mpeg"),
)
_AVIF_BRANDS = frozenset({b"avif", b"avis"})
_MP4_BRANDS = frozenset(
    {b"isom", b"iso2", b"iso4", b"iso5", b"iso6", b"mp41", b"mp42", b"avc1", b"M4V ", b"dash", b"MSNV"}
)

_JPEG_ALONE = frozenset({0x01, *range(0xD0, 0xD8)})
"""Markers without a length."""
_NEEDED_BOX = {"image/avif": b"meta", "video/mp4": b"moov"}
"""The box that is required; it may be the last."""


class NotMedia(Exception):
    """The file's content contradicts its type."""


class TooManyPixels(Exception):
    """The image has more pixels than allowed."""


@dataclass(frozen=True, slots=True)
class Measure:
    """Pixels and seconds, as far as the type has them."""

    width: int | None = None
    height: int | None = None
    duration_s: float | None = None


def plain_type(content_type: str | None) -> str | None:
    """Return a content type without parameters, in lower case and under its usual name."""
    if content_type is None:
        return None
    bare = content_type.split(";")[0].strip().lower()
    return _ALIASES.get(bare, bare) or None


def sniff(head: bytes) -> str | None:
    """Return the media type that a file's first bytes show; None for any other."""
    for start, found in _STARTS:
        if head.startswith(start):
            return found
    if head[:4] == b"RIFF":
        return {b"WEBP": "image/webp", b"WAVE": "audio/wav"}.get(head[8:12])
    if head[4:8] == b"ftyp":
        brands = {head[8:12], *(head[offset : offset + 4] for offset in range(16, min(_box_size(head), 64), 4))}
        if brands & _AVIF_BRANDS:
            return "image/avif"
        return "video/mp4" if brands & _MP4_BRANDS else None
    if head[:4] == b"\x1a\x45\xdf\xa3":
        return "video/webm" if b"\x42\x82\x84webm" in head[:64] else None
    if len(head) > 2 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0 and head[1] & 0x06 == 0x02:
        return "audio/mpeg"
    return None


@contextmanager
def opened(content: Content) -> Iterator[MediaData]:
    """Give a content's bytes; a file, which must not be empty, is mapped into memory. Blocks."""
    if isinstance(content, bytes):
        yield content
        return
    with mmap.mmap(content.fileno(), 0, access=mmap.ACCESS_READ) as data:
        yield data


def measure(data: MediaData, content_type: str) -> Measure:
    """Measure media of a sniffed type without decoding them; blocking.

    The duration is None if measuring it requires decoding, or would take too long.

    Raises :class:`NotMedia` and :class:`TooManyPixels`.
    """
    if content_type in _FORMATS:
        return _measure_image(data, _FORMATS[content_type])
    try:
        return Measure(duration_s=duration_of(data, content_type))
    except Contradiction as fault:
        raise NotMedia(str(fault)) from fault
    except TooManySteps:
        return Measure()


def _box_size(head: bytes) -> int:
    return int.from_bytes(head[:4], "big")


def _measure_image(data: MediaData, form: str) -> Measure:
    from PIL import Image, UnidentifiedImageError  # loaded with the first image

    file = BytesIO(data) if isinstance(data, bytes) else cast("IO[bytes]", data)
    try:
        with Image.open(file, formats=(form,)) as image:
            width, height = image.size
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as fault:
        raise TooManyPixels from fault
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, struct.error) as fault:
        raise NotMedia("the image cannot be read") from fault
    if width * height > PIXELS_MAX_COUNT:
        raise TooManyPixels
    return Measure(width=width, height=height)


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
    offset = 8
    while True:
        length, name = struct.unpack_from(">I4s", data, offset)
        offset += 12 + length
        if offset > len(data):
            return False
        if name == b"IEND":
            return True


def _jpeg(data: MediaData) -> bool:
    """Walk the segments to the image data, and find the end marker after it."""
    offset = 2
    while True:
        start, mark = struct.unpack_from(">BB", data, offset)
        if start != 0xFF:
            return False
        if mark == 0xFF:
            offset += 1
        elif mark in _JPEG_ALONE:
            offset += 2
        elif mark == 0xDA:
            return data.rfind(b"\xff\xd9", offset) >= 0
        else:
            (length,) = struct.unpack_from(">H", data, offset + 2)
            offset += 2 + max(2, length)


def _riff(data: MediaData) -> bool:
    (length,) = struct.unpack_from("<I", data, 4)
    return not 0 < length < LENGTH_UNKNOWN_MIN or 8 + length <= len(data)


def _boxes(data: MediaData, needed: bytes) -> bool:
    """Walk the boxes, none of which may exceed the file; other bytes after them are ignored."""
    offset, is_there = 0, False
    while offset + 8 <= len(data):
        length, name = struct.unpack_from(">I4s", data, offset)
        if length == 1:
            (length,) = struct.unpack_from(">Q", data, offset + 8)
        is_there = is_there or name == needed
        if length < 8:
            # 0: up to the end.
            break
        offset += length
    return is_there and offset <= len(data)
