"""Logging for the whole process: one line per event, console or JSON, scrubbed of secrets by key and by pattern.

A line begins with time, level and event, then the ids it is about. Libraries that use the standard logging module
(hypercorn, sqlalchemy, alembic, pykka) are written in the same way.

Repeated lines are folded, written later as one line with a count and the time of the last. A report is never held,
so that what a supervisor and an operator did is read in the order in which it happened;
:class:`~holdfast.telemetry.reports.reporter.Reporter` limits their number. Messages that were not handled may be
very many. Events in the life of tasks have a line each until they are so many that only their counts are of use.

In memory the newest lines are kept as they were before that (:mod:`~holdfast.telemetry.logs.ring`), as are refusals
that have no line of their own, in a share apart: many of them leave the other lines.
"""

from __future__ import annotations

import atexit
import logging
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import date, timedelta
from typing import Final, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from holdfast.telemetry.logs.lines import (
    Fields,
    LineWriter,
    LogFormat,
    Render,
    console_renderer,
    in_order,
    render_json,
    time_of_line,
)
from holdfast.telemetry.logs.raised import RaisedLevel, RaisedLevels, about
from holdfast.telemetry.logs.ring import FoundLines, LineRing, newest_of
from holdfast.telemetry.repetitions import Repetitions
from holdfast.telemetry.reports.report import REPORT_KINDS
from holdfast.telemetry.scrubbing import SCRUBBED, has_registered_secret, scrub
from holdfast.telemetry.traces import other_request_id, trace_id

PERIODS_S: Final = (10, 20, 40, 80, 160, 320, 600)
"""While a line repeats, each period is longer than the one before it."""
ALIKE_MAX: Final = 3
"""How many lines that differ only in their ids are written before the others are counted."""

EVENTS_MAX: Final = 1_000
"""How many events of tasks are written in a period, and from how many a period on the next is only counted."""
EVENTS_OF_PROCESS_MIN: Final = 100
"""The least number that each process writes, however many processes there are."""
EVENT_PERIODS_S: Final = (10, 60)
"""The length of a period, and of one whose events are only counted."""

NEVER_HELD: Final = frozenset(REPORT_KINDS) - {"dead_letter"}
"""The kinds of report whose lines are each written at once."""

SHARE_OF_REFUSALS: Final = 8
"""Refusals have one part in so many of the memory for lines."""

_IDS: Final = frozenset({"key", "task_id", "account_id", "order_id", "event_id", "batch_id"})
_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?")
_NOT_COMPARED: Final = _IDS | {"time", "trace_id", "request_id"}


