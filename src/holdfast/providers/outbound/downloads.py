"""Download a provider's output: from a checked address, bounded, hashed, and of the type it claims to be.

The result is a value either way. A refusal is ``permanent`` if downloading the same URL again cannot help; a new
URL from the provider may.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import tempfile
from collections.abc import AsyncIterator, Set
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Literal

import trio

from holdfast.providers.outbound.connection_pool import Response
from holdfast.providers.outbound.faults import BodyTooLarge
from holdfast.providers.outbound.guarded import Blocked, GuardedClient, Origin, Unreachable
from holdfast.providers.storage.leftovers import clear_leftovers
from holdfast.providers.storage.sniffing import (
    HEAD_BYTES,
    MEDIA_TYPES,
    NotMedia,
    TooManyPixels,
    measure,
    plain_type,
    sniff,
)
from holdfast.providers.storage.truncation import is_complete

BYTES_MAX = 256 * 1024 * 1024
TOTAL_TIMEOUT_S = 300.0
WRITE_BLOCK_BYTES = 256 * 1024
THREADS_MAX_COUNT = 4
MEASURED_MAX_COUNT = 2
"""How many files are measured at once, apart from the threads that write."""

DownloadCode = Literal[
    "too_large", "bad_type", "blocked_address", "not_found", "mismatch", "unreachable", "storage_full"
]

_UNDECLARED = frozenset({None, "application/octet-stream", "binary/octet-stream"})
_threads = trio.CapacityLimiter(THREADS_MAX_COUNT)
_measuring = trio.CapacityLimiter(MEASURED_MAX_COUNT)


@dataclass(frozen=True, slots=True)
class Downloaded:
    """A downloaded file; the caller stores or removes it."""

    path: Path
    sha256: str
    bytes: int
    content_type: str
    width: int | None
    height: int | None
    duration_s: float | None


@dataclass(frozen=True, slots=True)
class DownloadRefused:
    """Why there is no file."""

    code: DownloadCode
    message: str
    permanent: bool


@dataclass(frozen=True, slots=True)
class DeclaredOutput:
    """What is allowed, and what the provider claims: limits first, then claims, each checked if given."""

    bytes_max: int = BYTES_MAX
    content_types: frozenset[str] = MEDIA_TYPES
    content_type: str | None = None
    sha256: str | None = None
    bytes: int | None = None


class _Refuse(Exception):
    def __init__(self, code: DownloadCode, message: str, *, permanent: bool = True) -> None:
        super().__init__(message)
        self.refusal = DownloadRefused(code, message, permanent)


class _Sink:
    """A temporary file that is hashed while it is written; its methods block."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = tempfile.NamedTemporaryFile(  # noqa: SIM115 - closed by finish or discard
            dir=directory, prefix="incoming-", delete=False
        )
        self.path = Path(self._file.name)
        self.head = b""
        self.size_bytes = 0
        self._digest = hashlib.sha256()

    def write(self, block: bytes) -> None:
        if len(self.head) < HEAD_BYTES:
            self.head += block[: HEAD_BYTES - len(self.head)]
        self._digest.update(block)
        self._file.write(block)
        self.size_bytes += len(block)

    def finish(self, claim: DeclaredOutput, declared: str | None) -> Downloaded:
        self._file.close()
        sha256 = self._digest.hexdigest()
        if claim.bytes is not None and claim.bytes != self.size_bytes:
            raise _Refuse("mismatch", f"{self.size_bytes} bytes were received, but {claim.bytes} were declared")
        if claim.sha256 is not None and claim.sha256.lower() != sha256:
            raise _Refuse("mismatch", "the content does not have the declared hash")
        content_type = _agreed_type(self.head, claim, declared)
        try:
            found = measure(self.path, content_type)
        except NotMedia as fault:
            raise _Refuse("bad_type", str(fault)) from fault
        except TooManyPixels as fault:
            raise _Refuse("too_large", "the image has too many pixels") from fault
        if not is_complete(self.path, content_type):
            raise _Refuse("bad_type", "the content is truncated")
        return Downloaded(
            self.path, sha256, self.size_bytes, content_type, found.width, found.height, found.duration_s
        )

    def discard(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self.path.unlink()


async def download(
    client: GuardedClient,
    url: str,
    directory: Path,
    claim: DeclaredOutput | None = None,
    *,
    total_timeout_s: float = TOTAL_TIMEOUT_S,
    only: Set[Origin] | None = None,
    requester: str = "",
) -> Downloaded | DownloadRefused:
    """Download ``url`` into a new file in ``directory``. Errors of the network or the provider are not raised.

    ``only`` and ``requester`` are those of :meth:`GuardedClient.open`.
    """
    claim = claim or DeclaredOutput()
    try:
        async with _sink(directory) as sink:
            with trio.move_on_after(total_timeout_s) as whole:
                async with client.open("GET", url, only=only, requester=requester) as response:
                    declared = _check_answer(response, claim)
                    await _receive(response, sink, claim.bytes_max)
            if whole.cancelled_caught:
                raise _Refuse("unreachable", "the download took too long", permanent=False)
            return await trio.to_thread.run_sync(sink.finish, claim, declared, limiter=_measuring)
    except _Refuse as refused:
        return refused.refusal
    except BodyTooLarge:
        return DownloadRefused("too_large", f"more than {claim.bytes_max} bytes", permanent=True)
    except Blocked as fault:
        return DownloadRefused("blocked_address", str(fault), permanent=True)
    except Unreachable as fault:
        return DownloadRefused("unreachable", str(fault), permanent=False)
    except OSError as fault:
        return DownloadRefused("storage_full", f"cannot write: {fault.strerror}", permanent=False)


async def accept_inline(
    data: str, directory: Path, claim: DeclaredOutput | None = None
) -> Downloaded | DownloadRefused:
    """Write an output that an update contained as base64, with the same checks as for a downloaded one."""
    claim = claim or DeclaredOutput()
    if len(data) > (claim.bytes_max + 2) // 3 * 4:
        return DownloadRefused("too_large", f"more than {claim.bytes_max} bytes", permanent=True)

    def take(sink: _Sink) -> Downloaded:
        try:
            content = base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError) as fault:
            raise _Refuse("bad_type", "the data is not base64") from fault
        if len(content) > claim.bytes_max:
            raise _Refuse("too_large", f"more than {claim.bytes_max} bytes")
        sink.write(content)
        return sink.finish(claim, None)

    try:
        async with _sink(directory) as sink:
            return await trio.to_thread.run_sync(take, sink, limiter=_measuring)
    except _Refuse as refused:
        return refused.refusal
    except OSError as fault:
        return DownloadRefused("storage_full", f"cannot write: {fault.strerror}", permanent=False)


