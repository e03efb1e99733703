"""Follow one thing: all that is known of a request, task, order, account or process, by any id of it, in one list.

Rows, reports and actions are read from the database, log lines from the memory of all processes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, Literal

import msgspec
from sqlalchemy import Connection

from holdfast.http.endpoints.operators.accounts import TRACE_OR_REQUEST_ID
from holdfast.http.endpoints.operators.processes import Answers, ask_all
from holdfast.http.kit.actions import OperatorRoutes
from holdfast.http.kit.calls import Call
from holdfast.http.kit.credentials import API_KEY_START, KEY_PREFIX_CHARS
from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.kit.listing import FROM, TO, Window, filter_by, read_window
from holdfast.http.kit.routes import Outcome
from holdfast.http.kit.values import invalid_parameter
from holdfast.ledger.public_types import AccountId, Amount, MemberId, Time
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import format_amount, format_time, is_id
from holdfast.persistence.queries.belonging import Belonging, what_belongs_to
from holdfast.persistence.queries.reports import reports_page
from holdfast.persistence.queries.time_lines import (
    Source,
    TimeLineEntry,
    time_line_of_account,
    time_line_of_task,
)
from holdfast.persistence.records.unreadable import UnreadableEntry
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.supervision.control.messages import LineList, ListLines
from holdfast.telemetry.reports.report import REPORT_KINDS, Report, ReportFilter, in_words

route = OperatorRoutes("Time lines")

SOUGHT_CHARS_MIN: Final = 4
ENTRIES_MAX: Final = 300
"""How many entries an answer has, and how many lines a process lists."""
TEXTS_MAX: Final = 20
"""How many ids lines are searched for."""
AROUND: Final = timedelta(hours=1)
"""How long before and after a task or order the rest of its account is shown."""
BELONGING_VALID: Final = timedelta(seconds=10)
BELONGINGS_MAX: Final = 100
_FIRST: Final = ("key", "task_id", "order_id", "account_id", "path", "caller")
_APART: Final = frozenset({"time", "level", "event"})

_ID: Final = replace(
    filter_by(
        "id",
        "Any id of it: an `X-Request-Id` or trace; a task, order, account, operation, hold, event, webhook, file, "
        "API key or its first characters, receipt, review, report, action or process; a provider's job; a payment, "
        "charge, refund, dispute or event of the card company; or an e-mail address in full.",
    ),
    required=True,
)


class FollowedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What happened at one time."""

    at: Time
    """When it happened."""
    id: str
    """Tells entries of the same time apart, and is the same in a later answer."""
    source: Source | Literal["line", "cut"]
    """What kind of entry it is: of a time line; a log `line`; or `cut`: the lines of a process begin there."""
    is_own: bool
    """Whether it has one of the ids that belong to what is followed; if not, it is only of the same account."""
    what: str
    """What happened, in a word or two; the event of a line."""
    subject: str | None
    """What it happened to, such as a task's or an order's id; null if a line names nothing."""
    text: str | None
    """More about it; null without any."""
    amount: Amount | None = None
    """The operation's amount; null if it is no operation."""
    balance: Amount | None = None
    """The balance after the operation; null if it is no operation."""
    level: str | None = None
    """The level of a line; null if it is none."""
    member_id: MemberId | None = None
    """The process whose line it is; null if it is none."""


class Followed(msgspec.Struct, frozen=True, kw_only=True):
    """What belongs together, and all that happened to it."""

    sought: str
    """The id as it is looked for: of an API key its first characters."""
    account_id: AccountId | None
    """The account that it is of; null if that is not known."""
    email: str | None
    """The account's e-mail address; null if that is not known."""
    own: list[str]
    """The ids that belong together, such as a task's with its request's, its hold's and its job's."""
    data: list[FollowedEntry]
    """What happened, newest first: own entries, and of the same account those nearest to them."""
    is_cut: bool
    """Whether there are more entries in this time: `from` and `to` show others."""
    from_memory: bool
    """Whether the database is away: there are only log lines then."""
    unreachable: list[str]
    """The members that did not answer: their lines are missing."""


@dataclass
class _Belongings:
    """What belonged to ids that were followed just now, since they are asked for again and again."""

    found: dict[str, tuple[datetime, Belonging]] = field(default_factory=dict)

    async def find(self, deps: Dependencies, sought: str) -> Belonging:
        """Raises :class:`DatabaseAway`."""
        at, known = self.found.get(sought, (None, None))
        now = deps.now()
        if known is not None and at is not None and at <= now < at + BELONGING_VALID:
            return known
        trace = TRACE_OR_REQUEST_ID.fullmatch(sought)
        digits = trace[1] if trace else None
        prefix = sought if sought.startswith(API_KEY_START) else None
        belonging = await deps.database.read(
            lambda rows: what_belongs_to(rows, sought, digits=digits, key_prefix=prefix)
        )
        self.found.pop(sought, None)
        self.found[sought] = now, belonging
        if len(self.found) > BELONGINGS_MAX:
            del self.found[next(iter(self.found))]
        return belonging


