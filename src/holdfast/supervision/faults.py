"""The faults of a supervisor, and which part of a child's exception it may handle."""

from __future__ import annotations

from holdfast.telemetry.reports.causes import CannotServe, leaf_of


class GaveUp(Exception):
    """A supervisor has spent its restart budget, or met :class:`CannotServe`, and stopped its children.

    ``leaf`` is the exception of the last crash, through any number of levels; None if the child had returned.
    """

    def __init__(
        self, path: str, child_id: str, restarts: int, period_s: float, leaf: BaseException | None
    ) -> None:
        last = f"{type(leaf).__name__}: {leaf}" if leaf is not None else "it returned"
        spent = f"{path}: over {restarts} restarts in {period_s:g} s, the last by {child_id!r} ({last})"
        super().__init__(str(leaf) if isinstance(leaf, CannotServe) else spent)
        self.path = path
        self.child_id = child_id
        self.leaf = leaf


class StartFailed(Exception):
    """A child did not report that it was up in time, or ended before."""


class NotRunning(Exception):
    """The supervisor has not started, or has ended."""


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
