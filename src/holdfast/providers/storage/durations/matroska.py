"""Measure WebM from the first block's time to the end of the last one, in the file's own time scale.

The elements are walked in one pass: the containers of interest are entered, everything else is skipped. The
duration in the header is ignored.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.providers.storage.durations.reading import Contradiction, MediaBytes

_SEGMENT, _CLUSTER, _BLOCK_GROUP = 0x18538067, 0x1F43B675, 0xA0
_TRACK_ENTRY = 0xAE
_ENTERED = frozenset({_SEGMENT, 0x1549A966, 0x1654AE6B, _TRACK_ENTRY, _CLUSTER, _BLOCK_GROUP})
"""Segment, Info, Tracks, TrackEntry, Cluster, BlockGroup."""
_TIME_SCALE, _CLUSTER_TIME, _BLOCK_DURATION = 0x2AD7B1, 0xE7, 0x9B
_TRACK_NUMBER, _TRACK_TYPE, _DEFAULT_DURATION = 0xD7, 0x83, 0x23E383
_SIMPLE_BLOCK, _BLOCK = 0xA3, 0xA1
_VIDEO = 1

_NS_PER_S = 1_000_000_000
_TIME_SCALE_USUAL_NS = 1_000_000


@dataclass(slots=True)
class _Track:
    """One track: times are in ticks of the file's scale, ``frame_ns`` is a frame's duration by the header."""

    number: int = 0
    kind: int = 0
    frame_ns: int = 0
    blocks: int = 0
    first: int = 0
    last: int = 0
    end: int = 0


class _Walk:
    def __init__(self) -> None:
        self.scale_ns = _TIME_SCALE_USUAL_NS
        self.cluster_time = 0
        self.described: list[_Track] = []
        self.tracks: dict[int, _Track] = {}
        self.block: tuple[_Track, int] | None = None

    def take(self, media: MediaBytes, element: int, begin: int, end: int) -> None:
        """Read an element without descending into it."""
        if element == _TIME_SCALE:
            self.scale_ns = _number(media, begin, end)
        elif element == _CLUSTER_TIME:
            self.cluster_time = _number(media, begin, end)
        elif element in {_SIMPLE_BLOCK, _BLOCK}:
            self.take_block(media, begin, end)
        elif element == _BLOCK_DURATION and self.block is not None:
            track, at = self.block
            track.end = max(track.end, at + _number(media, begin, end))
        elif self.described:
            if element == _TRACK_NUMBER:
                self.described[-1].number = _number(media, begin, end)
            elif element == _TRACK_TYPE:
                self.described[-1].kind = _number(media, begin, end)
            elif element == _DEFAULT_DURATION:
                self.described[-1].frame_ns = _number(media, begin, end)

    def take_block(self, media: MediaBytes, begin: int, end: int) -> None:
        number, offset, _ = _variable(media, begin)
        if offset + 3 > end:
            raise Contradiction("the clip has a block without a header")
        (since_cluster,) = media.read(">h", offset)
        if offset + 3 == end:
            # An empty block shows nothing.
            return
        at = self.cluster_time + since_cluster
        track = self.tracks.get(number)
        if track is None:
            named = (track for track in self.described if track.number == number)
            track = self.tracks[number] = next(named, _Track(number))
        if not track.blocks:
            track.first = track.last = track.end = at
        track.blocks += 1
        track.first, track.last = min(track.first, at), max(track.last, at)
        self.block = track, at

    def length_s(self) -> float:
        tracks = [track for track in self.tracks.values() if track.blocks]
        shown = [track for track in tracks if track.kind == _VIDEO] or tracks
        if not shown:
            raise Contradiction("the clip has nothing to play")
        if not self.scale_ns:
            raise Contradiction("the clip has no time scale")
        return max(self._length_ns(track) for track in shown) / _NS_PER_S

    def _length_ns(self, track: _Track) -> int:
        # The last block lasts for its own duration, else that of a frame, else the average of the blocks before it.
        shown_ns = (track.last - track.first) * self.scale_ns
        if track.frame_ns:
            last_ns = min(track.frame_ns, _NS_PER_S)
        else:
            last_ns = shown_ns // (track.blocks - 1) if track.blocks > 1 else 0
        return max(shown_ns + last_ns, (track.end - track.first) * self.scale_ns)


def webm_duration_s(media: MediaBytes) -> float:
    """Return the length in seconds of the video, or of the audio if there is no video."""
    walk, offset = _Walk(), 0
    while offset < media.size_bytes:
        media.step()
        element, offset = _identity(media, offset)
        if not element:
            # Other bytes follow the clip, or hide the rest of it from players too.
            break
        length, begin, is_known = _variable(media, offset)
        if is_known and begin + length > media.size_bytes:
            raise Contradiction("the content is truncated")
        if element in _ENTERED:
            if element == _TRACK_ENTRY:
                walk.described.append(_Track())
            elif element == _CLUSTER:
                walk.cluster_time = 0
            walk.block = None
            offset = begin
        elif is_known:
            walk.take(media, element, begin, begin + length)
            offset = begin + length
        else:
            raise Contradiction("the clip has an element without an end")
    return walk.length_s()


def _identity(media: MediaBytes, offset: int) -> tuple[int, int]:
    """Return an element's id, with its marker bits, and where it ends; 0 if there is none."""
    size = 9 - media.byte(offset).bit_length()
    if size > 4 or offset + size >= media.size_bytes:
        return 0, offset
    return int.from_bytes(media.span(offset, offset + size), "big"), offset + size


def _variable(media: MediaBytes, offset: int) -> tuple[int, int, bool]:
    """Return a number of variable size, where it ends, and whether it is known (all ones: unknown)."""
    first = media.byte(offset)
    size = 9 - first.bit_length()
    if size > 8 or offset + size > media.size_bytes:
        raise Contradiction("the clip has a malformed length")
    ones = (1 << 7 * size) - 1
    number = int.from_bytes(media.span(offset, offset + size), "big") & ones
    return number, offset + size, number != ones


def _number(media: MediaBytes, begin: int, end: int) -> int:
    if end - begin > 8:
        raise Contradiction("the clip has a malformed number")
    return int.from_bytes(media.span(begin, end), "big")
