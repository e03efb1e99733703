"""The studio's workshop: takes orders, renders them two at a time in threads, keeps results for a while.

Jobs run in the workshop's own nursery. A web application's nursery would cut them short at shutdown, and one
failing task in it would silently end the application's lifespan. Nothing of a job outlives the process: whoever
ordered it learns so by asking (unknown job) and orders again under the same id.
"""

from __future__ import annotations

import contextlib
import mimetypes
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path

import structlog
import trio

from holdfast.ledger.clock import Now, utc_now
from holdfast.ledger.links import sign_link
from holdfast.standins.posting import RETRY_DELAYS_S
from holdfast.standins.studio.callbacks import PROGRESS_EVERY_S, CallbackSender
from holdfast.standins.studio.catalogue import CRAFTS
from holdfast.standins.studio.craft import BadInput, NeedsSource, Prepare, Ready, RenderContext, Rendered
from holdfast.standins.studio.jobs import Job, Kept, Order, StudioFaults, keep

WORKERS_COUNT = 2
WAITING_MAX_COUNT = 256
KEPT_MAX_COUNT = 1000
KEEP_S = 2 * 3600
LINK_LIFE_S = 900
EXPIRE_EVERY_S = 60

_FINISHED = re.compile(r"[0-9a-f]{32}\.[a-z]+\Z")
_OURS = re.compile(r"(?:[0-9a-f]{32}\.[a-z]+|incoming-\w+)\Z")
"""Names the studio gives to files, so that nothing else in its directory is ever removed."""
_log = structlog.get_logger(__name__)


class Busy(Exception):
    """Too many jobs are waiting, or the workshop is closed."""


class OtherOrder(Exception):
    """The id is taken by a job with another order."""


class UnknownModel(Exception):
    """No such model here."""


