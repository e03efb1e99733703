"""The account's own pages: how soon their first bytes come, how large they are, and what creates beside them feel.

An owner with tasks and a key reads each page again and again over one connection, signed in by the cookie. First
bytes are the response's head, from the request on. Bytes are those of the page, its style and its script: what a
browser loads but for pictures. Then creates of many accounts are measured alone, and beside the open overview of
each account, in turn: its stream, and the page again after events as its script asks for it, at most once a second
and ever more seldom while they follow each other. CPU is user and system time without PostgreSQL.

Run: python -m benchmarks.pages [--rounds 100] [--tasks 25] [--pages 200] [--seconds 4] [--pairs 5]
"""

from __future__ import annotations

import argparse
import re
import selectors
import socket
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection

from benchmarks import load
from benchmarks.conditions import print_figures
from benchmarks.create import Run, Side, drive, ratios_of
from benchmarks.reads import create_tasks
from benchmarks.servers import Service, cpu_s, creates, one_service, owners
from holdfast.http.kit.calls import Auth
from holdfast_console.account.sign_in import EVENTS
from holdfast_console.account.site import SITE

NO_PAGE = re.compile(rf"[{{.]|/added$|/card$|^{EVENTS}$")
"""Paths with parameters, of files, of events, and of what asks the card provider."""
PATHS = [
    view.path
    for view in SITE.views
    if view.method == "GET" and view.auth is Auth.SESSION and not NO_PAGE.search(view.path)
]
PLACES = {"HOLDFAST_CONNECTIONS_MAX": "4096", "HOLDFAST_CONNECTIONS_PER_PEER_MAX": "4096"}
TOGETHER_S = 1.0
TOGETHER_MAX_S = 16.0
TOGETHER_GROWTH = 4
"""How long the script waits with what was changed, and how that grows, as in ``static/pages.js``."""


def cookie(token: str) -> dict[str, str]:
    """Return what a signed-in browser sends."""
    return {"Cookie": f"holdfast_account={token}", "Sec-Fetch-Site": "same-origin"}


def read_pages(service: Service, token: str, task_id: str, rounds: int) -> None:
    """Measure each page, and print."""
    connection = HTTPConnection("127.0.0.1", service.port, timeout=60)

    def get(address: str) -> tuple[float, bytes]:
        """Return the milliseconds until the head of the response, and its body."""
        begun = time.perf_counter()
        connection.request("GET", address, headers=cookie(token))
        response = connection.getresponse()
        first_ms = (time.perf_counter() - begun) * 1e3
        assert response.status == 200, (address, response.status)
        return first_ms, response.read()

    links = re.findall(r'(?:href|src)="(/account/static/[^"]+\.(?:css|js))"', get("/account")[1].decode())
    shared = sum(len(get(each)[1]) for each in links)
    medians, sizes, cpu_ms = [], [], []
    addresses = [*PATHS, "/account/playground?model=gpu/image-1", f"/account/tasks/{task_id}"]
    for address in addresses:
        get(address)
        before = cpu_s(service.process)
        found = [get(address) for _ in range(rounds)]
        cpu_ms.append((cpu_s(service.process) - before) / rounds * 1e3)
        times = sorted(first_ms for first_ms, _ in found)
        medians.append(statistics.median(times))
        sizes.append((len(found[-1][1]) + shared) / 1000)
        p99 = times[int(len(times) * 0.99)]
        print(
            f"{address}: {medians[-1]:.1f} ms, p99 {p99:.1f} ms, CPU {cpu_ms[-1]:.1f} ms, {sizes[-1]:.1f} KB",
            flush=True,
        )
    print(f"of {len(addresses)} pages the slowest has its first bytes after {max(medians):.1f} ms at the median")
    slowest = {"slowest, median ms": max(medians), "largest, KB": max(sizes), "dearest, CPU ms": max(cpu_ms)}
    print_figures({"median ms": statistics.median(medians), **slowest})


