"""The worker of archives: writes all that is stored of an account into one ZIP, one account after the other.

Rows are read page by page, and contents block by block, into a file without a name: so memory stays small, and
nothing remains of an archive whose process ends. Its claim then lapses, and it is made again.
"""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import tempfile
import zipfile
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

import msgspec
import structlog
import trio

from holdfast.actors.workers.passes import ALWAYS, Schedule, repeat
from holdfast.ledger.values import Now, format_amount, format_time, new_id
from holdfast.persistence.claims.archives import (
    KEPT,
    PARTS,
    USAGE,
    ArchivePart,
    claim_archive,
    finish_archive,
    read_part,
    renew_archive,
)
from holdfast.persistence.claims.contents import Content, ContentClaims
from holdfast.persistence.server.database import Database
from holdfast.providers.storage.base import AssetMissing, AssetStore, asset_key
from holdfast.providers.storage.sniffing import EXTENSIONS, UNKNOWN_TYPE

log = structlog.get_logger(__name__)

LOOK_S: Final = 2.0
MAKE_BOUND_S: Final = 3600.0
CONTENTS_BYTES_MAX: Final = 1024 * 1024 * 1024
"""How much of results and files an archive has; the rest is only named in it."""
RENEW_S: Final = 60.0
HASH_BYTES: Final = 256 * 1024
_CONTENTS: Final = {"results": "asset_id", "files": "file_id"}
"""The parts whose rows have a content, with the name of their id."""
_README: Final = (
    "One file for each kind of record, a line of JSON for each; amounts that end in _micro are millionths of a "
    "credit. usage.csv is the usage log. A body in payment_events is what the card provider has sent, in "
    "hexadecimal digits after \\x. Secrets of sessions and keys are stored nowhere, and so are not here."
)

_THREADS: Final = trio.CapacityLimiter(2)
"""Apart from those of requests: an archive may take minutes."""


class NotWanted(Exception):
    """The archive is not to be made any more."""