class Renderer:
    """Jobs by id. ``base_url`` is where its files are served; set it once the server listens.

    ``secret`` signs callbacks and, derived apart, links to files.
    """

    def __init__(
        self,
        secret: str,
        files_dir: Path,
        *,
        name: str = "studio",
        faults: StudioFaults | None = None,
        crafts: Mapping[str, Prepare] | None = None,
        now: Now = utc_now,
        retry_delays_s: Sequence[float] = RETRY_DELAYS_S,
        progress_every_s: float = PROGRESS_EVERY_S,
        link_life_s: int = LINK_LIFE_S,
        keep_s: int = KEEP_S,
        waiting_max_count: int = WAITING_MAX_COUNT,
        kept_max_count: int = KEPT_MAX_COUNT,
    ) -> None:
        if not secret.strip():
            raise ValueError("the studio needs a secret to sign with")
        self.base_url = ""
        self.link_key = f"files:{secret}".encode()
        self._files_dir = files_dir
        self._faults = faults or StudioFaults()
        self._crafts = CRAFTS if crafts is None else crafts
        self._now = now
        self._link_life_s = link_life_s
        self._keep_s = keep_s
        self._waiting_max_count = waiting_max_count
        self._kept_max_count = kept_max_count
        self._jobs: dict[str, Job] = {}
        self._files: dict[str, Kept] = {}
        self._nursery: trio.Nursery | None = None
        self._places = trio.CapacityLimiter(WORKERS_COUNT)
        self._threads = trio.CapacityLimiter(WORKERS_COUNT)
        self._chores = trio.CapacityLimiter(1)
        self._courier = CallbackSender(
            name,
            secret,
            self.link,
            faults=self._faults,
            now=now,
            retry_delays_s=retry_delays_s,
            progress_every_s=progress_every_s,
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Work until cancelled. Files of an earlier life stay for as long as links to them are good."""
        await trio.to_thread.run_sync(self._clear_directory, limiter=self._chores)
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
                await self._courier.close()

    def submit(self, job_id: str, order: Order) -> tuple[Job, bool]:
        """Take an order; the same order under the same id is the same job. Returns the job and whether it is new.

        Raises :class:`OtherOrder`, :class:`UnknownModel`, :class:`BadInput` or :class:`Busy`.
        """
        digest = order.digest()
        known = self._jobs.get(job_id)
        if known is not None:
            if known.order_digest != digest:
                raise OtherOrder(job_id)
            return known, False
        prepare = self._crafts.get(order.model)
        if prepare is None:
            raise UnknownModel(order.model)
        if self._nursery is None or sum(not job.over for job in self._jobs.values()) >= self._waiting_max_count:
            raise Busy
        job = Job(job_id, order, digest, prepare(order.input), self._now())
        self._jobs[job_id] = job
        self._nursery.start_soon(self._work, job, name=f"studio:{job_id}")
        self._nursery.start_soon(self._courier.follow, job, name=f"studio:{job_id}:courier")
        return job, True

    def get(self, job_id: str) -> Job | None:
        """The job, if it is still remembered."""
        return self._jobs.get(job_id)

    def recent(self, most: int) -> list[Job]:
        """The newest jobs that are still remembered, newest first."""
        return list(islice(reversed(self._jobs.values()), most))

    def cancel(self, job_id: str) -> Job | None:
        """Stop a job at its next step; one that is over stays as it ended."""
        job = self._jobs.get(job_id)
        if job is not None:
            job.cancel(self._now())
        return job

    def file(self, name: str) -> Rendered | None:
        """A finished file by name, or one of an earlier life. Only for names that a link of ours vouches for."""
        kept = self._files.get(name)
        if kept is not None:
            return Rendered(kept.path, kept.content_type)
        path = self._files_dir / name
        if not _FINISHED.match(name) or not path.is_file():
            return None
        return Rendered(path, mimetypes.guess_type(name)[0] or "application/octet-stream")

    def link(self, kept: Kept) -> str:
        """A URL that fetches the file for a short while."""
        return self.base_url + self.path(kept)

    def path(self, kept: Kept) -> str:
        """The same without the studio's own address."""
        expires_at = self._now() + timedelta(seconds=self._link_life_s)
        return f"/files/{kept.name}?{sign_link(kept.name, expires_at, self.link_key)}"

    async def expire(self) -> None:
        """Forget jobs that ended long ago, and the oldest ended ones above the limit, with their files."""
        ended = [job for job in self._jobs.values() if job.ended_at is not None]
        oldest = self._now() - timedelta(seconds=self._keep_s)
        surplus = len(ended) - self._kept_max_count
        gone = [job for place, job in enumerate(ended) if place < surplus or _ended_before(job, oldest)]
        paths = []
        for job in gone:
            del self._jobs[job.id]
            job.telling.cancel()
            for kept in job.results:
                self._files.pop(kept.name, None)
                paths.append(kept.path)
        await trio.to_thread.run_sync(_remove, paths, limiter=self._chores)

    async def _work(self, job: Job) -> None:
        """One job from start to end; whatever goes wrong ends this job alone."""
        with job.work:
            try:
                async with self._places:
                    job.begin(self._now())
                    await self._render(job)
            except BadInput as fault:
                job.fail("invalid_upstream_input", str(fault), self._now())
            except Exception:
                _log.exception("studio_job_failed", job=job.id)
                job.fail("internal", "the studio could not render this", self._now())

    async def _render(self, job: Job) -> None:
        if self._faults.stall:
            await trio.sleep_forever()
        ready = job.ready
        if isinstance(ready, NeedsSource) and ready.source_url is not None:
            job.advance(0, "fetch")
            ready = await ready.fetch(self._files_dir)
        results = await trio.to_thread.run_sync(self._render_blocking, job, ready, limiter=self._threads)
        if self._faults.fail is not None:
            job.fail("provider_error", self._faults.fail, self._now())
        job.succeed(results, self._now())
        if job.status == "succeeded":
            self._files.update({kept.name: kept for kept in results})
        else:
            await trio.to_thread.run_sync(_remove, [kept.path for kept in results], limiter=self._chores)

    def _render_blocking(self, job: Job, ready: Ready) -> tuple[Kept, ...]:
        def report(percent: int, stage: str) -> None:
            trio.from_thread.check_cancelled()
            trio.from_thread.run_sync(job.advance, percent, stage)

        bench = RenderContext(self._files_dir, report)
        try:
            return tuple(keep(rendered) for rendered in ready.render(bench))
        except BaseException:
            _remove(bench.files)
            raise

    def _clear_directory(self) -> None:
        """Remove what no link leads to any more. A service that fell while fetching comes for its results again."""
        self._files_dir.mkdir(parents=True, exist_ok=True)
        oldest = self._now().timestamp() - self._link_life_s
        ours = [path for path in self._files_dir.iterdir() if _OURS.match(path.name)]
        _remove([path for path in ours if not _FINISHED.match(path.name) or path.stat().st_mtime < oldest])


def _ended_before(job: Job, moment: datetime) -> bool:
    return job.ended_at is not None and job.ended_at < moment


def _remove(paths: Sequence[Path]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()
