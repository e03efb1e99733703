"""Download a provider's output: from a checked address, bounded, hashed, and of the type it is said to be.

The result is a value either way. A refusal is ``permanent`` if downloading the same URL again cannot help; a new
URL from the provider may.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import threading
from collections.abc import Callable, Set
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import trio

from holdfast.providers.outbound.connection_pool import BodyTooLarge, Response, TransportFault
from holdfast.providers.outbound.guarded import Blocked, GuardedClient, Origin
from holdfast.providers.storage.sniffing import (
    HEAD_BYTES,
    MEDIA_TYPES,
    NotMedia,
    TooManyPixels,
    is_complete,
    measure,
    opened,
    plain_type,
    sniff,
)
from holdfast.providers.storage.spool import MEMORY_BYTES_MAX, Content, Spool

if TYPE_CHECKING:
    from outcome import Outcome

BYTES_MAX = 256 * 1024 * 1024
TOTAL_TIMEOUT_S = 300.0
THREADS_MAX_COUNT = 16
MEASURED_MAX_COUNT = 2
"""How many of the threads measure a file at once."""

T = TypeVar("T")
DownloadCode = Literal["too_large", "bad_type", "blocked_address", "not_found", "mismatch", "unreachable"]

_UNDECLARED = frozenset({None, "application/octet-stream", "binary/octet-stream"})
_threads = trio.CapacityLimiter(THREADS_MAX_COUNT)
_measuring = threading.BoundedSemaphore(MEASURED_MAX_COUNT)


@dataclass(frozen=True, slots=True)
class Downloaded:
    """A checked output, whose content lasts as long as its use."""

    content: Content
    sha256: str
    bytes: int
    content_type: str
    width: int | None
    height: int | None
    duration_s: float | None


Use = Callable[[Downloaded], T]
"""What is done with a checked output; it blocks, in the thread that has checked it."""


@dataclass(frozen=True, slots=True)
class DownloadRefused:
    """Why there is no file."""

    code: DownloadCode
    message: str
    permanent: bool


@dataclass(frozen=True, slots=True)
class ExpectedOutput:
    """What an output must be: within our limits (the first two fields), and what its provider says, if anything."""

    bytes_max: int = BYTES_MAX
    content_types: frozenset[str] = MEDIA_TYPES
    content_type: str | None = None
    sha256: str | None = None
    bytes: int | None = None


class _Refuse(Exception):
    def __init__(self, code: DownloadCode, message: str, *, permanent: bool = True) -> None:
        super().__init__(message)
        self.refusal = DownloadRefused(code, message, permanent)


async def download(
    client: GuardedClient,
    url: str,
    directory: Path,
    expected: ExpectedOutput,
    use: Use[T],
    *,
    total_timeout_s: float = TOTAL_TIMEOUT_S,
    only: Set[Origin] | None = None,
    requester: str = "",
) -> T | DownloadRefused:
    """Download ``url``, check it and return what ``use`` returns; the checks and ``use`` run in one thread.

    Large outputs are written to a file in ``directory``. Errors of the network or the provider are not raised, an
    ``OSError`` of that file is. A cancelled caller does not wait for ``use`` to end. ``only`` and ``requester`` are
    those of :meth:`GuardedClient.open`.
    """
    spool = Spool(directory)
    blocks: list[bytes] = []
    waiting_bytes = size_bytes = 0
    is_finishing = False
    try:
        ends_at = trio.current_time() + total_timeout_s
        with await client.open("GET", url, only=only, requester=requester, ends_at=ends_at) as response:
            declared = _check_answer(response, expected)
            while block := await response.receive():
                size_bytes += len(block)
                if size_bytes > expected.bytes_max:
                    raise BodyTooLarge(expected.bytes_max)
                blocks.append(block)
                waiting_bytes += len(block)
                if waiting_bytes > MEMORY_BYTES_MAX:
                    await trio.to_thread.run_sync(_write, spool, blocks, limiter=_threads)
                    blocks, waiting_bytes = [], 0

        def finish() -> T:
            try:
                _write(spool, blocks)
                return use(_checked(spool.finish(), spool.sha256, size_bytes, expected, declared))
            finally:
                spool.close()

        is_finishing = True
        return await _in_thread(finish)
    except _Refuse as refused:
        return refused.refusal
    except BodyTooLarge:
        return DownloadRefused("too_large", f"more than {expected.bytes_max} bytes", permanent=True)
    except Blocked as fault:
        return DownloadRefused("blocked_address", str(fault), permanent=True)
    except TransportFault as fault:
        return DownloadRefused("unreachable", type(fault).__name__, permanent=False)
    except trio.TooSlowError:
        return DownloadRefused("unreachable", "the download took too long", permanent=False)
    finally:
        if not is_finishing:
            # Otherwise its thread does, which a cancelled caller leaves running.
            spool.close()


async def _in_thread(job: Callable[[], T]) -> T:
    """Return what ``job`` does in a thread; a cancelled caller does not wait for its end.

    As ``trio.to_thread.run_sync``, but that names the thread after each job and back again, by system calls that
    hand the interpreter over between thread and loop each time. They cost more than a small output's other calls.
    """
    caller, borrower, is_waiting = trio.lowlevel.current_task(), object(), True
    token = trio.lowlevel.current_trio_token()

    def report(result: Outcome[T]) -> None:
        _threads.release_on_behalf_of(borrower)
        if is_waiting:
            trio.lowlevel.reschedule(caller, result)

    def deliver(result: Outcome[T]) -> None:
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(report, result)

    def abandon(_: object) -> trio.lowlevel.Abort:
        nonlocal is_waiting
        is_waiting = False
        return trio.lowlevel.Abort.SUCCEEDED

    try:
        _threads.acquire_on_behalf_of_nowait(borrower)
    except trio.WouldBlock:
        await _threads.acquire_on_behalf_of(borrower)
    try:
        trio.lowlevel.start_thread_soon(partial(copy_context().run, job), deliver)
    except BaseException:
        # There may be no more threads.
        _threads.release_on_behalf_of(borrower)
        raise
    found: T = await trio.lowlevel.wait_task_rescheduled(abandon)
    return found


def _write(spool: Spool, blocks: list[bytes]) -> None:
    for block in blocks:
        spool.write(block)


async def accept_inline(data: str, expected: ExpectedOutput, use: Use[T]) -> T | DownloadRefused:
    """Check an output that an update contained as base64; like :func:`download` otherwise."""
    if len(data) > (expected.bytes_max + 2) // 3 * 4:
        return DownloadRefused("too_large", f"more than {expected.bytes_max} bytes", permanent=True)

    def finish() -> T:
        try:
            content = base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError) as fault:
            raise _Refuse("bad_type", "the data is not base64") from fault
        if len(content) > expected.bytes_max:
            raise _Refuse("too_large", f"more than {expected.bytes_max} bytes")
        return use(_checked(content, hashlib.sha256(content).hexdigest(), len(content), expected, None))

    try:
        return await _in_thread(finish)
    except _Refuse as refused:
        return refused.refusal


def _checked(
    content: Content, sha256: str, size_bytes: int, expected: ExpectedOutput, declared: str | None
) -> Downloaded:
    """Check content against what is expected of it; blocks. Raises ``_Refuse``."""
    if expected.bytes is not None and expected.bytes != size_bytes:
        raise _Refuse("mismatch", f"{size_bytes} bytes were received, but {expected.bytes} were declared")
    if expected.sha256 is not None and expected.sha256.lower() != sha256:
        raise _Refuse("mismatch", "the content does not have the declared hash")
    with _measuring, opened(content) as data:
        content_type = _agreed_type(data[:HEAD_BYTES], expected, declared)
        try:
            found = measure(data, content_type)
        except NotMedia as fault:
            raise _Refuse("bad_type", str(fault)) from fault
        except TooManyPixels as fault:
            raise _Refuse("too_large", "the image has too many pixels") from fault
        if not is_complete(data, content_type):
            raise _Refuse("bad_type", "the content is truncated")
    return Downloaded(content, sha256, size_bytes, content_type, found.width, found.height, found.duration_s)


def _check_answer(response: Response, expected: ExpectedOutput) -> str | None:
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
    if declared not in _UNDECLARED and declared not in expected.content_types:
        raise _Refuse("bad_type", "the content type is not one that is hosted")
    length = response.header("content-length")
    if length is not None and length.isascii() and length.isdigit():
        if int(length[:20]) > expected.bytes_max:
            raise _Refuse("too_large", f"more than {expected.bytes_max} bytes")
        if expected.bytes is not None and int(length[:20]) != expected.bytes:
            raise _Refuse("mismatch", f"{length[:20]} bytes by Content-Length, but {expected.bytes} were declared")
    return declared


def _agreed_type(head: bytes, expected: ExpectedOutput, declared: str | None) -> str:
    found = sniff(head)
    if found is None or found not in expected.content_types:
        raise _Refuse("bad_type", "the content is not of a type that is hosted")
    for declared_type in (declared, plain_type(expected.content_type)):
        if declared_type not in _UNDECLARED and declared_type != found:
            raise _Refuse("bad_type", f"the content is {found}, not the declared type")
    return found