class ArchiveWorker:
    """Makes one archive at a time, the one that was asked for first."""

    def __init__(
        self,
        *,
        database: Database,
        store: AssetStore,
        claims: ContentClaims,
        directory: Path,
        now: Now,
        contents_bytes_max: int = CONTENTS_BYTES_MAX,
        schedule: Schedule = ALWAYS,
    ) -> None:
        self._database = database
        self._store = store
        self._claims = claims
        self._directory = directory
        self._now = now
        self._contents_bytes_max = contents_bytes_max
        self._schedule = schedule

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Make what was asked for until cancelled."""
        task_status.started()
        await repeat(
            self.make_next,
            every_s=LOOK_S,
            name="making of archives",
            bound_s=MAKE_BOUND_S,
            schedule=self._schedule,
        )

    async def make_next(self) -> bool:
        """Make the next archive; return whether there was one. Raises ``DatabaseAway``."""
        claimed = await self._database.work(claim_archive, self._now())
        if claimed is None:
            return False
        account_id, archive_id = claimed
        try:
            await _Archive(self._database, self._store, self._now, account_id, archive_id).make(
                self._directory, self._contents_bytes_max, self._keep
            )
        except (OSError, NotWanted) as fault:
            # Its claim lapses.
            reason = fault.strerror if isinstance(fault, OSError) else str(fault)
            log.warning("archive not made", account_id=account_id, reason=reason)
        else:
            log.info("archive made", account_id=account_id)
        return True

    async def _keep(self, file: IO[bytes]) -> tuple[str, int]:
        """Store an archive for as long as it is kept; return its hash and its length. Raises ``OSError``."""
        sha256, length = await trio.to_thread.run_sync(_measured, file, limiter=_THREADS)
        content, until = Content(sha256, UNKNOWN_TYPE), self._now() + KEPT + timedelta(hours=1)
        if not await trio.to_thread.run_sync(self._claims.claim, content, until, limiter=_THREADS):
            raise OSError(errno.EBUSY, "the same content is being deleted")
        await trio.to_thread.run_sync(self._store.put, file, sha256, EXTENSIONS[UNKNOWN_TYPE], limiter=_THREADS)
        return sha256, length


class _Archive:
    """One archive in the making."""

    def __init__(self, database: Database, store: AssetStore, now: Now, account_id: str, archive_id: str) -> None:
        self._database = database
        self._store = store
        self._now = now
        self._account_id = account_id
        self._archive_id = archive_id
        self._renewed_at = trio.current_time()
        self._counts: dict[str, int] = {}
        self._included: list[str] = []
        self._omitted: list[dict[str, str]] = []
        self._left_bytes = 0

    async def make(self, directory: Path, contents_bytes_max: int, keep: Callable[[IO[bytes]], Any]) -> None:
        """Write all of it, have it stored with ``keep``, and record that.

        Raises ``OSError`` and :class:`NotWanted`.
        """
        self._left_bytes = contents_bytes_max
        await trio.to_thread.run_sync(partial(directory.mkdir, parents=True, exist_ok=True), limiter=_THREADS)
        with tempfile.TemporaryFile(dir=directory) as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                for part in PARTS:
                    await self._write_lines(archive, part)
                await self._write_usage(archive)
                for part in PARTS:
                    if part.name in _CONTENTS:
                        await self._write_contents(archive, part)
                manifest = {
                    "readme": _README,
                    "account_id": self._account_id,
                    "made_at": format_time(self._now()),
                    "records": self._counts,
                    "included_contents": self._included,
                    "omitted_contents": self._omitted,
                }
                archive.writestr("manifest.json", msgspec.json.format(msgspec.json.encode(manifest), indent=2))
            file.flush()
            await self._renew(always=True)
            sha256, length = await keep(file)
        record = partial(finish_archive, sha256=sha256, bytes_=length)
        await self._database.work(record, self._account_id, self._archive_id, new_id("chg"), self._now())

    async def _write_lines(self, archive: zipfile.ZipFile, part: ArchivePart) -> None:
        with archive.open(f"{part.name}.jsonl", "w", force_zip64=True) as out:
            async for found in self._pages(part):
                lines = "".join(f"{row.as_json}\n" for row in found).encode()
                await trio.to_thread.run_sync(out.write, lines, limiter=_THREADS)

    async def _write_usage(self, archive: zipfile.ZipFile) -> None:
        with archive.open("usage.csv", "w", force_zip64=True) as out:
            names = [name.replace("cost_micro", "cost") for name in USAGE.columns]
            out.write((",".join(names) + "\r\n").encode())
            async for found in self._pages(USAGE):
                text = io.StringIO()
                csv.writer(text).writerows(map(_usage_cells, found))
                await trio.to_thread.run_sync(out.write, text.getvalue().encode(), limiter=_THREADS)

    async def _write_contents(self, archive: zipfile.ZipFile, part: ArchivePart) -> None:
        async for found in self._pages(part, is_counted=False):
            for row in found:
                content_id = getattr(row, _CONTENTS[part.name])
                name = f"{part.name}/{content_id}.{EXTENSIONS[row.content_type]}"
                if row.expires_at <= self._now():
                    self._omitted.append({"name": name, "reason": "expired"})
                elif row.bytes > self._left_bytes:
                    self._omitted.append({"name": name, "reason": "too large for this archive"})
                else:
                    await self._write_content(archive, name, row)

    async def _write_content(self, archive: zipfile.ZipFile, name: str, row: Any) -> None:
        try:
            reader = await self._store.open(asset_key(row.sha256, EXTENSIONS[row.content_type]))
        except AssetMissing:
            self._omitted.append({"name": name, "reason": "deleted"})
            return
        info = zipfile.ZipInfo(name)  # media do not get smaller
        async with reader:
            with archive.open(info, "w", force_zip64=True) as out:
                async for block in reader:
                    await trio.to_thread.run_sync(out.write, block, limiter=_THREADS)
                    await self._renew()
        self._left_bytes -= row.bytes
        self._included.append(name)

    async def _pages(self, part: ArchivePart, *, is_counted: bool = True) -> Any:
        after, begun = None, False
        while after is not None or not begun:
            found, after = await self._database.read(read_part, part, self._account_id, after)
            begun = True
            if is_counted:
                self._counts[part.name] = self._counts.get(part.name, 0) + len(found)
            if found:
                yield found
            await self._renew()

    async def _renew(self, *, always: bool = False) -> None:
        """Renew the claim from time to time. Raises :class:`NotWanted`."""
        if not always and trio.current_time() - self._renewed_at < RENEW_S:
            return
        self._renewed_at = trio.current_time()
        if not await self._database.work(renew_archive, self._account_id, self._archive_id, self._now()):
            raise NotWanted("it is not to be made any more")


def _usage_cells(row: Any) -> list[object]:
    cells = []
    for name in USAGE.columns:
        value = getattr(row, name)
        if name == "cost_micro":
            value = format_amount(value)
        elif isinstance(value, datetime):
            value = format_time(value)
        # A spreadsheet takes what begins with these signs for a formula.
        elif isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
            value = f"'{value}"
        cells.append(value)
    return cells


def _measured(file: IO[bytes]) -> tuple[str, int]:
    """Return the hash and the length of a file, which is then at its start."""
    file.seek(0)
    digest, length = hashlib.sha256(), 0
    while block := file.read(HASH_BYTES):
        digest.update(block)
        length += len(block)
    file.seek(0)
    return digest.hexdigest(), length
