"""The messages about events on their way to customers."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.actors.messages import Command
from holdfast.actors.task_messages import TaskRef
from holdfast.persistence.rows import Row


@dataclass(frozen=True, slots=True)
class EventsDue(Command[None]):
    """To the outbox worker: a commit has made events due; their rows tell which."""


@dataclass(frozen=True, slots=True)
class HearAnnouncement(Command[TaskRef]):
    """To a task: the word that its assets are ready has arrived (``delivered``), or was given up.

    ``rows`` say the same of the event, and go into the step's commit.
    """

    delivered: bool
    rows: tuple[Row, ...]
