"""Measure MP4 by the samples in its tables, whole or in fragments, checked against the bytes in the file.

The durations in the headers of movie and track are ignored. A track is as long as its samples, or as its edit list
if that is shorter.
"""

from __future__ import annotations

import array
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.providers.storage.durations.reading import Contradiction, MediaBytes

_BLOCK_BYTES = 64 * 1024
_BYTES_PER_STEP = 32
_CUT_SHORT = "the content is truncated"

# The flags of "tfhd" and "trun" (ISO/IEC 14496-12) that say which fields follow, in this order.
_BASE_DATA_OFFSET, _SAMPLE_DESCRIPTION, _DEFAULT_DURATION, _DEFAULT_SIZE = 0x1, 0x2, 0x8, 0x10
_DATA_OFFSET, _FIRST_SAMPLE_FLAGS = 0x1, 0x4
_SAMPLE_DURATION, _SAMPLE_SIZE, _SAMPLE_FLAGS, _COMPOSITION_OFFSET = 0x100, 0x200, 0x400, 0x800
_SAMPLE_FIELDS = (_SAMPLE_DURATION, _SAMPLE_SIZE, _SAMPLE_FLAGS, _COMPOSITION_OFFSET)

Box = tuple[bytes, int, int]
"""A box's name, where its content begins, and where it ends."""


@dataclass(slots=True)
class _Track:
    number: int = 0
    kind: bytes = b""
    timescale: int = 0
    """Ticks a second."""
    ticks: int = 0
    shown: int = 0
    """The edit list's length in ticks of the movie; 0 without one."""
    sample_bytes: int = 0
    default_ticks: int = 0
    default_bytes: int = 0


