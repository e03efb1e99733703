"""Creates over HTTP without readers of the report stream, and with fifty slow ones, in turn on one service.

Another member's reports arrive all the time, in both cases. The readers read a part of what they are sent, so that
their queues fill and they skip. CPU is that of the service's process alone, per create.

Run: python -m benchmarks readers [--readers 50] [--reports 20] [--seconds 2] [--rounds 16]
"""

from __future__ import annotations

import argparse
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from benchmarks.conditions import print_figures
from benchmarks.create import Run, Side, drive, ratios_of
from benchmarks.servers import api_keys, creates, one_service
from holdfast.ledger.values import new_id, utc_now
from holdfast.persistence.claims.reports import write_last_reports
from holdfast.telemetry.reports.report import Report

TOKEN = "the-operators-token-of-the-benchmark-0123456789"
ACCOUNTS = 200
READ_BYTES = 512
READ_EVERY_S = 0.1
REASON = "a reason as long as those of real crashes, with the words of the exception and of its cause " * 3


@contextmanager
def _in_thread(step: float, work: Callable[[], None]) -> Iterator[None]:
    """Call ``work`` every ``step`` seconds in a thread."""
    is_over = threading.Event()

    def run() -> None:
        while not is_over.wait(step):
            work()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@contextmanager
def reports_of_another_member(url: str, rate: int) -> Iterator[None]:
    """Store ``rate`` reports a second, ten times a second."""
    number = 0

    def store() -> None:
        nonlocal number
        found = []
        for _ in range(max(1, rate // 10)):
            number += 1
            found.append(
                Report(
                    kind="crash",
                    level="warning",
                    at=utc_now(),
                    path="holdfast/accounts",
                    report_id=new_id("rep"),
                    number=number,
                    member_id="proc_of_the_benchmark",
                    key=new_id("acct"),
                    reason_type="ValueError",
                    reason=REASON,
                    decision="backoff",
                    delay_s=0.2,
                )
            )
        write_last_reports(url, found)

    with _in_thread(0.1, store):
        yield


class SlowReaders:
    """Connections to the stream, each of which reads a little now and then."""

    def __init__(self, port: int, count: int) -> None:
        self.received_bytes = 0
        self._waiting = selectors.DefaultSelector()
        request = (
            f"GET /ops/api/reports/stream HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        ).encode()
        for _ in range(count):
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(("127.0.0.1", port))
            connection.sendall(request)
            assert connection.recv(READ_BYTES).startswith(b"HTTP/1.1 200 "), "the stream is refused"
            connection.setblocking(False)
            self._waiting.register(connection, selectors.EVENT_READ)

    def read(self) -> None:
        """Read a little from each that has something."""
        for key, _ in self._waiting.select(0):
            data = key.fileobj.recv(READ_BYTES)  # type: ignore[union-attr]  # sockets are registered
            assert data, "the stream was cut"
            self.received_bytes += len(data)

    def close(self) -> None:
        """Hang up."""
        for key in list(self._waiting.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]  # sockets are registered
        self._waiting.close()


def with_readers(load: Callable[[], Run], port: int, count: int) -> tuple[Run, float]:
    """Load the service beside slow readers; return the result and the bytes a second that they received."""
    readers = SlowReaders(port, count)
    try:
        with _in_thread(READ_EVERY_S, readers.read):
            begun = time.perf_counter()
            run = load()
            return run, readers.received_bytes / (time.perf_counter() - begun)
    finally:
        readers.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--readers", type=int, default=50)
    parser.add_argument("--reports", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=16)
    options = parser.parse_args()
    with (
        one_service(options, HOLDFAST_OPERATOR_TOKEN=TOKEN) as service,
        reports_of_another_member(service.settings["HOLDFAST_DATABASE_URL"], options.reports),
    ):
        side = Side("the service", service.port, service.process, creates(api_keys(service.base, ACCOUNTS)))
        load = partial(drive, side, connections=options.connections, seconds=options.seconds)
        pairs: list[tuple[Run, Run]] = []
        for number in range(options.rounds + 1):
            alone = load()
            beside, read = with_readers(load, service.port, options.readers)
            print(
                f"no readers {alone.rate:,.0f}/s, CPU {alone.cpu_us:,.0f} us | {options.readers} readers "
                f"{beside.rate:,.0f}/s, CPU {beside.cpu_us:,.0f} us, p50 {alone.p50_ms:.1f} and "
                f"{beside.p50_ms:.1f} ms, {read / 1000:,.0f} KB/s read" + (" (warm-up)" if number == 0 else ""),
                flush=True,
            )
            if number:
                pairs.append((beside, alone))
    rate, _, cpu = ratios_of(pairs)
    print(
        f"with {options.readers} slow readers of {options.reports} reports a second: {rate:.2f} x the creates, "
        f"{cpu:.2f} x the CPU of one (medians of {options.rounds} rounds)"
    )
    print_figures({"with readers, rate": rate, "with readers, CPU": cpu})


if __name__ == "__main__":
    main()
