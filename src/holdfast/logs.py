"""Logging for the whole process: one line per event, console or JSON, scrubbed of secrets by key and by pattern.

Libraries that use the standard logging module (hypercorn, sqlalchemy, alembic, pykka) are routed the same way.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any, Literal, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from holdfast.scrubbing import SCRUBBED, scrub

VALUE_LIMIT_CHARS = 16_000
"""Enough for a complete traceback."""

_DEPTH_LIMIT_LEVELS = 4
_SECRET_KEY = re.compile(
    r"password|passwd|passphrase|pwd|secret|token(?!s)|authorization|cookie|api_?key$|signature|pepper|otp$",
    re.IGNORECASE,
)
# Their INFO lines contain statements with parameters, or URLs with query strings.
_QUIET_LOGGERS = ("sqlalchemy", "httpx2", "httpcore2", "pykka")
_ROUTED_LOGGERS = ("hypercorn.error", "hypercorn.access", "alembic", *_QUIET_LOGGERS)


def scrub_secrets(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """A structlog processor that removes values under secret-like keys and scrubs all other text by pattern."""
    return {key: _clean(key, value, 0) for key, value in event.items()}


def _clean(key: str, value: object, depth: int) -> object:
    if value is None or isinstance(value, bool | int | float | date | timedelta):
        return SCRUBBED if _SECRET_KEY.search(key) and value is not None and not isinstance(value, bool) else value
    if _SECRET_KEY.search(key) or isinstance(value, bytes | bytearray | memoryview):
        return SCRUBBED
    if isinstance(value, str):
        return scrub(value, limit_chars=VALUE_LIMIT_CHARS)
    if depth < _DEPTH_LIMIT_LEVELS:
        if isinstance(value, Mapping):
            return {scrub(str(k)): _clean(str(k), v, depth + 1) for k, v in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [_clean("", item, depth + 1) for item in value]
    return scrub(repr(value))


def configure_logging(
    log_format: Literal["console", "json"], *, level: str = "INFO", stream: TextIO | None = None
) -> None:
    """Set up structlog and the standard library's root logger; calling it again replaces the earlier setup.

    Lines go to ``stream`` (default: standard error). Raises ValueError for an unknown ``level``.
    """
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ValueError(f"unknown log level {level!r}")
    out = stream if stream is not None else sys.stderr
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    render: Processor = (
        structlog.processors.JSONRenderer(default=str)
        if log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback)
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.StackInfoRenderer(),
                structlog.processors.format_exc_info,
                scrub_secrets,
                render,
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
        logger.setLevel(max(number, logging.WARNING) if name in _QUIET_LOGGERS else number)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(number),
        cache_logger_on_first_use=False,
    )


def get_logger(name: str) -> Any:
    """Return a structured logger: ``logger.info("what happened", key=value)``."""
    return structlog.get_logger(name)
