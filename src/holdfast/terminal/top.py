"""``holdfast top``: the processes, their rates and the tree, as they are now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, TypeAlias
from urllib.parse import quote

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from holdfast.http.endpoints.operators.money.ledger import LedgerHealth
from holdfast.http.endpoints.operators.records.samples import ProcessSamples
from holdfast.http.endpoints.operators.supervision.processes import ProcessBody, Tree
from holdfast.ledger.clock import Now, format_time, utc_now
from holdfast.metrics.samples import Sample
from holdfast.supervision.control.messages import GroupDescription
from holdfast.supervision.status import ChildStatus
from holdfast.terminal.service_client import ServiceClient, ServiceFault

SAMPLES_SINCE: Final = timedelta(seconds=30)
WIDE_CHARS: Final = 150
"""From this width on a line has all columns of a process."""

Rate: TypeAlias = Callable[[Sample], str]

_IN_ORDER = frozenset({"running", "ready"})


@dataclass(frozen=True, slots=True)
class ServiceView:
    """What one look at the service found. ``samples`` are the newest of each process, by its id."""

    url: str
    at: datetime
    tree: Tree
    samples: dict[str, Sample]
    ledger: LedgerHealth | None


def look(service: ServiceClient, now: Now = utc_now) -> ServiceView:
    """Ask the service for everything that is shown; the ledger's health may be missing. Raises ``ServiceFault``."""
    at = now()
    tree = service.get("/ops/api/tree", Tree)
    since = quote(format_time(at - SAMPLES_SINCE))
    processes = service.get(f"/ops/api/samples?from={since}", ProcessSamples).processes
    newest = {each.member_id: each.samples[-1] for each in processes if each.samples}
    try:
        ledger = service.get("/ops/api/ledger", LedgerHealth)
    except ServiceFault:
        # While the database is away the rest is answered from memory.
        ledger = None
    return ServiceView(service.url, at, tree, newest, ledger)


def look_again(service: ServiceClient, *, lines_max: int) -> RenderableType:
    """Look and render in ``lines_max`` lines; while the service cannot be reached, say so instead."""
    try:
        return render(look(service), lines_max=lines_max)
    except ServiceFault as fault:
        return Text(f"{fault}\nTrying again; q quits.")


def render(view: ServiceView, *, lines_max: int | None = None) -> RenderableType:
    """Return the view as text and tables that fit the width of the terminal, in about ``lines_max`` lines."""
    return _Look(view, lines_max)


@dataclass(frozen=True, slots=True)
class _Look:
    """The view as rich draws it: a narrow terminal has the columns of processes in two tables."""

    view: ServiceView
    lines_max: int | None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        processes = [member.process for member in self.view.tree.members if member.process is not None]
        trees = [process.tree for process in processes]
        if options.max_width >= WIDE_CHARS:
            tables = [_processes(self.view, _RATES)]
        else:
            tables = [_processes(self.view, _REQUEST_RATES), _processes(self.view, _WRITE_RATES, is_first=False)]
        tables.append(_groups([group for process in processes for group in process.groups]))
        yield _headline(self.view)
        for table in tables:
            yield Text()
            yield table
        yield Text()
        taken = sum(table.row_count + 2 for table in tables) + 4
        yield _children(trees, len(trees), None if self.lines_max is None else self.lines_max - taken)


def _headline(view: ServiceView) -> Text:
    ledger = view.ledger
    line = Text(f"{view.url}  {view.at:%H:%M:%S} UTC  processes: {len(view.tree.members)}  ledger: ")
    if ledger is None:
        return line.append("unknown, the database is away", style="bold red")
    line.append("not verified yet" if ledger.age_s is None else f"verified {_age(ledger.age_s)} ago")
    if ledger.differences:
        line.append(
            f", {ledger.differences} {'difference' if ledger.differences == 1 else 'differences'}", style="bold red"
        )
    return line


def _processes(view: ServiceView, columns: Mapping[str, Rate], *, is_first: bool = True) -> Table:
    who = ("process", "state", "up") if is_first else ("process",)
    table = _table(*who, *columns, left=2 if is_first else 1)
    for member in view.tree.members:
        sample = view.samples.get(member.member_id)
        rates = ("" if sample is None else rate(sample) for rate in columns.values())
        table.add_row(*_who(member)[: len(who)], *rates)
    return table


def _who(member: ProcessBody) -> tuple[RenderableType, ...]:
    process = member.process
    if process is None:
        away = "" if member.unreachable_for_s is None else _age(member.unreachable_for_s)
        return member.member_id[-12:], Text(f"unreachable {away}".strip(), style="bold red"), ""
    worker = "" if process.worker is None else f" worker {process.worker}"
    state = member.state if process.database_open else "database away"
    return f"{process.host} {process.pid}{worker}", _state(state), _age(process.uptime_s)