@route.read(
    "/ops/api/follow",
    "Follow one thing: rows, reports, actions and log lines of all processes, in the order of their times",
    Followed,
    parameters=(_ID, FROM, TO),
    errors=("missing_parameter",),
)
async def follow(call: Call) -> Outcome:
    """Ask again with `from` a few seconds before the newest entry to go on; entries keep their ids.

    Without `from` and `to` the account of a task or order is shown from an hour before to an hour after it.
    """
    window = read_window(call)
    if isinstance(window, Refusal):
        return window
    sought, deps = window.filters["id"].strip(), call.deps
    if len(sought) < SOUGHT_CHARS_MIN:
        return invalid_parameter("id", f"must have at least {SOUGHT_CHARS_MIN} characters", sought)
    if sought.startswith(API_KEY_START):
        if len(sought) < KEY_PREFIX_CHARS:
            return invalid_parameter("id", f"must have at least {KEY_PREFIX_CHARS} characters of a key", sought)
        sought = sought[:KEY_PREFIX_CHARS]
    belonging, is_away = Belonging([sought.removeprefix("req_")]), False
    try:
        belonging = await deps.state(_Belongings).find(deps, sought)
    except DatabaseAway:
        is_away = True
    answers = await _ask(deps, belonging, window)
    if belonging.account_id is None and not is_away:
        belonging = await _with_account_of_lines(deps, belonging, answers)
        if belonging.account_id is not None:
            answers = await _ask(deps, belonging, window)
    entries: list[FollowedEntry] = []
    try:
        entries = await deps.database.read(lambda rows: _of_rows(rows, belonging, window))
    except DatabaseAway:
        is_away = True
    reported = {(each.what, (each.text or "")[:100]) for each in entries if each.source == "report"}
    entries += [
        each for each in _of_lines(answers, belonging) if (each.what, (each.text or "")[:100]) not in reported
    ]
    entries = [*{each.id: each for each in entries}.values()]
    shown = _nearest(entries)
    return Followed(
        sought=sought,
        account_id=belonging.account_id,
        email=belonging.email,
        own=[*belonging.own],
        data=_newest_first([*shown, *_cuts(answers)]),
        is_cut=len(shown) < len(entries) or any(each.is_cut for each in answers.by_member.values()),
        from_memory=is_away,
        unreachable=answers.unreachable,
    )


def _is_account(belonging: Belonging) -> bool:
    """Whether an account as a whole is followed."""
    return belonging.own[0].startswith(("acct_", API_KEY_START)) or "@" in belonging.own[0]


def _times(belonging: Belonging, window: Window) -> tuple[datetime | None, datetime | None]:
    """Return from when and until when the account's entries are shown."""
    begun, changed = belonging.begun_at, belonging.changed_at
    if window.since is not None or window.until is not None or begun is None or changed is None:
        return window.since, window.until
    return begun - AROUND, changed + AROUND


async def _ask(deps: Dependencies, belonging: Belonging, window: Window) -> Answers[LineList]:
    texts = [*([belonging.account_id] if belonging.account_id else []), *belonging.own]
    texts = [each for each in texts if len(each) >= SOUGHT_CHARS_MIN and "@" not in each][:TEXTS_MAX]
    since, until = _times(belonging, window)
    return await ask_all(
        deps,
        ListLines(
            texts,
            "" if since is None else format_time(since),
            "9" if until is None else format_time(until),
            ENTRIES_MAX,
        ),
    )


async def _with_account_of_lines(deps: Dependencies, belonging: Belonging, answers: Answers[LineList]) -> Belonging:
    """Return it with the account that its lines name, as of a request that was refused and left no rows."""
    lines = [_fields_of(line) for answer in answers.by_member.values() for line in answer.lines]
    names = [each.get(name, "") for each in lines for name in ("account_id", "caller", "key")]
    account_id = next((each for each in names if each.startswith("acct_") and is_id(each)), None)
    named = account_id or next((each["key_prefix"] for each in lines if each.get("key_prefix")), None)
    if named is None:
        return belonging
    account = await deps.state(_Belongings).find(deps, named)
    return belonging._replace(account_id=account.account_id, email=account.email)