async def remove(downloaded: Downloaded) -> None:
    """Remove a file, even if the caller is being cancelled."""
    with trio.CancelScope(shield=True):
        await trio.to_thread.run_sync(partial(downloaded.path.unlink, missing_ok=True), limiter=_threads)


async def clear_directory(directory: Path) -> None:
    """Create ``directory`` if it is missing, and remove partial files of earlier processes. Raises ``OSError``."""
    await trio.to_thread.run_sync(clear_leftovers, directory, limiter=_threads)


@contextlib.asynccontextmanager
async def _sink(directory: Path) -> AsyncIterator[_Sink]:
    """Create a temporary file, removed unless the block succeeds."""
    sink = await trio.to_thread.run_sync(_Sink, directory, limiter=_threads)
    try:
        yield sink
    except BaseException:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(sink.discard, limiter=_threads)
        raise


async def _receive(response: Response, sink: _Sink, bytes_max: int) -> None:
    waiting, received = bytearray(), 0
    while block := await response.receive():
        received += len(block)
        if received > bytes_max:
            raise BodyTooLarge(bytes_max)
        waiting += block
        if len(waiting) >= WRITE_BLOCK_BYTES:
            full, waiting = bytes(waiting), bytearray()
            await trio.to_thread.run_sync(sink.write, full, limiter=_threads)
    await trio.to_thread.run_sync(sink.write, bytes(waiting), limiter=_threads)


def _check_answer(response: Response, claim: DeclaredOutput) -> str | None:
    """Check a response by its headers; return the content type it declares, or None."""
    status = response.status
    if status in (404, 410):
        raise _Refuse("not_found", f"the provider answered {status}")
    if status in (401, 403):
        raise _Refuse("not_found", f"the provider answered {status}: the link may have expired")
    if status != 200:
        permanent = 300 <= status < 500 and status not in (408, 425, 429)
        raise _Refuse("unreachable", f"the provider answered {status}", permanent=permanent)
    if (response.header("content-encoding") or "identity").lower() != "identity":
        raise _Refuse("bad_type", "the response has a Content-Encoding, which was not requested")
    declared = plain_type(response.header("content-type"))
    if declared not in _UNDECLARED and declared not in claim.content_types:
        raise _Refuse("bad_type", "the content type is not one that is hosted")
    length = response.header("content-length")
    if length is not None and length.isascii() and length.isdigit():
        if int(length[:20]) > claim.bytes_max:
            raise _Refuse("too_large", f"more than {claim.bytes_max} bytes")
        if claim.bytes is not None and int(length[:20]) != claim.bytes:
            raise _Refuse("mismatch", f"{length[:20]} bytes by Content-Length, but {claim.bytes} were declared")
    return declared


def _agreed_type(head: bytes, claim: DeclaredOutput, declared: str | None) -> str:
    found = sniff(head)
    if found is None or found not in claim.content_types:
        raise _Refuse("bad_type", "the content is not of a type that is hosted")
    for declared_type in (declared, plain_type(claim.content_type)):
        if declared_type not in _UNDECLARED and declared_type != found:
            raise _Refuse("bad_type", f"the content is {found}, not the declared type")
    return found
