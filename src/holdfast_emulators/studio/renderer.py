"""Run the studio's jobs and retain their results for a while.

Jobs run in the renderer's own nursery: a web application's nursery would end them at shutdown, and one failing task
in it would end the application. No job outlives the process; its caller finds it unknown and submits it again under
the same id.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import MappingProxyType

import msgspec
import structlog
import trio

from holdfast.ledger.values import Now, utc_now
from holdfast.providers.outbound.guarded import Origin
from holdfast.providers.outbound.urls import parse_url
from holdfast_emulators.serving import RETRY_DELAYS_S
from holdfast_emulators.studio.drawing import Clip, Poster
from holdfast_emulators.studio.edit import Edit
from holdfast_emulators.studio.jobs import PROGRESS_EVERY_S, CallbackSender, Job, Order
from holdfast_emulators.studio.model import BadInput, OutputFile, Prepare, RenderContext
from holdfast_emulators.studio.tone import Tone

WORKERS_COUNT = 2
WAITING_MAX_COUNT = 256
KEPT_MAX_COUNT = 1000
KEEP_S = 2 * 3600
EXPIRE_EVERY_S = 60

MODELS: Mapping[str, Prepare] = MappingProxyType(
    {
        "poster": partial(msgspec.convert, type=Poster),
        "edit": partial(msgspec.convert, type=Edit),
        "tone": partial(msgspec.convert, type=Tone),
        "clip": partial(msgspec.convert, type=Clip),
    }
)
"""The models by name."""

_FINISHED = re.compile(r"[0-9a-f]{32}\.[a-z]+\Z")
_log = structlog.get_logger(__name__)


class OrderRefused(Exception):
    """An order is not accepted; ``status`` is that of the response."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class Renderer:
    """Jobs by id. ``base_url`` is where its files are served; set it once the server listens.

    ``secret`` signs callbacks. Files are open to those who have their URLs, which cannot be guessed.
    """

    def __init__(
        self,
        secret: str,
        files_dir: Path,
        *,
        models: Mapping[str, Prepare] = MODELS,
        now: Now = utc_now,
        retry_delays_s: Sequence[float] = RETRY_DELAYS_S,
        progress_every_s: float = PROGRESS_EVERY_S,
        keep_s: int = KEEP_S,
        waiting_max_count: int = WAITING_MAX_COUNT,
        kept_max_count: int = KEPT_MAX_COUNT,
    ) -> None:
        if not secret.strip():
            raise ValueError("the studio needs a secret to sign with")
        self.base_url = ""
        self._files_dir = files_dir
        self._models = models
        self._now = now
        self._keep_s = keep_s
        self._waiting_max_count = waiting_max_count
        self._kept_max_count = kept_max_count
        self._jobs: dict[str, Job] = {}
        self._nursery: trio.Nursery | None = None
        self._threads = trio.CapacityLimiter(WORKERS_COUNT)
        self._cleanup = trio.CapacityLimiter(1)
        self._sender = CallbackSender(
            secret, self.link, now=now, retry_delays_s=retry_delays_s, progress_every_s=progress_every_s
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run jobs until cancelled. Files of an earlier run remain as long as those of this one."""
        await trio.to_thread.run_sync(self._clear_directory, limiter=self._cleanup)
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                task_status.started()
                while True:
                    await trio.sleep(EXPIRE_EVERY_S)
                    await self.expire()
        finally:
            self._nursery = None
            with trio.CancelScope(shield=True):
                await self._sender.close()

    def submit(self, job_id: str, order: Order) -> tuple[Job, bool]:
        """Start a job, or return the one with the same id and order; also returns whether it is new.

        Raises :class:`OrderRefused`.
        """
        known = self._jobs.get(job_id)
        if known is not None:
            if known.order != order:
                raise OrderRefused(409, "this id belongs to another order")
            return known, False
        prepare = self._models.get(order.model)
        if prepare is None:
            raise OrderRefused(404, "no such model")
        try:
            checked = prepare(order.input)
        except msgspec.ValidationError as fault:
            raise OrderRefused(422, str(fault)) from fault
        if self._nursery is None or sum(not job.is_over for job in self._jobs.values()) >= self._waiting_max_count:
            raise OrderRefused(503, "too many jobs are waiting")
        job = self._jobs[job_id] = Job(job_id, order, checked)
        self._nursery.start_soon(self._work, job, name=f"studio:{job_id}")
        self._nursery.start_soon(self._sender.follow, job, name=f"studio:{job_id}:callbacks")
        return job, True

    def get(self, job_id: str) -> Job | None:
        """Return a job, or None if it is unknown or deleted."""
        return self._jobs.get(job_id)

    def cancel(self, job_id: str) -> Job | None:
        """Stop a job at its next step; an ended one stays as it is."""
        job = self._jobs.get(job_id)
        if job is not None:
            job.cancel(self._now())
        return job

    def file(self, name: str) -> Path | None:
        """Return a finished file by its name, of this run or an earlier one."""
        path = self._files_dir / name
        return path if _FINISHED.match(name) and path.is_file() else None

    def link(self, file: OutputFile) -> str:
        """Return the URL of the file."""
        return f"{self.base_url}/files/{file.path.name}"

    async def expire(self) -> None:
        """Delete jobs that ended long ago, and the oldest ended ones above the limit, with their files."""
        oldest = self._now() - timedelta(seconds=self._keep_s)
        ended = [(job, job.ended_at) for job in self._jobs.values() if job.ended_at is not None]
        surplus = len(ended) - self._kept_max_count
        gone = [job for number, (job, ended_at) in enumerate(ended) if number < surplus or ended_at < oldest]
        for job in gone:
            del self._jobs[job.id]
        paths = [file.path for job in gone for file in job.results]
        await trio.to_thread.run_sync(_remove, paths, limiter=self._cleanup)

    async def _work(self, job: Job) -> None:
        """Run one job from start to end; any error ends this job alone."""
        with job.rendering:
            try:
                await trio.to_thread.run_sync(self._render, job, limiter=self._threads)
            except BadInput as fault:
                job.fail("invalid_upstream_input", str(fault), self._now())
            except Exception:
                _log.exception("job failed", job=job.id)
                job.fail("internal", "the studio could not render this", self._now())

    def _render(self, job: Job) -> None:
        """Render a job and end it, in a thread; its files are removed if it does not succeed."""

        def report(percent: int, stage: str) -> None:
            trio.from_thread.check_cancelled()
            trio.from_thread.run_sync(job.advance, percent, stage)

        context = RenderContext(self._files_dir, report, service=_origin_of(job.order.webhook))
        try:
            trio.from_thread.run_sync(job.begin, self._now())
            results = tuple(job.checked.render(context))
            trio.from_thread.run_sync(job.succeed, results, self._now())
        finally:
            if job.status != "succeeded":
                _remove(context.files)

    def _clear_directory(self) -> None:
        """Remove unfinished and old files; a service that crashed while fetching fetches its results again."""
        self._files_dir.mkdir(parents=True, exist_ok=True)
        oldest = self._now().timestamp() - self._keep_s
        ours = [path for path in self._files_dir.iterdir() if _FINISHED.match(path.name)]
        _remove([path for path in ours if path.stat().st_mtime < oldest])


def _origin_of(webhook: str | None) -> frozenset[Origin]:
    """Return the origin of the service that takes a job's callbacks."""
    if webhook is None:
        return frozenset()
    target = parse_url(webhook)
    return frozenset({(target.host, target.port)})


def _remove(paths: Sequence[Path]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()