def _of_rows(rows: Connection, belonging: Belonging, window: Window) -> list[FollowedEntry]:
    since, until = _times(belonging, window)
    own, account_id = set(belonging.own), belonging.account_id
    entries: list[TimeLineEntry] = []
    of_own: set[str] = set()
    for subject in belonging.subjects:
        if subject.startswith("task_"):
            entries += time_line_of_task(rows, subject) or ()
    of_own |= {each.id for each in entries}
    if account_id is not None:
        page = time_line_of_account(rows, account_id, limit=ENTRIES_MAX, since=since, until=until)
        entries += page or ()
    for wanted in _reports_of(belonging):
        reports = reports_page(rows, wanted, limit=ENTRIES_MAX, since=since, until=until)
        found = [each for each in reports if not isinstance(each, UnreadableEntry)]
        entries += map(_entry_of_report, found)
        of_own |= {each.report_id or "" for each in found}
    return [
        FollowedEntry(
            at=format_time(each.at),
            id=f"{each.source}-{each.id}",
            source=each.source,
            is_own=_is_account(belonging) or each.id in of_own or each.id in own or each.subject in own,
            what=each.what,
            subject=each.subject,
            text=each.text,
            amount=None if each.amount_micro is None else format_amount(each.amount_micro),
            balance=None if each.balance_micro is None else format_amount(each.balance_micro),
        )
        for each in entries
        if (window.since is None or each.at >= window.since) and (window.until is None or each.at < window.until)
    ]


def _reports_of(belonging: Belonging) -> Iterable[ReportFilter]:
    """Yield what selects the reports on what is followed that its account's time line may lack."""
    sought = belonging.own[0]
    if TRACE_OR_REQUEST_ID.fullmatch(sought):
        yield ReportFilter(trace_id=sought)
    elif sought.startswith("proc_"):
        yield ReportFilter(member_id=sought)
    elif "/" in sought:
        yield ReportFilter(path=sought)
    elif belonging.account_id is None and "@" not in sought:
        yield ReportFilter(key=sought)


def _entry_of_report(report: Report) -> TimeLineEntry:
    return TimeLineEntry(report.at, report.report_id or "", "report", report.kind, report.path, in_words(report))


def _fields_of(line: str) -> dict[str, str]:
    """Return the fields of a line as texts."""
    fields: dict[str, object] = msgspec.json.decode(line)
    return {
        name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for name, value in fields.items()
    }


def _of_lines(answers: Answers[LineList], belonging: Belonging) -> Iterable[FollowedEntry]:
    is_account = _is_account(belonging)
    for member_id, answer in answers.by_member.items():
        for line in answer.lines:
            fields = _fields_of(line)
            subject = next((fields[name] for name in _FIRST if name in fields), None)
            is_report = fields["event"] in REPORT_KINDS and "path" in fields and "text" in fields
            others = " ".join(f"{name}={value}" for name, value in fields.items() if name not in _APART)
            yield FollowedEntry(
                at=fields["time"],
                id=f"line-{member_id}-{zlib.crc32(line.encode()):08x}",
                source="line",
                is_own=is_account or member_id in belonging.own or any(each in line for each in belonging.own),
                what=fields["event"],
                subject=subject,
                text=(fields["text"] if is_report else others) or None,
                level=fields.get("level"),
                member_id=member_id,
            )


def _nearest(entries: Iterable[FollowedEntry]) -> list[FollowedEntry]:
    """Return the entries, newest first; of too many the own ones, and those nearest to one of them in time."""
    newest = _newest_first(entries)
    if len(newest) <= ENTRIES_MAX:
        return newest
    own = [number for number, each in enumerate(newest) if each.is_own] or [0]
    first, last = own[0], own[-1]
    by_distance = sorted(
        range(len(newest)),
        key=lambda number: (not newest[number].is_own, max(first - number, number - last, 0), number),
    )
    return [newest[number] for number in sorted(by_distance[:ENTRIES_MAX])]


def _newest_first(entries: Iterable[FollowedEntry]) -> list[FollowedEntry]:
    return sorted(entries, key=lambda each: (each.at, each.id), reverse=True)


def _cuts(answers: Answers[LineList]) -> list[FollowedEntry]:
    return [
        FollowedEntry(
            at=answer.complete_from,
            id=f"cut-{member_id}",
            source="cut",
            is_own=False,
            what="older lines are missing",
            subject=member_id,
            text="This process has no older log lines in memory, or leaves them out.",
            member_id=member_id,
        )
        for member_id, answer in answers.by_member.items()
        if answer.is_cut
    ]
