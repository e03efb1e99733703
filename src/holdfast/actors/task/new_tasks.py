"""The tasks that this process has just accepted, so that their actors need not read them."""

from __future__ import annotations

from collections import OrderedDict

from holdfast.ledger.tasks.task import Task

TASKS_MAX = 1000


class NewTasks:
    """The newest accepted tasks, each for the first incarnation of its actor.

    Another process may have changed a task meanwhile. The fence finds that, as it does for an active actor, and the
    next incarnation reads the rows.
    """

    def __init__(self) -> None:
        self._tasks: OrderedDict[str, Task] = OrderedDict()

    def add(self, task: Task) -> None:
        """Remember a task, instead of the oldest if there are too many."""
        self._tasks[task.request_id] = task
        if len(self._tasks) > TASKS_MAX:
            self._tasks.popitem(last=False)

    def take(self, request_id: str) -> Task | None:
        """Return and forget a task, or None."""
        return self._tasks.pop(request_id, None)
