"""Uploads: the files that a request's body brings, alone or in a form, and how they are stored.

A body is read as it comes, into a few hundred KiB of memory and then into temporary files, however large it is and
however many come at once. Nothing is stored before all of it has come and its form is valid. Then each content is
claimed, put into the asset store, and gets its row. A process that is killed in between leaves content that no row
refers to, which the asset sweeper removes.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Final, TypeVar

import msgspec
import trio
from multipart import (
    MultipartError,
    MultipartSegment,
    PushMultipartParser,
    parse_content_disposition,
    parse_options_header,
)

from holdfast.http.kit.calls import FORM_BYTES_MAX, Call
from holdfast.http.kit.values import SHOWN_CHARS_MAX, invalid_parameter, missing_parameter, shown
from holdfast.ledger.ids import new_id
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.inputs import INPUT_SMALL_BYTES_MAX
from holdfast.persistence.claims.contents import CLAIM_USABLE_S, Content
from holdfast.persistence.claims.files import FilesTotal, add_file, files_total
from holdfast.persistence.records.rows import FileRow
from holdfast.providers.storage.sniffing import EXTENSIONS, HEAD_BYTES, UNKNOWN_TYPE, sniff
from holdfast.providers.storage.spool import Spool
from holdfast.telemetry.reports.conditions import STORAGE

BLOCK_BYTES: Final = 256 * 1024
"""How much is collected before it is hashed and written, in a thread."""
SPOOL_MEMORY_BYTES: Final = 256 * 1024
"""The most of one file that is held in memory."""
WRITERS_MAX: Final = 4
STORERS_MAX: Final = 8
CLAIM_TRIES: Final = 10
CLAIM_PAUSE_S: Final = 1.0
"""A content that is being removed from the store can be stored again after a moment."""

PARTS_MAX: Final = 64
FIELDS_BYTES_MAX: Final = INPUT_SMALL_BYTES_MAX
"""Of all fields together, which the files are apart from."""
FILENAME_CHARS_MAX: Final = 200

T = TypeVar("T")

_writers = trio.CapacityLimiter(WRITERS_MAX)
_storers = trio.CapacityLimiter(STORERS_MAX)
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@dataclass(frozen=True, slots=True)
class ReceivedForm:
    """A form: the values of its fields, and its files by the names of their parts, in the order of the body."""

    fields: dict[str, list[str]]
    files: list[tuple[str, FileRow]]


class _Refused(Exception):
    """Ends the reading of a body; never leaves this module."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.code)
        self.refusal = refusal


@dataclass(slots=True)
class _Incoming:
    """One file on its way: ``part`` is its name in the form."""

    part: str
    filename: str | None
    bytes_max: int
    spool: Spool
    blocks: list[bytes] = field(default_factory=list)
    waiting_bytes: int = 0

    @property
    def bytes_count(self) -> int:
        """The bytes that have come so far."""
        return self.spool.bytes_count + self.waiting_bytes

    async def add(self, block: bytes) -> None:
        """Take the next block. Raises ``OSError``."""
        self.waiting_bytes += len(block)
        if self.bytes_count > self.bytes_max:
            message = f"The file is too large; the maximum is {self.bytes_max} bytes."
            raise _Refused(Refusal(code="request_too_large", message=message, param=self.part))
        self.blocks.append(block)
        if self.waiting_bytes >= BLOCK_BYTES:
            await trio.to_thread.run_sync(self.write, limiter=_writers)

    def write(self) -> None:
        """Hash and write what was collected; blocks. Raises ``OSError``."""
        for block in self.blocks:
            self.spool.write(block)
        self.blocks.clear()
        self.waiting_bytes = 0


