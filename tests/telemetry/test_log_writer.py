"""The thread that writes lines: no part waits for a reader that does not read."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

import pytest

from holdfast.telemetry.logs.lines import CHARS_MAX, LineWriter

READ_BYTES = 1 << 20


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe's two ends, to read and to write."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def writer_to(fd: int, ticks: list[None] | None = None) -> LineWriter:
    return LineWriter(
        fd, tick=lambda: None if ticks is None else ticks.append(None), tell_lost=lambda lost: f"lost {lost}"
    )


def test_lines_are_written_in_order(pipe: tuple[int, int]) -> None:
    ticks: list[None] = []
    writer = writer_to(pipe[1], ticks)
    for number in range(100):
        writer.write(f"line {number}")
    assert writer.flush(10)
    assert os.read(pipe[0], READ_BYTES).decode().splitlines() == [f"line {number}" for number in range(100)]
    writer.write("last")
    writer.stop(10)
    assert os.read(pipe[0], READ_BYTES) == b"last\n"
    assert ticks


def test_an_unread_pipe_blocks_no_writer_and_its_loss_is_shown(pipe: tuple[int, int]) -> None:
    writer = writer_to(pipe[1])
    line = "x" * 1023
    count = 2 * CHARS_MAX // len(line)
    for _ in range(count):
        writer.write(line)
    assert not writer.flush(0.05)
    received, written = b"", 0
    losses: list[int] = []
    # More than one line of losses, if the thread began to write before the last line came.
    while written + sum(losses) < count:
        received += os.read(pipe[0], READ_BYTES)
        *lines, _ = received.decode().split("\n")
        losses = [int(each.removeprefix("lost ")) for each in lines if each != line]
        written = lines.count(line)
    assert written + sum(losses) == count
    assert losses
    assert writer.flush(10)
    writer.stop(10)


@pytest.mark.parametrize("taken", [0, 3, 5, 8])
def test_what_a_full_disk_does_not_take_is_counted_when_it_has_room(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    write, room = os.write, [taken]

    def write_within_room(fd: int, data: bytes) -> int:
        if not room:
            return write(fd, data)
        if not room[0]:
            raise OSError(errno.ENOSPC, "no space left on device")
        written = write(fd, data[: room[0]])
        room[0] -= written
        return written

    monkeypatch.setattr(os, "write", write_within_room)
    writer = writer_to(pipe[1])
    for line in ("1111", "2222", "3333"):
        writer.write(line)
        assert writer.flush(60)
    room.clear()
    writer.write("4444")
    assert writer.flush(60)
    writer.stop(60)
    received = os.read(pipe[0], READ_BYTES).decode()
    before, lost = {0: ("", 3), 3: ("111\n", 3), 5: ("1111\n", 2), 8: ("1111\n222\n", 2)}[taken]
    assert received == f"{before}4444\nlost {lost}\n"


def test_a_reader_that_is_gone_costs_the_lines_alone() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    writer = writer_to(writing)
    writer.write("unread")
    assert writer.flush(10)
    writer.stop(10)
    os.close(writing)
