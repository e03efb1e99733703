"""``holdfast follow``: prints all that happened to one thing, oldest first, and goes on with what is new."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Final, TextIO

import msgspec
import typer

from holdfast.commands.common import fail, until_interrupted
from holdfast.commands.reports import beginning_of
from holdfast.commands.service_calls import ServiceFault, call_service
from holdfast.http.endpoints.operators.following import ENTRIES_MAX, Followed, FollowedEntry
from holdfast.ledger.values import format_time
from holdfast.settings.settings import ServiceLocation, environment, load_service_location
from holdfast.start.exit_codes import GAVE_UP
from holdfast.telemetry.logs.lines import printable

POLL_S: Final = 1.0
RETRY_S: Final = 2.0
TIMEOUT_S: Final = 30.0
OVERLAP: Final = timedelta(seconds=15)
"""How far back each answer goes: rows have the time of their decision, and come a little later."""
SEEN_MAX: Final = 20 * ENTRIES_MAX


def line_of(entry: FollowedEntry) -> str:
    """Return an entry as a line for people; an asterisk marks those that have an id of what is followed."""
    amount = None if entry.amount is None else f"{entry.amount} credits, balance {entry.balance}"
    where = " ".join(part for part in (entry.subject, entry.member_id) if part)
    said = ": ".join(part for part in (where, amount, entry.text) if part)
    return printable(f"{entry.at} {'*' if entry.is_own else ' '} {entry.source:13} {entry.what}  {said}")


@dataclass
class Follower:
    """Prints to ``out`` what happened to ``sought``. ``warn`` prints a line beside it."""

    location: ServiceLocation
    url: str | None
    sought: str
    out: TextIO
    warn: Callable[[str], None]
    as_json: bool = False
    sleep: Callable[[float], None] = time.sleep
    _newest: datetime | None = None
    _seen: dict[str, None] = field(default_factory=dict)

    def print_known(self, since: datetime | None) -> None:
        """Print what is known. Raises :class:`~holdfast.commands.service_calls.ServiceFault`."""
        found = self._ask(since)
        if not self.as_json:
            account = f"{found.account_id} ({found.email})" if found.account_id else "not known"
            self.warn(f"account {account}; belongs together: {', '.join(found.own)}")
        if found.unreachable:
            self.warn(f"Without the lines of processes that did not answer: {', '.join(found.unreachable)}")
        if found.from_memory:
            self.warn("The database is away: there are only log lines.")
        if found.is_cut:
            self.warn("There is more in this time than is shown.")
        self._print(found.data)

    def follow(self) -> None:
        """Print what is new, until interrupted. While the service does not answer, wait, and say so once."""
        is_away = False
        while True:
            self.sleep(RETRY_S if is_away else POLL_S)
            try:
                found = self._ask(self._newest and self._newest - OVERLAP)
            except ServiceFault as fault:
                if not is_away:
                    self.warn(str(fault))
                is_away = True
                continue
            is_away = False
            self._print(found.data)

    def _ask(self, since: datetime | None) -> Followed:
        query = {"id": self.sought} | ({} if since is None else {"from": format_time(since)})
        return call_service(
            self.location, "/ops/api/follow", Followed, url=self.url, timeout_s=TIMEOUT_S, query=query
        )

    def _print(self, newest_first: Iterable[FollowedEntry]) -> None:
        for entry in reversed([*newest_first]):
            if entry.id in self._seen:
                continue
            self._seen[entry.id] = None
            at = datetime.fromisoformat(entry.at)
            self._newest = at if self._newest is None else max(at, self._newest)
            line = printable(msgspec.json.encode(entry).decode()) if self.as_json else line_of(entry)
            self.out.write(line + "\n")
        while len(self._seen) > SEEN_MAX:
            del self._seen[next(iter(self._seen))]
        self.out.flush()


def print_followed(sought: str, since: str | None, *, live: bool, as_json: bool, url: str | None) -> None:
    """Do what the command says. Exits with its code."""
    begin = beginning_of(since)
    location = load_service_location(environment())
    follower = Follower(location, url, sought, sys.stdout, warn=partial(typer.echo, err=True), as_json=as_json)
    try:
        follower.print_known(begin)
    except ServiceFault as fault:
        fail(str(fault), GAVE_UP)
    if live:
        with until_interrupted():
            follower.follow()
