"""A customer's webhook receiver, whose responses a test configures."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.clients import until
from tests.threaded_server import serving


@dataclass(frozen=True)
class Post:
    """One delivery; header names are in lower case."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def event_id(self) -> str:
        """The event's id, the same at every delivery."""
        return self.headers["webhook-id"]

    @property
    def event(self) -> dict[str, Any]:
        """The event's body."""
        event: dict[str, Any] = json.loads(self.body)
        return event


@dataclass
class Receiver:
    """Its address, the deliveries it received, and its responses: by path, one per delivery, then 200."""

    url: str
    posts: list[Post] = field(default_factory=list)
    answers: defaultdict[str, list[tuple[int, dict[str, str]]]] = field(default_factory=lambda: defaultdict(list))
    mute: set[str] = field(default_factory=set)
    released: threading.Event = field(default_factory=threading.Event)

    def will_answer(self, path: str, *statuses: int, **headers: str) -> str:
        """Set the responses to the next deliveries to ``path``, and return its ``webhook_url``."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.answers[path] += [(status, named) for status in statuses]
        return self.url + path

    def at(self, path: str, kind: str | None = None) -> list[Post]:
        """Return the deliveries to a path, of one kind of event or of all."""
        return [post for post in self.posts if post.path == path and (kind is None or post.event["type"] == kind)]

    async def wait(self, path: str, number: int, kind: str | None = None, *, within_s: float = 60) -> list[Post]:
        """Wait for ``number`` deliveries to a path, and return them."""

        async def enough() -> list[Post] | None:
            found = self.at(path, kind)
            return found if len(found) >= number else None

        return await until(enough, within_s=within_s)


@contextmanager
def receiver() -> Iterator[Receiver]:
    """Run the receiver on loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            found.posts.append(Post(self.path, headers, body))
            if self.path in found.mute:
                found.released.wait(60)
                return
            waiting = found.answers[self.path]
            status, more = waiting.pop(0) if waiting else (200, {})
            self.send_response(status)
            for name, value in more.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as url:
        found = Receiver(url)
        try:
            yield found
        finally:
            found.released.set()