class _Upload:
    """The files of one body."""

    def __init__(self, call: Call, account_id: str) -> None:
        self._call = call
        self._account_id = account_id
        self._files: list[_Incoming] = []

    def begin(self, part: str, filename: str | None) -> _Incoming:
        """Begin a file; what is added to it is in memory, then in a temporary file."""
        settings = self._call.deps.settings
        if len(self._files) >= self._call.route.files_max:
            raise _Refused(invalid_parameter(part, f"is one file too many; the maximum is {len(self._files)}"))
        spool = Spool(settings.data_dir / "incoming", memory_bytes_max=SPOOL_MEMORY_BYTES)
        self._files.append(_Incoming(part, filename, settings.file_bytes_max, spool))
        return self._files[-1]

    async def store(self) -> list[tuple[str, FileRow]]:
        """Store the files, all of which have come. Raises ``OSError`` and ``DatabaseAway``."""
        # Before anything is in the store, where it would stay for hours; a row is checked again when it is added.
        settings, bytes_count = self._call.deps.settings, sum(each.bytes_count for each in self._files)
        total = await self._call.read(lambda rows: files_total(rows, self._account_id))
        if (
            total.files + len(self._files) > settings.files_max
            or total.bytes + bytes_count > settings.files_bytes_max
        ):
            raise _Refused(_limit_reached(self._call, total))
        return [(each.part, await self._store(each)) for each in self._files]

    def close(self) -> None:
        """Discard what was received."""
        for each in self._files:
            each.spool.close()

    async def _store(self, incoming: _Incoming) -> FileRow:
        deps = self._call.deps
        spool, settings = incoming.spool, deps.settings
        content_type = await trio.to_thread.run_sync(_finish, incoming, limiter=_writers)
        if not spool.bytes_count:
            raise _Refused(invalid_parameter(incoming.part, "is an empty file"))
        content = Content(spool.sha256, content_type)
        claimed_at = deps.now()
        for _ in range(CLAIM_TRIES):
            claimed_at = deps.now()
            put = partial(self._claim_and_put, content, spool, claimed_at)
            if await trio.to_thread.run_sync(put, limiter=_storers):
                break
            # The same content is being removed from the store.
            await trio.sleep(CLAIM_PAUSE_S)
        else:
            raise _Refused(_NOT_STORED)
        now = deps.now()
        if now - claimed_at > timedelta(seconds=CLAIM_USABLE_S):
            raise _Refused(_NOT_STORED)
        file = FileRow(
            account_id=self._account_id,
            file_id=new_id("file"),
            filename=clean_filename(incoming.filename, EXTENSIONS[content_type]),
            content_type=content_type,
            bytes=spool.bytes_count,
            sha256=content.sha256,
            created_at=now,
            expires_at=now + timedelta(seconds=settings.file_retention_s),
        )
        add = partial(add_file, file=file, count_max=settings.files_max, bytes_max=settings.files_bytes_max)
        total = await deps.write_record(add)
        if total is not None:
            raise _Refused(_limit_reached(self._call, total))
        deps.conditions.ended(STORAGE, "")
        return file

    def _claim_and_put(self, content: Content, spool: Spool, at: datetime) -> bool:
        """Store a content unless it is being removed; blocks. Raises ``OSError`` and ``DatabaseAway``."""
        if not self._call.deps.claims.claim(content, at):
            return False
        self._call.deps.asset_store.put(spool.finish(), content.sha256, EXTENSIONS[content.content_type])
        return True


async def receive_file(call: Call, account_id: str, part: str = "file") -> FileRow | Refusal:
    """Receive the body as one file and store it: the ``part`` of a form, or a body of any other type.

    Refuses: 1. as :func:`receive_form`; 2. ``missing_parameter`` (a form without the part).
    """
    if _content_type(call)[0].startswith("multipart/"):
        form = await receive_form(call, account_id, {part})
        return form if isinstance(form, Refusal) else form.files[0][1]

    async def receive(upload: _Upload) -> FileRow:
        _, _, filename = parse_content_disposition(call.request.headers.get("Content-Disposition", ""))
        incoming = upload.begin(part, filename)
        while (block := await call.request.read_part(call.body_bytes_max())) is not None:
            await incoming.add(block)
        [(_, file)] = await upload.store()
        return file

    return await _in_turn(call, account_id, receive)


async def receive_form(
    call: Call, account_id: str, parts: Collection[str], *, texts: Collection[str] = ()
) -> ReceivedForm | Refusal:
    """Receive a form (``multipart/form-data``) and store its files, which are the parts with these names.

    One of them at least is required. Any other part is a field, and must not have a file's name unless it is one of
    ``texts``.

    Refuses: 1. ``unsupported_media_type``; 2. ``file_limit_reached`` and ``request_too_large``, if the size of the
    body shows it; 3. ``invalid_form``, ``invalid_parameter``, ``missing_parameter`` and ``request_too_large``;
    4. ``storage_full`` and ``temporarily_unavailable``; 5. ``file_limit_reached``. Raises ``Overloaded`` and
    ``DatabaseAway``.
    """
    content_type, options = _content_type(call)
    if content_type != "multipart/form-data" or not options.get("boundary"):
        message = "The body must be multipart/form-data with a boundary."
        return Refusal(code="unsupported_media_type", message=message)

    async def receive(upload: _Upload) -> ReceivedForm:
        fields = await _read_form(call, upload, options["boundary"], parts, texts)
        files = await upload.store()
        if not files:
            raise _Refused(missing_parameter(min(parts)))
        return ReceivedForm(fields, files)

    return await _in_turn(call, account_id, receive)


async def _in_turn(call: Call, account_id: str, receive: Callable[[_Upload], Awaitable[T]]) -> T | Refusal:
    """Receive a body when it is the account's turn, and return what of it was refused."""

    async def run() -> T:
        length, settings = call.request.content_length or 0, call.deps.settings
        total = await call.read(lambda rows: files_total(rows, account_id))
        left = settings.files_bytes_max + FORM_BYTES_MAX - total.bytes
        if total.files >= settings.files_max or length > left:
            raise _Refused(_limit_reached(call, total))
        upload = _Upload(call, account_id)
        try:
            return await receive(upload)
        finally:
            upload.close()

    try:
        return await call.deps.uploads.run(account_id, run)
    except _Refused as refused:
        return refused.refusal
    except MultipartError as fault:
        return Refusal(code="invalid_form", message=f"The body is not a valid form: {fault}.")
    except OSError as fault:
        call.deps.conditions.failed(STORAGE, "", fault.strerror or type(fault).__name__)
        return _STORAGE_FULL if fault.errno in _FULL else _NOT_STORED


