"""How a supervisor stops its children: each is asked, then killed; all of them in reverse order, by a deadline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import trio

from holdfast.supervision.child_reports import ChildReports
from holdfast.supervision.supervised_child import Run, SupervisedChild

KILL_GRACE_S: Final = 1.0
"""How long a killed child may take to end before it is reported as stuck."""


class ChildStops:
    """Stops ``children``, a list that may grow until the first of them is started."""

    def __init__(self, children: Sequence[SupervisedChild], reports: ChildReports) -> None:
        self._children = children
        self._reports = reports
        self._scope = trio.CancelScope(shield=True)
        self._is_draining = False
        self._is_at_once = False
        self._killed: list[str] = []

    async def stop(self, child: SupervisedChild, run: Run) -> None:
        """Ask a child to stop, if it is up, then kill it. Returns when it has ended or is stuck, not sooner."""
        with trio.CancelScope(shield=True):
            await self._stop(child, run)

    async def drain(self, within_s: float) -> None:
        """Stop all children, the last first; after ``within_s`` or :meth:`end_drain` kill what is left."""
        self._is_draining = True
        self._scope.deadline = trio.current_time() + within_s
        with self._scope:
            for child in reversed(self._children):
                if child.phase == "stopping":  # another task stops it, and kills it in time
                    with trio.move_on_after(child.spec.shutdown_s + KILL_GRACE_S):
                        await child.run.done.wait()
                elif child.live:
                    child.phase = "stopping"
                    await self._stop(child, child.run)
        reason = "stopped at once" if self._is_at_once else f"killed at the deadline of {within_s:g} s"
        for child in reversed(self._children):
            if child.live and child.spec.child_id not in self._killed:
                self._kill(child, child.run, reason)
        summary = f"killed: {', '.join(self._killed)}" if self._killed else "every child in time"
        self._reports.report(
            "drain", None, "killed" if self._killed else "shutdown", reason=summary, decision="stop"
        )

    def end_drain(self) -> None:
        """Let the drain, now or once it begins, kill what has not stopped."""
        self._is_at_once = True
        self._scope.cancel(reason=f"{self._reports.path} is stopped at once")

    async def _stop(self, child: SupervisedChild, run: Run) -> None:
        grace_s = child.spec.shutdown_s
        if run.up_at is None or run.instance is None:
            run.scope.cancel(reason=f"{child.path} is stopped while starting")
            with trio.move_on_after(grace_s):
                await run.done.wait()
        elif grace_s > 0:
            with trio.move_on_after(grace_s):
                try:
                    await run.instance.stop()
                    await run.done.wait()
                except Exception as exc:
                    self._reports.report("drain", child, "shutdown_error", exc, decision="stop")
        if run.done.is_set():
            return
        self._kill(child, run, f"killed after {grace_s:g} s")
        with trio.move_on_after(KILL_GRACE_S):
            await run.done.wait()
        if not run.done.is_set():
            reason = f"killed, and still there {KILL_GRACE_S:g} s later"
            self._reports.report("drain", child, "stuck", reason=reason)

    def _kill(self, child: SupervisedChild, run: Run, reason: str) -> None:
        if self._is_draining:
            self._killed.append(child.spec.child_id)
        run.scope.cancel(reason=f"{child.path} {reason}")
        self._reports.report("drain", child, "killed", reason=reason, decision="stop")
