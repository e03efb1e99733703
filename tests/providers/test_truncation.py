"""Whether a media file has its end."""

from __future__ import annotations

import io
import struct
import wave
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from holdfast.providers.storage.sniffing import MEDIA_TYPES, is_complete, opened


def picture(form: str) -> bytes:
    file = io.BytesIO()
    Image.effect_noise((24, 24), 50).convert("RGB").save(file, form)
    return file.getvalue()


def sound() -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(8000)
        writer.writeframes(bytes(800))
    return file.getvalue()


def box(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I4s", 8 + len(content), name) + content


CLIP = box(b"ftyp", b"isom\0\0\0\0isom") + box(b"mdat", bytes(100)) + box(b"moov", bytes(50))
LONG_CLIP = CLIP[:20] + struct.pack(">I4sQ", 1, b"mdat", 16 + 40) + bytes(40) + box(b"moov", bytes(50))
WHOLE = [
    ("image/png", picture("PNG")),
    ("image/jpeg", picture("JPEG")),
    ("image/gif", picture("GIF")),
    ("image/webp", picture("WEBP")),
    ("image/avif", picture("AVIF")),
    ("audio/wav", sound()),
    ("video/mp4", CLIP),
    ("video/mp4", LONG_CLIP),
]


def judged(folder: Path, content: bytes, content_type: str) -> bool:
    """Check a content in memory, and in a file."""
    path = folder / "file"
    path.write_bytes(content)
    with path.open("rb") as file, opened(file) as data:
        found = is_complete(data, content_type)
    assert is_complete(content, content_type) == found
    return found


@pytest.mark.parametrize(("content_type", "content"), WHOLE)
def test_a_whole_file_has_its_end_and_one_cut_anywhere_has_not(
    tmp_path: Path, content_type: str, content: bytes
) -> None:
    assert judged(tmp_path, content, content_type)
    assert judged(tmp_path, content + b"\0\0\0", content_type)
    # A GIF's closing mark may come up by chance inside it.
    for place in {len(content) - 10, len(content) // 2, 40}:
        if content_type != "image/gif" or b"\x3b" not in content[max(0, place - 1024) : place]:
            assert not judged(tmp_path, content[:place], content_type), place


@pytest.mark.parametrize(
    ("content", "content_type"),
    [
        (b"RIFF\xff\xff\xff\xffWAVE", "audio/wav"),
        (b"RIFF\0\0\0\0WAVE", "audio/wav"),
        (b"RIFF\xff\xff\xff\x7fWAVE", "audio/wav"),
        (b"RIFF\x24\0\0\x80WAVE", "audio/wav"),
        (b"ID3", "audio/mpeg"),
        (box(b"moov", b"") + struct.pack(">I4s", 0, b"mdat") + bytes(30), "video/mp4"),
    ],
)
def test_what_tells_no_length_is_taken_as_it_comes(tmp_path: Path, content: bytes, content_type: str) -> None:
    assert judged(tmp_path, content, content_type)


def test_a_clip_without_its_table_cannot_be_shown(tmp_path: Path) -> None:
    assert not judged(tmp_path, CLIP[:128], "video/mp4")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(min_size=1, max_size=200), content_type=st.sampled_from(sorted(MEDIA_TYPES)))
def test_no_bytes_raise_or_keep_it_busy(tmp_path: Path, content: bytes, content_type: str) -> None:
    for start in (b"", b"\xff\xd8", b"\x89PNG\r\n\x1a\n", b"RIFF"):
        assert judged(tmp_path, start + content, content_type) in {True, False}