class _Movie:
    def __init__(self, media: MediaBytes) -> None:
        self.media = media
        self.timescale = 0
        self.tracks: list[_Track] = []

    def read(self) -> float:
        """Return the length in seconds."""
        for name, begin, end in self.boxes(0, self.media.size_bytes):
            if name == b"moov":
                self.read_movie(begin, end)
            elif name == b"moof":
                self.read_fragment(begin, end)
        if sum(track.sample_bytes for track in self.tracks) > self.media.size_bytes:
            raise Contradiction("the clip's tables list more data than it has")
        lengths = {kind: [self.length_s(track) for track in self.tracks if track.kind == kind and track.ticks]
                   for kind in (b"vide", b"soun")}  # fmt: skip
        shown = lengths[b"vide"] or lengths[b"soun"]
        if not shown:
            raise Contradiction("the clip has nothing to play")
        return max(shown)

    def length_s(self, track: _Track) -> float:
        if not track.timescale:
            raise Contradiction("the clip has no time scale")
        length_s = track.ticks / track.timescale
        return min(length_s, track.shown / self.timescale) if track.shown and self.timescale else length_s

    def boxes(self, offset: int, end: int) -> Iterator[Box]:
        """Yield the boxes between two offsets; trailing bytes too few for a box are ignored."""
        while offset + 8 <= end:
            self.media.step()
            length, name = self.media.read(">I4s", offset)
            begin = offset + 8
            if length == 1:
                (length,) = self.media.read(">Q", begin)
                begin += 8
            upto = end if length == 0 else offset + length
            if upto < begin:
                raise Contradiction("the clip has a box without a length")
            if upto > end:
                raise Contradiction(_CUT_SHORT)
            yield name, begin, upto
            offset = upto

    def read_movie(self, begin: int, end: int) -> None:
        defaults = []
        for name, start, stop in self.boxes(begin, end):
            if name == b"mvhd":
                self.timescale = self.timescale_of(start)
            elif name == b"trak":
                self.tracks.append(self.read_track(start, stop))
            elif name == b"mvex":
                defaults += [box for box in self.boxes(start, stop) if box[0] == b"trex"]
        for _, start, _ in defaults:
            number, _, ticks, size = self.media.read(">IIII", start + 4)
            for track in self.tracks:
                if track.number == number:
                    track.default_ticks, track.default_bytes = ticks, size

    def timescale_of(self, start: int) -> int:
        """Return the time scale in a header, after creation times of four or eight bytes."""
        (timescale,) = self.media.read(">I", start + (20 if self.media.byte(start) else 12))
        return int(timescale)

    def read_track(self, begin: int, end: int) -> _Track:
        track, tables = _Track(), dict[bytes, tuple[int, int]]()
        waiting = [(begin, end)]
        while waiting:
            for name, start, stop in self.boxes(*waiting.pop()):
                if name in {b"mdia", b"minf", b"stbl", b"edts"}:
                    waiting.append((start, stop))
                elif name == b"tkhd":
                    (track.number,) = self.media.read(">I", start + (20 if self.media.byte(start) else 12))
                elif name == b"mdhd":
                    track.timescale = self.timescale_of(start)
                elif name == b"hdlr":
                    # The first one is the media's; QuickTime adds one of the data.
                    track.kind = track.kind or self.media.span(start + 8, start + 12)
                elif name == b"elst":
                    track.shown = self.shown_ticks(start, stop)
                elif name in {b"stts", b"stsz", b"stz2"}:
                    tables[name] = start, stop
        self.read_samples(track, tables)
        return track

    def shown_ticks(self, start: int, stop: int) -> int:
        """Return the length of an edit list; entries at -1 are pauses, in which nothing is shown."""
        form = ">Qq4x" if self.media.byte(start) else ">Ii4x"
        entries = self.entries(form, start + 8, stop, self.count_at(start + 4))
        return sum(length for length, at in entries if at != -1)

    def read_samples(self, track: _Track, tables: dict[bytes, tuple[int, int]]) -> None:
        """Read a track's samples: no more of them than have a size."""
        if b"stts" not in tables:
            return
        left = 0
        if b"stsz" in tables:
            start, stop = tables[b"stsz"]
            size, left = self.media.read(">II", start + 4)
            track.sample_bytes = size * left if size else self.sum_sizes(start + 12, stop, left)
        elif b"stz2" in tables:
            (left,) = self.media.read(">I", tables[b"stz2"][0] + 8)
        start, stop = tables[b"stts"]
        for count, ticks in self.entries(">II", start + 8, stop, self.count_at(start + 4)):
            track.ticks += min(count, left) * ticks
            left -= min(count, left)

    def sum_sizes(self, start: int, stop: int, count: int) -> int:
        """Return the sum of a table's sizes: four bytes each."""
        if start + 4 * count > stop:
            raise Contradiction(_CUT_SHORT)
        total = 0
        for offset in range(start, start + 4 * count, _BLOCK_BYTES):
            upto = min(offset + _BLOCK_BYTES, start + 4 * count)
            self.media.step(1 + (upto - offset) // _BYTES_PER_STEP)
            sizes = array.array("I", self.media.span(offset, upto))
            if sys.byteorder == "little":
                sizes.byteswap()
            total += sum(sizes)
        return total

    def count_at(self, offset: int) -> int:
        (count,) = self.media.read(">I", offset)
        return int(count)

    def entries(self, form: str, start: int, stop: int, count: int) -> Iterator[tuple[int, ...]]:
        """Yield the entries of a table, read a block at a time."""
        size = struct.calcsize(form)
        end = start + size * count
        if end > stop:
            raise Contradiction(_CUT_SHORT)
        block = _BLOCK_BYTES // size * size
        for offset in range(start, end, block):
            upto = min(offset + block, end)
            self.media.step(1 + (upto - offset) // _BYTES_PER_STEP)
            yield from struct.iter_unpack(form, self.media.span(offset, upto))

    def read_fragment(self, begin: int, end: int) -> None:
        for name, start, stop in self.boxes(begin, end):
            if name != b"traf":
                continue
            track, ticks, size = None, 0, 0
            for inner, first, last in self.boxes(start, stop):
                if inner == b"tfhd":
                    track, ticks, size = self.fragment_head(first)
                elif inner == b"trun" and track is not None:
                    self.read_run(track, first, last, ticks, size)

    def fragment_head(self, first: int) -> tuple[_Track | None, int, int]:
        """Return a fragment's track, and the duration in ticks and the size in bytes of samples that state none."""
        flags, number = self.media.read(">II", first)
        track = next((track for track in self.tracks if track.number == number), None)
        ticks, size = (0, 0) if track is None else (track.default_ticks, track.default_bytes)
        offset = first + 8 + (8 if flags & _BASE_DATA_OFFSET else 0) + (4 if flags & _SAMPLE_DESCRIPTION else 0)
        if flags & _DEFAULT_DURATION:
            (ticks,) = self.media.read(">I", offset)
            offset += 4
        if flags & _DEFAULT_SIZE:
            (size,) = self.media.read(">I", offset)
        return track, ticks, size

    def read_run(self, track: _Track, first: int, last: int, ticks: int, size: int) -> None:
        flags, count = self.media.read(">II", first)
        start = first + 8 + (4 if flags & _DATA_OFFSET else 0) + (4 if flags & _FIRST_SAMPLE_FLAGS else 0)
        fields = [field for field in _SAMPLE_FIELDS if flags & field]
        has_ticks, has_size = _SAMPLE_DURATION in fields, _SAMPLE_SIZE in fields
        if not has_ticks:
            track.ticks += count * ticks
        if not has_size:
            track.sample_bytes += count * size
        if has_ticks or has_size:
            size_at = fields.index(_SAMPLE_SIZE) if has_size else 0
            for values in self.entries(">" + "I" * len(fields), start, last, count):
                if has_ticks:
                    track.ticks += values[0]
                if has_size:
                    track.sample_bytes += values[size_at]


def mp4_duration_s(media: MediaBytes) -> float:
    """Return the length in seconds of the video, or of the audio if there is no video."""
    return _Movie(media).read()