async def _read_form(
    call: Call, upload: _Upload, boundary: str, parts: Collection[str], texts: Collection[str]
) -> dict[str, list[str]]:
    """Read a form's files into ``upload``, and return its fields."""
    parser = PushMultipartParser(boundary, max_segment_count=PARTS_MAX)
    reader = _FormReader(upload, parts, texts)
    # The parser takes text before the first line, and a bare line feed in a header, or not, depending on where they
    # are cut: both are refused.
    first_line, head = f"--{boundary}".encode(), b""
    while (block := await call.request.read_part(call.body_bytes_max())) is not None:
        if len(head) < len(first_line) + 2:
            block = head = head + block
            if len(head) < len(first_line) + 2:
                continue
            if not head.removeprefix(b"\r\n").startswith(first_line):
                raise MultipartError("it does not begin with its boundary")
        for event in parser.parse(block) if block else ():
            await reader.take(event)
    parser.close()
    return reader.fields


class _FormReader:
    """Takes the events of a form's parser: the head of a part, its bytes, and None for its end."""

    def __init__(self, upload: _Upload, parts: Collection[str], texts: Collection[str]) -> None:
        self.fields: dict[str, list[str]] = {}
        self._upload = upload
        self._parts = parts
        self._texts = texts
        self._name = ""
        self._file: _Incoming | None = None
        self._value = b""
        self._fields_bytes = 0

    async def take(self, event: MultipartSegment | bytes | None) -> None:
        """Take the next event. Raises ``OSError``."""
        if isinstance(event, MultipartSegment):
            self._begin(event)
        elif event is None:
            if self._file is None:
                self.fields.setdefault(self._name, []).append(_text(self._name, self._value))
        elif self._file is not None:
            await self._file.add(event)
        else:
            self._value += event
            self._fields_bytes += len(event)
            if self._fields_bytes > FIELDS_BYTES_MAX:
                message = f"makes the fields of the form larger than {FIELDS_BYTES_MAX} bytes"
                raise _Refused(_invalid(self._name, message))

    def _begin(self, head: MultipartSegment) -> None:
        if any("\n" in line for _, line in head.headerlist):
            raise MultipartError("a header has a line feed")
        self._name, self._file, self._value = head.name or "", None, b""
        if self._name in self._parts:
            self._file = self._upload.begin(self._name, head.filename)
        elif head.filename is not None and self._name not in self._texts:
            taken = ", ".join(sorted(self._parts))
            raise _Refused(_invalid(self._name, f"is not a file of this endpoint, which takes {taken}"))


def _invalid(name: str, rule: str) -> Refusal:
    """Return the refusal of a part, whose name may be anything."""
    return msgspec.structs.replace(invalid_parameter(shown(name), rule), param=name[:SHOWN_CHARS_MAX])


def _text(name: str, value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise _Refused(_invalid(name, "is not UTF-8 text without NUL"))
    return text


def _content_type(call: Call) -> tuple[str, dict[str, str]]:
    """Return the body's type, and its options."""
    content_type, options = parse_options_header(call.request.headers.get("Content-Type", ""))
    return content_type, options


def _finish(incoming: _Incoming) -> str:
    """Write the rest of a file, and return the type that its first bytes show; blocks."""
    incoming.write()
    content = incoming.spool.finish()
    head = content[:HEAD_BYTES] if isinstance(content, bytes) else content.read(HEAD_BYTES)
    return sniff(head) or UNKNOWN_TYPE


def clean_filename(sent: str | None, extension: str) -> str:
    """Return the name that was sent, without folders and unprintable characters; "file" if nothing is left."""
    bare = (sent or "").replace("\\", "/").rpartition("/")[2]
    clean = "".join(sign for sign in bare if sign.isprintable()).strip()[:FILENAME_CHARS_MAX].strip()
    return clean if clean.strip(".") else f"file.{extension}"


def _limit_reached(call: Call, total: FilesTotal) -> Refusal:
    settings = call.deps.settings
    return Refusal(
        code="file_limit_reached",
        message=f"The account has {total.files} files with {total.bytes} bytes; it may have {settings.files_max} "
        f"with {settings.files_bytes_max} bytes. Delete some, or wait until they expire.",
        final=True,
    )


_STORAGE_FULL: Final = Refusal(
    code="storage_full", message="There is no room to store the file. Nothing was stored; try again later."
)
_NOT_STORED: Final = Refusal(
    code="temporarily_unavailable",
    message="The file cannot be stored at the moment. Nothing was stored; try again.",
)
