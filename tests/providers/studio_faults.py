"""A studio with faults: jobs that fail or stall, callbacks that are lost, repeated, reordered or wrongly signed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import trio

from holdfast.standins.studio.callbacks import CallbackSender, new_event_id
from holdfast.standins.studio.jobs import Job, OutputFile
from holdfast.standins.studio.renderer import Renderer


@dataclass(frozen=True, slots=True)
class StudioFaults:
    """The faults of one studio."""

    fail: str | None = None
    """End every job as failed with this message."""
    stall: bool = False
    """Begin jobs and never end them."""
    drop: bool = False
    """Send no callback at all."""
    duplicate: bool = False
    """Send every callback twice."""
    reorder: bool = False
    """Send a job's first progress again, as a new event, after its result."""
    wrong_signature: bool = False
    """Sign with an unknown secret."""


class FaultySender(CallbackSender):
    """Sends callbacks subject to ``faults``."""

    def __init__(
        self, name: str, secret: str, link: Callable[[OutputFile], str], *, faults: StudioFaults, **options: Any
    ) -> None:
        super().__init__(name, f"not {secret}" if faults.wrong_signature else secret, link, **options)
        self._faults = faults
        self._first: dict[str, Mapping[str, object]] = {}

    async def follow(self, job: Job) -> None:
        if self._faults.drop:
            return
        await super().follow(job)
        first = self._first.pop(job.id, None)
        if self._faults.reorder and first is not None and job.order.webhook is not None:
            await self.send(job.order.webhook, {**first, "event_id": new_event_id()})

    async def send(self, webhook: str, message: Mapping[str, object]) -> bool:
        self._first.setdefault(str(message["provider_ref"]), message)
        accepted = await super().send(webhook, message)
        if self._faults.duplicate:
            accepted = await super().send(webhook, message) or accepted
        return accepted


class FaultyRenderer(Renderer):
    """Renders jobs subject to ``faults``."""

    def __init__(self, secret: str, files_dir: Path, *, faults: StudioFaults, **options: Any) -> None:
        super().__init__(secret, files_dir, sender=partial(FaultySender, faults=faults), **options)
        self._faults = faults

    async def render(self, job: Job) -> None:
        if self._faults.stall:
            await trio.sleep_forever()
        if self._faults.fail is not None:
            job.fail("provider_error", self._faults.fail, self._now())
        else:
            await super().render(job)