_REQUEST_RATES: Final[Mapping[str, Rate]] = {
    "2xx/s": lambda sample: _number(sample.responses_2xx_per_s),
    "4xx/s": lambda sample: _number(sample.responses_4xx_per_s),
    "5xx/s": lambda sample: _number(sample.responses_5xx_per_s),
    "creates/s": lambda sample: _number(sample.creates_per_s),
    "settled/s": lambda sample: _number(sample.settled_per_s),
    "cpu %": lambda sample: _number(None if sample.cpu_s is None else sample.cpu_s / sample.interval_s * 100),
    "MB": lambda sample: "" if sample.memory_bytes is None else f"{sample.memory_bytes / 2**20:.0f}",
}
_WRITE_RATES: Final[Mapping[str, Rate]] = {
    "commits/s": lambda sample: _number(sample.commits_per_s),
    "units": lambda sample: _number(sample.units_per_commit),
    "p99 ms": lambda sample: _number(None if sample.commit_p99_s is None else sample.commit_p99_s * 1000),
    "queue": lambda sample: str(sample.journal_queue_units),
    "lag ms": lambda sample: _number(sample.loop_lag_max_s * 1000),
    "actors": lambda sample: str(sample.actors_active),
    "messages": lambda sample: str(sample.mailbox_messages),
    "oldest": lambda sample: _age(sample.oldest_message_s),
}
_RATES: Final = {**_REQUEST_RATES, **_WRITE_RATES}
"""What a process did in its newest sample, by the title of the column."""


@dataclass
class _Line:
    """One child of the tree, over all processes that have it."""

    depth: int
    states: Counter[str] = field(default_factory=Counter)
    restarts: int = 0
    messages: int = 0
    fault: str | None = None


def _children(trees: Sequence[ChildStatus], processes: int, lines_max: int | None) -> Table:
    """The tree; where it has more than ``lines_max`` lines, without the children of which nothing is to be said."""
    table = _table("child", "state", left=2)
    table.add_column("restarts", justify="right")
    table.add_column("messages", justify="right")
    table.add_column("last fault", overflow="ellipsis", no_wrap=True)
    lines: dict[str, _Line] = {}
    for tree in trees:
        for path, depth, child in _walk([tree], "", 0):
            line = lines.setdefault(path, _Line(depth))
            line.states[child.state] += 1
            line.restarts += child.restarts_in_window
            line.messages += child.work.mailbox_depth if child.work is not None else 0
            line.fault = child.last_fault or line.fault
    quiet = [
        path for path, line in lines.items() if not (line.restarts or line.messages or set(line.states) - _IN_ORDER)
    ]
    if lines_max is not None and len(lines) > lines_max:
        for path in quiet:
            del lines[path]
        table.add_row(f"({len(quiet)} run, without restarts)", _state("running"))
    for path, line in lines.items():
        name = "  " * line.depth + path.rpartition("/")[2]
        fault = line.fault if line.restarts or set(line.states) - _IN_ORDER else None
        table.add_row(
            name, _states(line.states, processes), str(line.restarts), str(line.messages or ""), fault or ""
        )
    return table


def _walk(children: Iterable[ChildStatus], above: str, depth: int) -> Iterator[tuple[str, int, ChildStatus]]:
    for child in children:
        path = f"{above}/{child.child_id}"
        yield path, depth, child
        yield from _walk(child.children, path, depth + 1)


def _groups(groups: Sequence[GroupDescription]) -> Table:
    table = _table("actors", "states", left=2)
    table.add_column("messages", justify="right")
    table.add_column("oldest", justify="right")
    for name in dict.fromkeys(group.name for group in groups):
        found = [group for group in groups if group.name == name]
        states: Counter[str] = Counter()
        for group in found:
            states.update(group.states)
        oldest = max((group.oldest_message_age_s or 0.0 for group in found), default=0.0)
        shown = Text(", ".join(f"{many} {state}" for state, many in sorted(states.items()) if many) or "none")
        if any(group.paused_by for group in found):
            shown.append(" (paused)", style="bold red")
        elif states["quarantined"]:
            shown.stylize("red")
        table.add_row(name, shown, str(sum(group.messages for group in found)), _age(oldest) if oldest else "")
    return table


def _table(*names: str, left: int) -> Table:
    table = Table(box=None, pad_edge=False, collapse_padding=True, header_style="bold")
    for number, name in enumerate(names):
        table.add_column(name, justify="left" if number < left else "right", no_wrap=True)
    return table


def _states(states: Counter[str], processes: int) -> Text:
    if len(states) == 1 and sum(states.values()) == processes:
        return _state(next(iter(states)))
    return Text(", ").join(Text(f"{many} {state}", style=_state(state).style) for state, many in states.items())


def _state(state: str) -> Text:
    return Text(state, style="green" if state in _IN_ORDER else "yellow" if state != "failed" else "bold red")


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.1f}" if 0 < value < 100 else f"{value:,.0f}"


def _age(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 360_000 else f"{seconds / 86400:.0f} d"
