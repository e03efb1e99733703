"""The faults of a supervisor, and how to find the exception that matters inside an exception group."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType

import trio


class GaveUp(Exception):
    """A supervisor has spent its restart budget and stopped its children.

    ``leaf`` is the exception of the last crash, through any number of levels; None if the child had returned.
    """

    def __init__(
        self, path: str, child_id: str, restarts: int, period_s: float, leaf: BaseException | None
    ) -> None:
        last = f"{type(leaf).__name__}: {leaf}" if leaf is not None else "it returned"
        super().__init__(f"{path}: over {restarts} restarts in {period_s:g} s, the last by {child_id!r} ({last})")
        self.path = path
        self.child_id = child_id
        self.leaf = leaf


class StartFailed(Exception):
    """A child did not report that it was up in time, or ended before."""


class NotRunning(Exception):
    """The supervisor has not started, or has ended."""


def _leaves(exc: BaseException) -> Iterator[BaseException]:
    pending = [exc]
    while pending:
        current = pending.pop()
        if isinstance(current, BaseExceptionGroup):
            pending.extend(reversed(current.exceptions))
        else:
            yield current


def leaf_of(exc: BaseException) -> BaseException:
    """Return the exception that matters inside ``exc``.

    Of a group's leaves: one that must end the process (KeyboardInterrupt, SystemExit), else the first that is not
    a cancellation, else the first.
    """
    leaves = list(_leaves(exc))
    for leaf in leaves:
        if not isinstance(leaf, Exception | trio.Cancelled):
            return leaf
    for leaf in leaves:
        if not isinstance(leaf, trio.Cancelled):
            return leaf
    return leaves[0]


def fault_of(exc: BaseException) -> Exception | None:
    """Return the crash in ``exc``; None for what no supervisor may swallow (cancellation, interrupt)."""
    if isinstance(exc, Exception):
        return exc
    leaf = leaf_of(exc)
    return leaf if isinstance(leaf, Exception) else None


def root_cause(exc: BaseException) -> BaseException | None:
    """Return :func:`leaf_of`, or for a :class:`GaveUp` its cause (None: the child returned)."""
    leaf = leaf_of(exc)
    return leaf.leaf if isinstance(leaf, GaveUp) else leaf


def location_of(exc: BaseException) -> str | None:
    """Return where ``exc`` was raised, as ``module:line``; None if it was not."""
    tb: TracebackType | None = exc.__traceback__
    if tb is None:
        return None
    while tb.tb_next is not None:
        tb = tb.tb_next
    return f"{tb.tb_frame.f_globals.get('__name__', '?')}:{tb.tb_lineno}"
