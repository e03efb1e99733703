"""The thread that writes lines: no part waits for a reader that does not read."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from holdfast.telemetry.logs.writer import CHARS_MAX, LineWriter

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
    received = b""
    while b"lost" not in received:
        received += os.read(pipe[0], READ_BYTES)
    *lines, shown = received.decode().splitlines()
    assert shown == f"lost {count - len(lines)}"
    assert set(lines) == {line}
    assert writer.flush(10)
    writer.stop(10)


def test_a_reader_that_is_gone_costs_the_lines_alone() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    writer = writer_to(writing)
    writer.write("unread")
    assert writer.flush(10)
    writer.stop(10)
    os.close(writing)
