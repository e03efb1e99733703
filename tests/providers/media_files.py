"""Media files as encoders write them, made by libav, and their length as libav's own demuxer finds it."""

from __future__ import annotations

import io
import math
import struct
from fractions import Fraction
from functools import cache
from typing import Any

import av

RATE = 48_000


@cache
def encoded(kind: str, seconds: float, **options: str) -> bytes:
    """A file of ``seconds``: ``kind`` is container and codecs, as ``mp4 mpeg4 aac``."""
    container, *codecs = kind.split()
    file = io.BytesIO()
    with av.open(file, "w", format=container, options=options) as out:
        streams = [_stream(out, codec) for codec in codecs]
        for stream in streams:
            frames = _pictures(stream, seconds) if stream.type == "video" else _sound(stream, seconds)
            for frame in frames:
                out.mux(stream.encode(frame))
            out.mux(stream.encode(None))
    return file.getvalue()


def demuxed_s(content: bytes, kind: str = "video") -> float:
    """From the first packet's time to the end of the last one, of the first stream of a kind."""
    first, last = math.inf, 0.0
    with av.open(io.BytesIO(content), "r") as file:
        stream = next(stream for stream in file.streams if stream.type == kind)
        for packet in file.demux(stream):
            if packet.pts is not None and packet.time_base is not None:
                first = min(first, float(packet.pts * packet.time_base))
                last = max(last, float((packet.pts + (packet.duration or 0)) * packet.time_base))
    return last - first


def wave(seconds: float, *, declared_bytes: int | None = None, riff_bytes: int | None = None, **form: int) -> bytes:
    """A WAV file whose header may declare false lengths or another format."""
    rate, channels, bits = form.get("rate", 8000), form.get("channels", 1), form.get("bits", 16)
    frame_bytes = form.get("frame_bytes", channels * bits // 8)
    data = bytes(round(seconds * rate) * channels * bits // 8)
    length = len(data) if declared_bytes is None else declared_bytes
    head = struct.pack(
        "<4sIHHIIHH", b"fmt ", 16, form.get("coding", 1), channels, rate, rate * frame_bytes, frame_bytes, bits
    )
    content = b"WAVE" + head + struct.pack("<4sI", b"data", length) + data
    return b"RIFF" + struct.pack("<I", len(content) if riff_bytes is None else riff_bytes) + content


def _stream(out: Any, codec: str) -> Any:
    if codec in {"mpeg4", "libvpx"}:
        stream = out.add_stream(codec, rate=25)
        stream.width = stream.height = 32
        stream.pix_fmt = "yuv420p"
    else:
        stream = out.add_stream(codec, rate=RATE)
        stream.codec_context.layout = "mono"
        stream.codec_context.format = stream.codec_context.codec.audio_formats[0].name
    return stream


def _pictures(stream: Any, seconds: float) -> list[Any]:
    frames = []
    for number in range(round(seconds * 25)):
        frame = av.VideoFrame(32, 32, "yuv420p")
        for plane in frame.planes:
            plane.update(bytes([number % 200 + 20]) * plane.buffer_size)
        frame.pts, frame.time_base = number, Fraction(1, 25)
        frames.append(frame)
    return frames


def _sound(stream: Any, seconds: float) -> list[Any]:
    form = stream.codec_context.format.name
    samples = round(seconds * RATE)
    block = 960
    frames = []
    for start in range(0, samples, block):
        count = min(block, samples - start)
        frame = av.AudioFrame(form, "mono", count)
        wide = frame.planes[0].buffer_size // count
        frame.planes[0].update(
            bytes((start * 7 + each * 13) % 251 for each in range(count * wide))
            if wide <= 2
            else b"".join(_sample(form, start + each) for each in range(count))
        )
        frame.sample_rate, frame.pts, frame.time_base = RATE, start, Fraction(1, RATE)
        frames.append(frame)
    return frames


def _sample(form: str, number: int) -> bytes:
    loudness = math.sin(number / 20) / 4
    return struct.pack("<f", loudness) if form.startswith("flt") else struct.pack("<i", round(loudness * 2**30))
