"""Measure Ogg by a stream's last position, as far as its packets can account for it.

Consecutive streams are added up, concurrent ones are not.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.providers.storage.durations.reading import Contradiction, MediaBytes

_NO_POSITION = 0xFFFF_FFFF_FFFF_FFFF
_FIRST = 2
_OPUS_RATE = 48_000
_HEAD_BYTES = 64


@dataclass(slots=True)
class _Stream:
    rate: int
    packet_samples_max: int
    """The most samples that one packet can contain."""
    skipped: int = 0
    packets: int = 0
    position: int = 0

    @property
    def length_s(self) -> float:
        return min(max(self.position - self.skipped, 0), self.packets * self.packet_samples_max) / self.rate


def ogg_duration_s(media: MediaBytes) -> float | None:
    """Return the length in seconds; None unless it contains Vorbis, Opus or FLAC."""
    length_s, offset, streams, is_begun, is_known = 0.0, 0, dict[int, _Stream](), False, False
    while offset < media.size_bytes:
        media.step()
        if offset + 27 > media.size_bytes or media.span(offset, offset + 4) != b"OggS":
            # Other bytes follow the audio, or hide the rest of it from players too.
            break
        kind, position, serial = media.read("<BQI", offset + 5)
        count = media.byte(offset + 26)
        sizes = media.span(offset + 27, offset + 27 + count)
        begin = offset + 27 + count
        offset = begin + sum(sizes)
        if offset > media.size_bytes:
            # The last page is truncated; the pages before it can be played.
            break
        if kind & _FIRST:
            if is_begun:
                length_s += max((stream.length_s for stream in streams.values()), default=0.0)
                streams, is_begun = {}, False
            described = _described(media.span(begin, begin + _HEAD_BYTES))
            if described is not None:
                streams[serial], is_known = described, True
            continue
        stream = streams.get(serial)
        if stream is None:
            continue
        is_begun = True
        # A packet ends with its first segment of less than 255 bytes.
        stream.packets += count - sizes.count(255)
        if position != _NO_POSITION:
            stream.position = max(stream.position, position)
    length_s += max((stream.length_s for stream in streams.values()), default=0.0)
    if not is_known:
        return None
    if not length_s:
        raise Contradiction("the audio has no samples")
    return length_s


def _described(head: bytes) -> _Stream | None:
    """Return a stream, given its first packet."""
    if head.startswith(b"OpusHead") and len(head) >= 12:
        return _Stream(_OPUS_RATE, 5760, skipped=int.from_bytes(head[10:12], "little"))
    if head.startswith(b"\x01vorbis") and len(head) >= 29:
        rate = int.from_bytes(head[12:16], "little")
        return _Stream(rate, 1 << (head[28] >> 4)) if rate else None
    if head.startswith(b"\x7fFLAC") and len(head) >= 30:
        rate = int.from_bytes(head[27:30], "big") >> 4
        return _Stream(rate, 65_535) if rate else None
    return None
