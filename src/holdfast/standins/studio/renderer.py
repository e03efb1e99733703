"""Run the studio's jobs and retain their results for a while.

Jobs run in the renderer's own nursery: a web application's nursery would end them at shutdown, and one failing task
in it would end the application. No job outlives the process; its caller finds it unknown and submits it again under
the same id.
"""

from __future__ import annotations

import contextlib
import mimetypes
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import structlog
import trio

from holdfast.ledger.clock import Now, utc_now
from holdfast.ledger.links import sign_link
from holdfast.standins.signed_sender import RETRY_DELAYS_S
from holdfast.standins.studio.callbacks import PROGRESS_EVERY_S, CallbackSender
from holdfast.standins.studio.jobs import Job, Order, OutputFile, measure
from holdfast.standins.studio.model import BadInput, NeedsSource, Prepare, Ready, RenderContext, Rendered
from holdfast.standins.studio.models import MODELS

WORKERS_COUNT = 2
WAITING_MAX_COUNT = 256
KEPT_MAX_COUNT = 1000
KEEP_S = 2 * 3600
LINK_LIFE_S = 900
EXPIRE_EVERY_S = 60

_FINISHED = re.compile(r"[0-9a-f]{32}\.[a-z]+\Z")
_OURS = re.compile(r"(?:[0-9a-f]{32}\.[a-z]+|incoming-\w+)\Z")
"""Names that the studio gives to files: no other file in its directory is ever removed."""
_log = structlog.get_logger(__name__)


class Busy(Exception):
    """Too many jobs are waiting, or the renderer is not running."""


class OtherOrder(Exception):
    """The id belongs to a job with another order."""


class UnknownModel(Exception):
    """The model does not exist."""


class Renderer:
    """Jobs by id. ``base_url`` is where its files are served; set it once the server listens.

    ``secret`` signs callbacks; a key derived from it signs links to files. ``sender`` sends the callbacks.
    """

    def __init__(
        self,
        secret: str,
        files_dir: Path,
        *,
        models: Mapping[str, Prepare] = MODELS,
        sender: Callable[..., CallbackSender] = CallbackSender,
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
        self.link_key = f"files:{secret}".encode()
        self._files_dir = files_dir
        self._models = models
        self._now = now
        self._keep_s = keep_s
        self._waiting_max_count = waiting_max_count
        self._kept_max_count = kept_max_count
        self._jobs: dict[str, Job] = {}
        self._files: dict[str, OutputFile] = {}
        self._nursery: trio.Nursery | None = None
        self._slots = trio.CapacityLimiter(WORKERS_COUNT)
        self._threads = trio.CapacityLimiter(WORKERS_COUNT)
        self._cleanup = trio.CapacityLimiter(1)
        self._sender = sender(
            "studio", secret, self.link, now=now, retry_delays_s=retry_delays_s, progress_every_s=progress_every_s
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run jobs until cancelled. Files of an earlier run remain while links to them are valid."""
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

        Raises :class:`OtherOrder`, :class:`UnknownModel`, :class:`BadInput` or :class:`Busy`.
        """
        digest = order.digest()
        known = self._jobs.get(job_id)
        if known is not None:
            if known.order_digest != digest:
                raise OtherOrder(job_id)
            return known, False
        prepare = self._models.get(order.model)
        if prepare is None:
            raise UnknownModel(order.model)
        if self._nursery is None or sum(not job.is_over for job in self._jobs.values()) >= self._waiting_max_count:
            raise Busy
        job = Job(job_id, order, digest, prepare(order.input), self._now())
        self._jobs[job_id] = job
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

    def file(self, name: str) -> Rendered | None:
        """Return a finished file by its name, of this run or an earlier one. Check the link before."""
        found = self._files.get(name)
        if found is not None:
            return Rendered(found.path, found.content_type)
        path = self._files_dir / name
        if not _FINISHED.match(name) or not path.is_file():
            return None
        return Rendered(path, mimetypes.guess_type(name)[0] or "application/octet-stream")

    def link(self, file: OutputFile) -> str:
        """Return a URL of the file that expires soon."""
        expires_at = self._now() + timedelta(seconds=LINK_LIFE_S)
        return f"{self.base_url}/files/{file.name}?{sign_link(file.name, expires_at, self.link_key)}"

    async def expire(self) -> None:
        """Delete jobs that ended long ago, and the oldest ended ones above the limit, with their files."""
        ended = [job for job in self._jobs.values() if job.ended_at is not None]
        oldest = self._now() - timedelta(seconds=self._keep_s)
        surplus = len(ended) - self._kept_max_count
        paths = []
        for job in [job for place, job in enumerate(ended) if place < surplus or _ended_before(job, oldest)]:
            del self._jobs[job.id]
            job.callbacks.cancel()
            for file in job.results:
                self._files.pop(file.name, None)
                paths.append(file.path)
        await trio.to_thread.run_sync(_remove, paths, limiter=self._cleanup)

    async def render(self, job: Job) -> None:
        """Render a job that has a slot, and end it. Raises :class:`BadInput`."""
        ready = job.ready
        if isinstance(ready, NeedsSource) and ready.source_url is not None:
            job.advance(0, "fetch")
            ready = await ready.fetch(self._files_dir)
        results = await trio.to_thread.run_sync(self._render_blocking, job, ready, limiter=self._threads)
        job.succeed(results, self._now())
        if job.status == "succeeded":
            self._files.update({file.name: file for file in results})
        else:
            await trio.to_thread.run_sync(_remove, [file.path for file in results], limiter=self._cleanup)

    async def _work(self, job: Job) -> None:
        """Run one job from start to end; any error ends this job alone."""
        with job.work:
            try:
                async with self._slots:
                    job.begin(self._now())
                    await self.render(job)
            except BadInput as fault:
                job.fail("invalid_upstream_input", str(fault), self._now())
            except Exception:
                _log.exception("studio_job_failed", job=job.id)
                job.fail("internal", "the studio could not render this", self._now())

    def _render_blocking(self, job: Job, ready: Ready) -> tuple[OutputFile, ...]:
        def report(percent: int, stage: str) -> None:
            trio.from_thread.check_cancelled()
            trio.from_thread.run_sync(job.advance, percent, stage)

        context = RenderContext(self._files_dir, report)
        try:
            return tuple(measure(rendered) for rendered in ready.render(context))
        except BaseException:
            _remove(context.files)
            raise

    def _clear_directory(self) -> None:
        """Remove files without a valid link; a service that crashed while fetching fetches its results again."""
        self._files_dir.mkdir(parents=True, exist_ok=True)
        oldest = self._now().timestamp() - LINK_LIFE_S
        ours = [path for path in self._files_dir.iterdir() if _OURS.match(path.name)]
        _remove([path for path in ours if not _FINISHED.match(path.name) or path.stat().st_mtime < oldest])


def _ended_before(job: Job, moment: datetime) -> bool:
    return job.ended_at is not None and job.ended_at < moment


def _remove(paths: Sequence[Path]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()
