"""Provider checks in this service: with its catalog's providers, its callbacks' rows and its download client."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import trio

from holdfast.ledger.tasks.provider_update import Output, ProviderUpdate
from holdfast.ledger.values import Now, new_id
from holdfast.persistence.operators.records import add_check_callback, check_callbacks
from holdfast.persistence.records.operator_tables import CheckCallbackRow
from holdfast.persistence.server.database import Database
from holdfast.providers.media.base import Job
from holdfast.providers.media.provider_check import CHECK_ATTEMPT, CheckCallback, CheckStep, ProviderCheck
from holdfast.providers.outbound.downloads import (
    Downloaded,
    DownloadRefused,
    ExpectedOutput,
    accept_inline,
    download,
)
from holdfast.providers.outbound.guarded import GuardedClient
from holdfast.wiring.provider_registry import ProviderRegistry

FETCH_S = 30.0
CHECKS_MAX = 2
"""How many checks run at once."""


class JobChecks:
    """Runs checks.

    ``callback_url`` returns the URL for a provider's callbacks about a check, given both names; ``new_id`` returns
    a new check's id.
    """

    def __init__(
        self,
        database: Database,
        registry: ProviderRegistry,
        downloads: GuardedClient,
        *,
        now: Now,
        callback_url: Callable[[str, str], str],
        new_id: Callable[[], str],
    ) -> None:
        self._database = database
        self._registry = registry
        self._downloads = downloads
        self._now = now
        self._callback_url = callback_url
        self._new_id = new_id
        self._limiter = trio.CapacityLimiter(CHECKS_MAX)

    def charges(self, provider: str) -> bool | None:
        """Whether a provider charges for calls; None if there is no such provider."""
        found = self._registry.providers.get(provider)
        return None if found is None else not found.probes_when_idle

    async def record_callback(self, check_id: str, *, update: ProviderUpdate | None, refused: str | None) -> None:
        """Store a callback about a check's job. Raises ``DatabaseAway``."""
        encoded = None
        if update is not None:
            # A file inside the update is not stored; that it came is.
            outputs = tuple(msgspec.structs.replace(each, data=each.data and "") for each in update.outputs)
            encoded = msgspec.json.encode(msgspec.structs.replace(update, outputs=outputs))
        row = CheckCallbackRow(new_id("cbk"), check_id, self._now(), refused, encoded)
        await self._database.work(add_check_callback, row)

    async def run(
        self, provider: str, upstream_model: str, job_input: Mapping[str, object], *, wait_s: float
    ) -> list[CheckStep]:
        """Check a provider that exists with one job. Raises ``DatabaseAway``."""
        begun = self._now()
        check_id = self._new_id()
        url = self._registry.url_of(provider)
        assert url is not None

        async def received() -> Sequence[CheckCallback]:
            found = await self._database.read(check_callbacks, check_id)
            return [
                CheckCallback(
                    (row.at - begun).total_seconds(),
                    None if row.update is None else msgspec.json.decode(row.update, type=ProviderUpdate),
                    row.refused,
                )
                for row in found
            ]

        async def fetch(output: Output) -> tuple[bool, str]:
            try:
                return await self._fetch(provider, output)
            except OSError as fault:
                return False, f"output {output.index} cannot be written: {fault.strerror}"

        job = Job(check_id, CHECK_ATTEMPT, upstream_model, job_input, self._callback_url(provider, check_id))
        check = ProviderCheck(
            self._registry.providers[provider], job, url=url, received=received, fetch=fetch, wait_s=wait_s
        )
        async with self._limiter:
            return await check.run()

    async def _fetch(self, provider: str, output: Output) -> tuple[bool, str]:
        """Download an output, check it as hosting would, and discard it."""
        expected = ExpectedOutput(content_type=output.content_type, sha256=output.sha256, bytes=output.bytes)
        if output.url is None:
            if not output.data:
                return True, f"output {output.index} came inside a callback"
            found = await accept_inline(output.data, expected, _described)
        else:
            with tempfile.TemporaryDirectory(prefix="holdfast-check-") as folder:
                found = await download(
                    self._downloads,
                    output.url,
                    Path(folder),
                    expected,
                    _described,
                    total_timeout_s=FETCH_S,
                    only=self._registry.origins_of(provider),
                )
        if isinstance(found, DownloadRefused):
            return False, f"output {output.index} cannot be used: {found.message}"
        return True, f"output {output.index} is {found}"


def _described(file: Downloaded) -> str:
    return f"{file.content_type} of {file.bytes:,} bytes"