class Folding:
    """Decides which lines of one of so many ``processes`` are written. ``clock`` counts seconds.

    Not safe for threads.
    """

    def __init__(self, clock: Callable[[], float], *, processes: int = 1) -> None:
        events_max = max(EVENTS_MAX // processes, EVENTS_OF_PROCESS_MIN)
        self._lines = Repetitions[Fields](clock, ALIKE_MAX, PERIODS_S)
        self._task_events = Repetitions[None](clock, events_max, EVENT_PERIODS_S, rest_max=events_max)
        self._counts: Counter[str] = Counter()

    def admit(self, fields: Fields) -> bool:
        """Whether to write this line now; otherwise it is counted."""
        if "raised" in fields or ("path" in fields and fields["event"] in NEVER_HELD):
            return True
        texts = _texts(fields)
        kind = tuple((name, text) for name, text in texts if name not in _NOT_COMPARED)
        return self._lines.admit(kind, fields, name=tuple(each for each in texts if each[0] in _IDS))

    def admit_task_event(self, event: str) -> bool:
        """Whether to write a line of this event in the life of a task now; otherwise it is counted."""
        is_admitted = self._task_events.admit(None, None)
        if not is_admitted:
            self._counts[event] += 1
        return is_admitted

    def due(self, *, at_once: bool = False) -> list[Fields]:
        """Return the last of each repeated line whose period has passed, with the count ``folded``; and ``counts``
        of the events of tasks, without a time.
        """
        lines = [
            each.last if each.count == 1 else each.last | {"folded": each.count}
            for each in self._lines.due(at_once=at_once)
        ]
        for each in self._task_events.due(at_once=at_once):
            counts, self._counts = dict(self._counts), Counter()
            text = "too many for a line each"
            lines.append({"event": "task events", "text": text, "counts": counts, "seconds": round(each.lasted_s)})
        return lines


def _texts(fields: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return the texts of a line. Numbers differ each time, also those in the words of a report."""
    return [
        (name, _NUMBER.sub("#", value) if name == "text" else value)
        for name, value in fields.items()
        if isinstance(value, str)
    ]


VALUE_LIMIT_CHARS = 16_000
"""Enough for a complete traceback."""
FLUSH_S: Final = 2.0
"""How long the end of the process waits for unread lines."""

_DEPTH_LIMIT_LEVELS = 4
_SECRET_KEY = re.compile(
    r"password|passwd|passphrase|pwd|secret|token(?!s)|authorization|cookie|api_?key$|signature|pepper|otp$|tracestate",
    re.IGNORECASE,
)
_TRACE_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
# Their INFO lines contain statements with parameters, URLs with query strings, or what each start repeats.
_QUIET_LOGGERS = ("sqlalchemy", "httpx2", "httpcore2", "pykka", "alembic")
# It warns of each connection that is lost with the server, which is one outage.
_SILENT_LOGGERS = ("psycopg",)
_ROUTED_LOGGERS = ("hypercorn.error", "hypercorn.access", *_QUIET_LOGGERS, *_SILENT_LOGGERS)


def scrub_secrets(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """A structlog processor that removes values under secret-like keys and scrubs all other text by pattern."""
    return {key: _clean(key, value, 0) for key, value in event.items()}


def _clean(key: str, value: object, depth: int) -> object:
    if value is None or isinstance(value, bool | int | float | date | timedelta):
        return SCRUBBED if _SECRET_KEY.search(key) and value is not None and not isinstance(value, bool) else value
    if _SECRET_KEY.search(key) or isinstance(value, bytes | bytearray | memoryview):
        return SCRUBBED
    if isinstance(value, str):
        if key == "trace_id" and _TRACE_ID.fullmatch(value) and not has_registered_secret(value):
            return value
        return scrub(value, limit_chars=VALUE_LIMIT_CHARS)
    if depth < _DEPTH_LIMIT_LEVELS:
        if isinstance(value, Mapping):
            return {scrub(str(k)): _clean(str(k), v, depth + 1) for k, v in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [_clean("", item, depth + 1) for item in value]
    return scrub(repr(value))


class _Lines:
    """The lines of this process: how they are rendered, folded and put."""

    def __init__(self) -> None:
        self.level = logging.WARNING
        self.put: Callable[[str], None] = lambda _line: None
        self.render: Render = render_json
        self.writer: LineWriter | None = None
        self.worker: int | None = None
        self.folding = Folding(time.monotonic)
        self._lock = threading.Lock()
        self.keep(0, 0)

    def keep(self, bytes_max: int, age_max_s: float) -> None:
        """Keep the newest lines in so many bytes, and for so long; 0 bytes keep none."""
        of_refusals = bytes_max // SHARE_OF_REFUSALS
        self.kept = LineRing(bytes_max - of_refusals, age_max_s)
        self.kept_refusals = LineRing(of_refusals, age_max_s)

    def context(self) -> dict[str, object]:
        """Return the fields of every line: the trace, the request if its id is another, the worker process."""
        found: dict[str, object] = {}
        trace, request = trace_id(), other_request_id()
        if trace is not None:
            found["trace_id"] = trace
        if request is not None:
            found["request_id"] = request
        if self.worker is not None:
            found["worker"] = self.worker
        return found

    def write(self, _logger: WrappedLogger, _method: str, event: EventDict) -> str:
        """A structlog processor, the last one: render a line, or drop a repeated one."""
        fields = in_order({"time": time_of_line(), **event})
        line = self._kept(fields)
        with self._lock:
            if not self.folding.admit(fields):
                raise structlog.DropEvent
        return line or self.render(fields)

    def write_task_event(self, fields: Fields) -> None:
        """Put the line of a task's event, unless they are so many that it is counted; below level info each one."""
        line, event = self._kept(fields), str(fields["event"])
        with self._lock:
            is_put = "task_id" not in fields or self.level < logging.INFO or self.folding.admit_task_event(event)
        if is_put:
            self.put(line or self.render(fields))

    def _kept(self, fields: Fields) -> str | None:
        """Keep a line, and return it if it is put in the same form."""
        if not self.kept.bytes_max:
            return None
        line = render_json(fields)
        self.kept.append(line)
        return line if self.render is render_json else None

    def put_folded(self, *, at_once: bool = False) -> None:
        """Put the lines of repeated and of counted ones that are due."""
        with self._lock:
            due = self.folding.due(at_once=at_once)
        for fields in due:
            own = {"level": "info", "worker": self.worker}  # of the line of counted ones
            # Lines stay in the order of their times. The first of them has shown the traceback.
            written = {"time": time_of_line(), "last": fields.get("time"), "exception": None, "stack": None}
            self.put(self.render(in_order({**own, **fields, **written})))

    def tell_lost(self, count: int) -> str:
        """Return the line that says how many lines were lost."""
        event = "log lines were lost: standard error did not take them"
        return self.render({"time": time_of_line(), "level": "warning", "event": event, "lost": count})

    def end(self, within_s: float) -> None:
        """Write all that waits, if it is read in time."""
        self.put_folded(at_once=True)
        if self.writer is not None:
            self.writer.stop(within_s)
            self.writer, self.put = None, lambda _line: None


_lines = _Lines()


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        """Put the record's line. A fault here is no reason to fail anything else."""
        try:
            _lines.put(self.format(record))
        except structlog.DropEvent:
            return
        except Exception:
            self.handleError(record)


def _add_context(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Add the trace, the request and the worker process."""
    return {**_lines.context(), **event}


def _library_name(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Add the name of a library's logger; this service's own events need none."""
    return structlog.stdlib.add_logger_name(logger, method, event)


def configure_logging(
    log_format: LogFormat,
    *,
    level: str = "info",
    stream: TextIO | None = None,
    in_thread: bool = False,
    worker: int | None = None,
    processes: int = 1,
    memory_bytes: int = 0,
    memory_s: float = 600.0,
) -> None:
    """Set up structlog and the standard library's root logger; calling it again replaces the earlier setup.

    Lines go to ``stream`` (default: standard error), or ``in_thread`` to the descriptor of standard error by a
    thread, so that no part waits for its reader. ``worker`` is the number of this process in every line; so many
    ``processes`` share the lines of tasks' events. The newest lines are kept in ``memory_bytes``, for ``memory_s``.
    Raises ValueError for an unknown ``level``.
    """
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ValueError(f"unknown log level {level!r}")
    out = stream if stream is not None else sys.stderr
    _lines.end(FLUSH_S)
    levels.clear()
    _lines.level, _lines.worker = number, worker
    _lines.folding = Folding(time.monotonic, processes=processes)
    _lines.keep(memory_bytes, memory_s)
    _lines.render = render_json if log_format == "json" else console_renderer(colours=out.isatty())
    if in_thread:
        writer = LineWriter(2, tick=_lines.put_folded, tell_lost=_lines.tell_lost)
        _lines.writer, _lines.put = writer, writer.write
    else:
        _lines.put = lambda line: _put_now(out, line)
    handler = _Handler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*_SHARED, _library_name],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.StackInfoRenderer(),
                structlog.processors.format_exc_info,
                scrub_secrets,
                _lines.write,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(number)
    for name in _ROUTED_LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = []
        logger.propagate = True
        least = logging.ERROR if name in _SILENT_LOGGERS else logging.WARNING if name in _QUIET_LOGGERS else number
        logger.setLevel(max(number, least))
    _configure_own()


_SHARED: Final[Sequence[Processor]] = (
    structlog.contextvars.merge_contextvars,
    _add_context,
    structlog.stdlib.add_log_level,
)


def _configure_own() -> None:
    """Set up the loggers of this service, for the level and those that are raised."""
    logging.getLogger("holdfast").setLevel(logging.DEBUG if levels.any else logging.NOTSET)
    structlog.configure(
        processors=[
            *_SHARED,
            *([_only_raised] if levels.any else []),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG if levels.any else _lines.level),
        cache_logger_on_first_use=False,
    )


def _only_raised(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Drop a line below the level that no raised one takes."""
    if logging.getLevelNamesMapping().get(method.upper(), logging.ERROR) >= _lines.level:
        return event
    subject = levels.admit(logger.name, event.get("key"), event.get("account_id"))
    if subject is None:
        raise structlog.DropEvent
    return {**event, "raised": subject}


def _tell_ended(raised: RaisedLevel) -> None:
    log = structlog.get_logger(__name__)
    log.info("level no longer raised", subject=raised.subject, logged=raised.logged, dropped=raised.dropped)


levels: Final = RaisedLevels(_configure_own, _tell_ended)
"""The levels that are raised in this process."""


def raise_level(subject: str, reason: str, *, for_s: float, lines_per_s: int) -> None:
    """Write what a subject has at ``debug`` for ``for_s`` seconds, 0 to end it
    (:mod:`~holdfast.telemetry.logs.raised`).
    """
    if not for_s:
        levels.end(subject)
        return
    levels.begin(subject, reason, for_s=for_s, lines_per_s=lines_per_s)
    log = structlog.get_logger(__name__)
    log.info("level raised", subject=subject, for_s=for_s, lines_per_s=lines_per_s, reason=reason)


def log_raised(event: str, names: tuple[str, ...], fields: Mapping[str, object]) -> None:
    """Log at ``debug`` what is too frequent for a level of the whole process, if one of ``names`` is raised."""
    if levels.find(*names) is not None:
        about.set(names)
        structlog.get_logger(__name__).debug(event, **fields)


def _put_now(out: TextIO, line: str) -> None:
    out.write(line + "\n")
    out.flush()


def log_event(event: str, fields: Mapping[str, str | int | None]) -> None:
    """Log one event in the life of a task or a payment, at level info, in a few microseconds.

    While tasks have more events than a reader could follow, theirs are counted instead (:class:`Folding`).
    The fields are put as they are and in this order, so they are only our own ids, names of the catalog, codes and
    numbers: never a text from outside.
    """
    if _lines.level <= logging.INFO or (levels.any and levels.find(*fields.values()) is not None):
        line = {"time": time_of_line(), "level": "info", "event": event, **fields, **_lines.context()}
        if None in fields.values():
            line = {name: value for name, value in line.items() if value is not None}
        _lines.write_task_event(line)


def keep_refusal(event: str, fields: Mapping[str, str | int | None]) -> None:
    """Keep a refusal in memory that has no line of its own. The fields are as those of :func:`log_event`."""
    _keep(_lines.kept_refusals, event, fields)


def keep_change(event: str, fields: Mapping[str, str | int | None]) -> None:
    """Keep a request that changed something in memory alone. The fields are as those of :func:`log_event`."""
    _keep(_lines.kept, event, fields)


def _keep(ring: LineRing, event: str, fields: Mapping[str, str | int | None]) -> None:
    if ring.bytes_max:
        line = {"time": time_of_line(), "level": "info", "event": event, **_lines.context(), **fields}
        ring.append(render_json(in_order(line)))


def kept_bytes() -> int:
    """Return what the kept lines take."""
    return _lines.kept.bytes + _lines.kept_refusals.bytes


async def find_lines(texts: Sequence[str], *, since: str, until: str, limit: int) -> FoundLines:
    """Return the newest kept lines that have any of ``texts``, as :meth:`LineRing.find` does."""
    found = await _lines.kept.find(texts, since=since, until=until, limit=limit)
    refusals = await _lines.kept_refusals.find(texts, since=since, until=until, limit=limit)
    return newest_of(found, refusals, limit)


def flush_logs(within_s: float = FLUSH_S) -> None:
    """Write the lines that wait, as the last thing that this process does."""
    _lines.end(within_s)


atexit.register(flush_logs)
