"""``holdfast top``: the processes, their rates and the tree, as they are now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import quote

from rich.console import Group, RenderableType
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


def look_again(service: ServiceClient) -> RenderableType:
    """Look and render; while the service cannot be reached, say so instead."""
    try:
        return render(look(service))
    except ServiceFault as fault:
        return Text(f"{fault}\nTrying again; q quits.")


def render(view: ServiceView) -> RenderableType:
    """Return the view as text and tables."""
    processes = [member.process for member in view.tree.members if member.process is not None]
    trees = [process.tree for process in processes]
    groups = [group for process in processes for group in process.groups]
    return Group(
        _headline(view), Text(), _processes(view), Text(), _children(trees, len(trees)), Text(), _groups(groups)
    )


def _headline(view: ServiceView) -> Text:
    ledger = view.ledger
    line = Text(f"{view.url}  {view.at:%H:%M:%S} UTC  processes: {len(view.tree.members)}  ledger: ")
    if ledger is None:
        return line.append("unknown, the database is away", style="bold red")
    line.append("not verified yet" if ledger.age_s is None else f"verified {_age(ledger.age_s)} ago")
    if ledger.differences:
        line.append(f", {ledger.differences} differences", style="bold red")
    return line


def _processes(view: ServiceView) -> Table:
    table = _table("process", "state", "up", left=2)
    names = ("2xx/s", "4xx/s", "5xx/s", "creates/s", "settled/s", "commits/s", "units", "p99 ms", "queue", "lag ms")
    for name in (*names, "actors", "messages", "oldest", "cpu %", "MB"):
        table.add_column(name, justify="right", no_wrap=True)
    for member in view.tree.members:
        sample = view.samples.get(member.member_id)
        table.add_row(*_who(member), *(("",) * 15 if sample is None else _rates(sample)))
    return table


def _who(member: ProcessBody) -> tuple[RenderableType, ...]:
    process = member.process
    if process is None:
        away = "" if member.unreachable_for_s is None else _age(member.unreachable_for_s)
        return member.member_id[-12:], Text(f"unreachable {away}".strip(), style="bold red"), ""
    worker = "" if process.worker is None else f" worker {process.worker}"
    state = member.state if process.database_open else "database away"
    return f"{process.host} {process.pid}{worker}", _state(state), _age(process.uptime_s)


def _rates(sample: Sample) -> tuple[str, ...]:
    cpu = "" if sample.cpu_s is None else f"{sample.cpu_s / sample.interval_s * 100:.0f}"
    return (
        _number(sample.responses_2xx_per_s),
        _number(sample.responses_4xx_per_s),
        _number(sample.responses_5xx_per_s),
        _number(sample.creates_per_s),
        _number(sample.settled_per_s),
        _number(sample.commits_per_s),
        "" if sample.units_per_commit is None else _number(sample.units_per_commit),
        "" if sample.commit_p99_s is None else _number(sample.commit_p99_s * 1000),
        str(sample.journal_queue_units),
        _number(sample.loop_lag_max_s * 1000),
        str(sample.actors_active),
        str(sample.mailbox_messages),
        _age(sample.oldest_message_s),
        cpu,
        "" if sample.memory_bytes is None else f"{sample.memory_bytes / 2**20:.0f}",
    )


@dataclass
class _Line:
    """One child of the tree, over all processes that have it."""

    depth: int
    states: Counter[str] = field(default_factory=Counter)
    restarts: int = 0
    messages: int = 0
    fault: str | None = None


def _children(trees: Sequence[ChildStatus], processes: int) -> Table:
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
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(names):
        table.add_column(name, justify="left" if number < left else "right", no_wrap=True)
    return table


def _states(states: Counter[str], processes: int) -> Text:
    if len(states) == 1 and sum(states.values()) == processes:
        return _state(next(iter(states)))
    return Text(", ").join(Text(f"{many} {state}", style=_state(state).style) for state, many in states.items())


def _state(state: str) -> Text:
    return Text(state, style="green" if state in _IN_ORDER else "yellow" if state != "failed" else "bold red")


def _number(value: float) -> str:
    return f"{value:.1f}" if 0 < value < 100 else f"{value:,.0f}"


def _age(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 360_000 else f"{seconds / 86400:.0f} d"