class OverviewPage:
    """A browser's open overview."""

    def __init__(self, port: int, token: str) -> None:
        self.stream = socket.create_connection(("127.0.0.1", port))
        self.stream.sendall(load.get(EVENTS, {**cookie(token), "Accept": "text/event-stream"}))
        self.page = load.Connection(("127.0.0.1", port))
        self.shown = 0
        self._request = load.get("/account", {**cookie(token), "X-Refresh": "1"})
        self._due_at = float("inf")
        self._pause_s = TOGETHER_S
        self._changed_at = 0.0

    def receive(self, connection: socket.socket) -> None:
        """Read what has come over either connection."""
        if connection is self.stream:
            events = connection.recv(1 << 20)
            assert events, "the stream was cut"
            if b"event:" in events:
                self._note_change(time.monotonic())
            return
        found = self.page.receive()
        if found is not None:
            assert found[0] == 200, f"the page is refused with {found[0]}"
            self.shown += 1

    def _note_change(self, now: float) -> None:
        if now - self._changed_at > 2 * TOGETHER_S:
            self._pause_s = TOGETHER_S
        self._changed_at = now
        if self._due_at == float("inf"):
            self._due_at = now + self._pause_s
            self._pause_s = min(self._pause_s * TOGETHER_GROWTH, TOGETHER_MAX_S)

    def refresh(self, now: float) -> None:
        """Ask for the page if that is due."""
        if now >= self._due_at:
            self._due_at = float("inf")
            self.page.send(self._request)


@contextmanager
def opened(port: int, tokens: Sequence[str]) -> Iterator[list[OverviewPage]]:
    """Keep the overview of each owner open until the end of the context."""
    pages, ended = [OverviewPage(port, each) for each in tokens], threading.Event()
    waiting = selectors.DefaultSelector()
    for page in pages:
        for connection in (page.stream, page.page.socket):
            waiting.register(connection, selectors.EVENT_READ, page)

    def run() -> None:
        while not ended.is_set():
            for key, _ in waiting.select(0.05):
                key.data.receive(key.fileobj)
            now = time.monotonic()
            for page in pages:
                page.refresh(now)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield pages
    finally:
        ended.set()
        thread.join()
        for key in list(waiting.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]  # sockets are registered
        waiting.close()


def create_beside(side: Side, tokens: Sequence[str], *, pairs: int, seconds: float) -> None:
    """Measure creates alone and beside open pages, and print."""
    found: list[tuple[Run, Run]] = []
    for number in range(pairs + 1):
        alone = drive(side, connections=32, seconds=seconds)
        with opened(side.port, tokens) as pages:
            time.sleep(3.0)
            drive(side, connections=32, seconds=seconds)  # until the pages have seen that changes follow each other
            before = sum(each.shown for each in pages)
            beside = drive(side, connections=32, seconds=seconds)
            shown = sum(each.shown for each in pages) - before
        runs = [f"{run.rate:,.0f}/s, p99 {run.p99_ms:.1f} ms, CPU {run.cpu_us:,.0f} us" for run in (alone, beside)]
        print(f"alone {runs[0]} | beside {len(tokens)} open pages {runs[1]}, {shown / seconds:,.1f} shown a second")
        if number:
            found.append((beside, alone))
    ratios = ratios_of(found)
    print(
        f"creates beside {len(tokens)} open pages: {ratios.rate:.2f} x the rate, {ratios.p99:.2f} x the p99, "
        f"{ratios.cpu:.2f} x the CPU"
    )
    print_figures(ratios.figures("open pages"))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--tasks", type=int, default=25)
    parser.add_argument("--pages", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    with one_service(options, **PLACES) as service:
        found = owners(service.base, max(options.pages, 1))
        keys, tokens = [key for key, _ in found], [token for _, token in found]
        tasks = create_tasks(service.port, keys[:1], options.tasks)
        read_pages(service, tokens[0], tasks[0][1], options.rounds)
        if options.pages:
            side = Side("the service", service.port, service.process, creates(keys))
            create_beside(side, tokens, pairs=options.pairs, seconds=options.seconds)


if __name__ == "__main__":
    main()
