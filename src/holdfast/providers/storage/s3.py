"""Store content as objects in an S3 bucket, of Amazon or of any service with the same protocol.

The client library is synchronous here: each call runs in a thread of the store's own limiter, and every request is
limited in time, so that a server that does not respond occupies no thread for long. Memory use is bounded: a file
is uploaded in parts, and a reader requests one part after the other. So a reader occupies no connection while its
client is slow, and a part that fails is retried alone.

By the S3 protocol an object appears under its key only when all of it has been uploaded.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from urllib.parse import urlsplit

import obstore
import trio
from obstore import exceptions
from obstore.store import S3Store as Bucket

from holdfast.providers.storage.base import (
    BLOCK_BYTES,
    AssetCorrupt,
    AssetMissing,
    AssetReader,
    StoreFault,
    asset_key,
    checked_key,
)
from holdfast.providers.storage.spool import Content
from holdfast.settings.settings import Settings

if TYPE_CHECKING:
    from obstore.store import S3Credential

T = TypeVar("T")

THREADS_MAX_COUNT: Final = 16
PART_BYTES: Final = 8 * 1024 * 1024
"""The size of one upload request; larger files are uploaded in several."""
PARTS_AT_ONCE_MAX: Final = 2
PIECE_BYTES: Final = 2 * 1024 * 1024
"""How much a reader requests at a time, and the most it holds."""
REQUEST_TIMEOUT_S: Final = 30.0
RETRIES_MAX: Final = 3
RETRY_S: Final = 20.0

_PROBE = b"holdfast was here"


class S3Store:
    """Assets as objects of one bucket."""

    def __init__(
        self,
        settings: Settings,
        *,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        retries_max: int = RETRIES_MAX,
    ) -> None:
        self._settings, self._name = settings, settings.s3_bucket
        self._threads = trio.CapacityLimiter(THREADS_MAX_COUNT)
        endpoint = settings.s3_endpoint or f"https://s3.{settings.s3_region}.amazonaws.com"
        # The endpoint, the region and the credentials are all passed: the library would read what is missing from
        # the environment, where a variable may be meant for another program.
        self._bucket = Bucket(
            settings.s3_bucket,
            endpoint=endpoint,
            region=settings.s3_region,
            virtual_hosted_style_request=False,
            skip_signature=False,
            # Not every server supports deleting several objects at once, and it is not needed.
            disable_bulk_delete=True,
            credential_provider=self._credential,
            client_options={
                "allow_http": endpoint.startswith("http:"),
                # A proxy named here, and excluded for the bucket's host, replaces those of the environment.
                "proxy_url": endpoint,
                "proxy_excludes": urlsplit(endpoint).hostname or "",
                "timeout": timedelta(seconds=request_timeout_s),
                "connect_timeout": timedelta(seconds=min(5.0, request_timeout_s)),
            },
            retry_config={"max_retries": retries_max, "retry_timeout": timedelta(seconds=RETRY_S)},
        )

    async def prepare(self) -> None:
        """Write an object, read it and remove it, so that a wrong configuration fails before any output is stored.

        Raises :class:`StoreFault`.
        """
        sha256 = hashlib.sha256(_PROBE + os.urandom(16)).hexdigest()
        key = asset_key(sha256, "probe")

        def probe() -> None:
            obstore.put(self._bucket, key, _PROBE)
            obstore.get(self._bucket, key).bytes()
            obstore.delete(self._bucket, key)

        await self._run(probe)

    def put(self, content: Content, sha256: str, extension: str) -> str:
        """Store the content and return its key, durably; blocks.

        The hash is verified before anything is sent. Raises :class:`AssetCorrupt` and :class:`StoreFault`.
        """
        key = asset_key(sha256, extension)
        if _hash_of(content) != sha256:
            raise AssetCorrupt("the content does not have the announced hash")
        self._mapped(
            lambda: obstore.put(
                self._bucket, key, content, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE_MAX
            )
        )
        return key

    async def open(self, key: str, start: int = 0, end: int | None = None) -> AssetReader:
        """Read bytes ``start`` to before ``end``. Raises :class:`AssetMissing` and :class:`StoreFault`."""
        checked_key(key)
        upto = start + PIECE_BYTES if end is None else min(end, start + PIECE_BYTES)

        def first() -> tuple[bytes, int]:
            if start < upto:
                try:
                    found = obstore.get(self._bucket, key, options={"range": (start, upto)})
                    return bytes(found.bytes()), found.meta["size"]
                except exceptions.GenericError as fault:
                    # The server refuses a range beyond the end, such as any range of an empty object.
                    if " 416 " not in str(fault):
                        raise
            return b"", obstore.head(self._bucket, key)["size"]

        found, size_bytes = await self._run(first, key=key)
        piece = memoryview(found)
        stop = size_bytes if end is None else min(end, size_bytes)
        offset = start + len(piece)

        async def read() -> bytes:
            nonlocal piece, offset
            if not piece and offset < stop:
                upto = min(stop, offset + PIECE_BYTES)
                ask = partial(obstore.get_range, self._bucket, key, start=offset, end=upto)
                piece = memoryview(bytes(await self._run(ask, key=key)))
                if len(piece) != upto - offset:
                    raise StoreFault("the server sent a different part of the object than requested")
                offset = upto
            block, piece = piece[:BLOCK_BYTES], piece[BLOCK_BYTES:]
            return bytes(block)

        return AssetReader(read)

    async def delete(self, key: str) -> None:
        """Remove the content; missing content is no fault. Raises :class:`StoreFault`."""
        checked_key(key)
        await self._run(lambda: obstore.delete(self._bucket, key))

    async def remove_leftovers(self) -> None:
        """Do nothing: a rule of the bucket ends incomplete uploads."""

    def _credential(self) -> S3Credential:
        settings = self._settings
        return {
            "access_key_id": settings.s3_access_key_id,
            "secret_access_key": settings.s3_secret_access_key,
            "token": None,
            "expires_at": None,
        }

    async def _run(self, call: Callable[[], T], *, key: str | None = None) -> T:
        # A cancelled caller need not wait for the server: the call has a timeout and ends by itself.
        return await trio.to_thread.run_sync(
            lambda: self._mapped(call, key=key), limiter=self._threads, abandon_on_cancel=True
        )

    def _mapped(self, call: Callable[[], T], *, key: str | None = None) -> T:
        """Make a blocking call and map its errors. With ``key``, a missing object is :class:`AssetMissing`."""
        try:
            return call()
        except FileNotFoundError as fault:
            if key is not None and "<Code>NoSuchBucket</Code>" not in str(fault):
                raise AssetMissing(key) from None
            raise StoreFault(f"there is no bucket {self._name!r}") from _scrubbed(fault)
        except exceptions.BaseError as fault:
            raise StoreFault(self._reason(fault)) from _scrubbed(fault)

    def _reason(self, fault: exceptions.BaseError) -> str:
        """Return the reason of a fault without the server's own text, which may contain credentials."""
        text = str(fault)
        if isinstance(fault, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError):
            code = next((code for code in _REFUSALS if f"<Code>{code}</Code>" in text), "AccessDenied")
            return f"the bucket {self._name!r} refuses access: {_REFUSALS[code]}"
        if "HTTP error" in text:
            return f"the server of the bucket {self._name!r} cannot be reached or does not respond in time"
        return f"the server of the bucket {self._name!r} failed to process the request"


_REFUSALS: Final = {
    "InvalidAccessKeyId": "the access key does not exist",
    "SignatureDoesNotMatch": "the secret of the access key is wrong",
    "RequestTimeTooSkewed": "this machine's clock is wrong",
    "AccessDenied": "the access key may not put, get and delete objects",
}


def _scrubbed(fault: Exception) -> Exception:
    """Return a cause for the log: the type of the error without the library's text, which quotes the server."""
    return RuntimeError(type(fault).__name__)


def _hash_of(content: Content) -> str:
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    try:
        content.seek(0)
        found = hashlib.file_digest(cast(Any, content), "sha256").hexdigest()
        content.seek(0)
    except OSError as fault:
        raise StoreFault("the file to be stored cannot be read") from fault
    return found
