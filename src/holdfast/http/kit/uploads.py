"""Uploads: the files that a request's body brings, alone or in a form, and how they are stored.

A body is read as it comes, into a little memory and then into temporary files, however large it is and however many
come at once. Nothing is stored before all of it has come and its form is valid. Then each content is
claimed, its row is added within the account's limits, and it is put into the asset store. What a killed process
leaves in between has such a row, and is swept with it.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Final, TypeAlias, TypeVar
from urllib.parse import unquote_to_bytes

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
from holdfast.http.kit.forms import LIST_SUFFIX, Form, FormFile, is_form
from holdfast.http.kit.routes import Declaration
from holdfast.http.kit.values import SHOWN_CHARS_MAX, invalid_parameter, missing_parameter, shown
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.inputs import INPUT_SMALL_BYTES_MAX
from holdfast.ledger.values import new_id_of_account
from holdfast.persistence.claims.contents import Content
from holdfast.persistence.claims.files import UPLOAD_S, FilesTotal, add_file, drop_file, files_total, keep_file
from holdfast.persistence.records.rows import FileRow
from holdfast.providers.storage.sniffing import EXTENSIONS, HEAD_BYTES, UNKNOWN_TYPE, sniff
from holdfast.providers.storage.spool import Content as SpooledContent
from holdfast.providers.storage.spool import Spool
from holdfast.telemetry.reports.conditions import STORAGE

BLOCK_BYTES: Final = 64 * 1024
"""How much is collected before it is hashed and written, in a thread."""
SPOOL_MEMORY_BYTES: Final = 64 * 1024
"""The most that is held in memory of the files of one body, besides a block of each that is not finished."""
CLAIM_TRIES: Final = 10
CLAIM_PAUSE_S: Final = 1.0
"""A content that is being removed from the store can be stored again after a moment."""

PARTS_MAX: Final = 128
FIELDS_BYTES_MAX: Final = INPUT_SMALL_BYTES_MAX
"""Of all fields together, which the files are apart from."""
FILENAME_CHARS_MAX: Final = 200
DISPOSITION_CHARS_MAX: Final = 2048
"""How much of a header is searched for the encoded name of a file."""

_KEYED: Final = re.compile(r"([^\[\]]+)\[([^\[\]]+)\]")
"""The name of a part that is the value of a key."""

T = TypeVar("T")

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


StoredNames: TypeAlias = Callable[[Mapping[str, object], Sequence[str]], Collection[str] | Refusal]
"""Which files of a form with these fields, by their names, are stored; others are kept in memory, or refused."""


class _Refused(Exception):
    """Ends the reading of a body; never leaves this module."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.code)
        self.refusal = refusal


@dataclass(slots=True)
class _Incoming:
    """One file on its way: ``part`` is its name in the form."""

    upload: _Upload
    part: str
    filename: str | None
    bytes_max: int
    spool: Spool
    blocks: list[bytes] = field(default_factory=list)
    waiting_bytes: int = 0

    @property
    def name(self) -> str:
        """What the file is of the form."""
        return self.part.removesuffix(LIST_SUFFIX)

    @property
    def bytes_count(self) -> int:
        """The bytes that have come so far."""
        return self.spool.bytes_count + self.waiting_bytes

    async def add(self, block: bytes) -> None:
        """Take the next block. Raises ``OSError``."""
        self.upload.count(len(block))
        self.waiting_bytes += len(block)
        if self.bytes_count > self.bytes_max:
            message = f"The file is too large; the maximum is {self.bytes_max} bytes."
            raise _Refused(Refusal(code="request_too_large", message=message, param=self.part))
        self.blocks.append(block)
        if self.waiting_bytes >= BLOCK_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Hash and write what was collected. Raises ``OSError``."""
        await self.upload.write(self.write)

    def write(self) -> None:
        """Hash and write what was collected; blocks. Raises ``OSError``."""
        if self.blocks:
            self.upload.check_disk()
        for block in self.blocks:
            self.spool.write(block)
        self.blocks.clear()
        self.waiting_bytes = 0

    def finish(self) -> SpooledContent:
        """Return the whole file, which must not be empty; blocks. Raises ``OSError``."""
        self.write()
        if not self.spool.bytes_count:
            raise _Refused(invalid_parameter(self.part, "is an empty file"))
        return self.spool.finish()


class _Upload:
    """The files of one body, which are discarded when ``at_end`` is left.

    The first one is received only once an API key that is not ``is_verified`` has been.
    """

    def __init__(self, call: Call, account_id: str, at_end: AsyncExitStack, *, is_verified: bool) -> None:
        self._call = call
        self._is_verified = is_verified
        self._account_id = account_id
        self._origin = call.origin()
        self._at_end = at_end
        self._bytes = at_end.enter_context(call.deps.storage.uploaded_bytes.counted(account_id, self._origin))
        self._files_max = call.route.files_max or 1
        self._files_count = 0
        """Of the account, when its total was read."""
        self._files: list[_Incoming] = []

    async def begin(self, part: str, filename: str | None) -> _Incoming:
        """Begin a file; what is added to it is in memory, then in a temporary file."""
        settings = self._call.deps.settings
        if len(self._files) >= self._files_max:
            raise _Refused(invalid_parameter(part, f"is one file too many; the maximum is {len(self._files)}"))
        if not self._files:
            key = None if self._is_verified else await self._call.verify_key()
            if isinstance(key, Refusal):
                raise _Refused(key)
            await self._check_room()
        memory_bytes_max = SPOOL_MEMORY_BYTES // self._files_max
        spool = Spool(settings.data_dir / "incoming", memory_bytes_max=memory_bytes_max)
        self._at_end.callback(spool.close)
        self._files.append(_Incoming(self, part, filename, settings.file_bytes_max, spool))
        return self._files[-1]

    async def _check_room(self) -> None:
        """Refuse a body that cannot be stored before it is received. What is stored is decided with each row."""
        settings = self._call.deps.settings
        total = await self._call.read(lambda rows: files_total(rows, self._account_id))
        self._files_count = total.files
        self._bytes.stored(total.bytes)
        left = settings.files_bytes_max + FORM_BYTES_MAX - self._bytes.of_account
        if total.files >= settings.files_max or (self._call.request.content_length or 0) > left:
            raise _Refused(_limit_reached(self._call, total))

    def count(self, bytes_count: int) -> None:
        """Count bytes of a file that have arrived, up to the account's limit."""
        self._bytes.add(bytes_count)
        if self._bytes.of_account > self._call.deps.settings.files_bytes_max:
            raise _Refused(_limit_reached(self._call, FilesTotal(self._files_count, self._bytes.of_account)))

    def check_disk(self) -> None:
        """Refuse bytes that the disk has no room for; blocks. Raises ``OSError``."""
        if not self._bytes.fits(self._call.deps.settings.data_dir):
            raise _Refused(_STORAGE_FULL)

    async def write(self, work: Callable[[], T]) -> T:
        """Run what hashes, writes or reads files, in a thread."""
        return await self._call.deps.storage.writers.run(self._account_id, self._origin, work)

    async def _put(self, work: Callable[[], T]) -> T:
        """Run what waits for the store, in a thread."""
        return await self._call.deps.storage.storers.run(self._account_id, self._origin, work)

    async def store(self, retention_s: float) -> list[FileRow]:
        """Store the files, all of which have come. Raises ``OSError`` and ``DatabaseAway``."""
        return [await self._store(each, retention_s) for each in self._files]

    async def take(self, fields: Mapping[str, object], stored_names: StoredNames) -> list[FormFile]:
        """Store the files that are to be stored, for a task of this request, and read the others.

        Raises ``OSError`` and ``DatabaseAway``.
        """
        stored = stored_names(fields, [each.name for each in self._files])
        if isinstance(stored, Refusal):
            raise _Refused(stored)
        bytes_max = self._call.deps.settings.body_bytes_max
        if sum(each.bytes_count for each in self._files if each.name not in stored) > bytes_max:
            message = f"The files are too large: this model takes them in its input, at most {bytes_max} bytes."
            raise _Refused(Refusal(code="request_too_large", message=message))
        return [await (self._stored(each) if each.name in stored else _read(each)) for each in self._files]

    async def _stored(self, incoming: _Incoming) -> FormFile:
        row = await self._store(incoming, UPLOAD_S)
        return FormFile(incoming.name, row.sha256, row)

    async def _store(self, incoming: _Incoming, retention_s: float) -> FileRow:
        """Claim a content, add its row, and put it into the store."""
        deps, spool = self._call.deps, incoming.spool
        settings = deps.settings
        content_type = await self.write(partial(_type_of, incoming))
        content, claimed_at = Content(spool.sha256, content_type), deps.now()
        for _ in range(CLAIM_TRIES):
            claimed_at = deps.now()
            claim = partial(deps.storage.claims.claim, content, claimed_at + timedelta(seconds=UPLOAD_S))
            if await self._put(claim):
                break
            # The same content is being removed from the store.
            await trio.sleep(CLAIM_PAUSE_S)
        else:
            raise _Refused(_NOT_STORED)
        now = deps.now()
        added = FileRow(
            account_id=self._account_id,
            file_id=new_id_of_account("file", self._account_id),
            filename=clean_filename(incoming.filename, EXTENSIONS[content_type]),
            content_type=content_type,
            bytes=spool.bytes_count,
            sha256=content.sha256,
            created_at=now,
            expires_at=now,
        )
        add = partial(add_file, file=added, count_max=settings.files_max, bytes_max=settings.files_bytes_max)
        total = await self._call.write(self._account_id, add)
        if total is not None:
            raise _Refused(_limit_reached(self._call, total))
        self._bytes.kept(added.bytes)
        put = partial(deps.storage.store.put, spool.finish(), content.sha256, EXTENSIONS[content_type])
        try:
            await self._put(put)
        except OSError:
            self._bytes.kept(-added.bytes)
            await deps.write_record(partial(drop_file, file=added))
            raise
        file = added._replace(expires_at=now + timedelta(seconds=retention_s))
        is_late = deps.now() - claimed_at > timedelta(seconds=UPLOAD_S / 2)
        if is_late or not await deps.write_record(partial(keep_file, file=file)):
            raise _Refused(_NOT_STORED)
        deps.conditions.ended(STORAGE, "")
        return file


async def receive_file(
    call: Call, account_id: str, part: str = "file", *, texts: Collection[str] = ()
) -> FileRow | Refusal:
    """Receive the body as one file and store it: the ``part`` of a form, or a body of any other type.

    Other parts of a form are ignored; they must not have a file's name unless they are of ``texts``.

    Refuses: 1. ``unsupported_media_type``; 2. ``file_limit_reached`` and ``request_too_large``, if the size of the
    body shows it; 3. ``invalid_form``, ``invalid_parameter``, ``missing_parameter`` and ``request_too_large``;
    4. ``file_limit_reached``; 5. ``storage_full`` and ``temporarily_unavailable``. Raises ``DatabaseAway``.
    """
    sent = call.request.headers.get("Content-Type", "")
    content_type = parse_options_header(sent)[0]
    if content_type == "application/x-www-form-urlencoded":
        message = f"A body of {content_type} is no file. Send the file as the part {part} of multipart/form-data"
        message += ", or alone with a Content-Type of its own, such as application/octet-stream."
        return Refusal(code="unsupported_media_type", message=message)
    boundary = _boundary(sent) if content_type.startswith("multipart/") else ""
    if isinstance(boundary, Refusal):
        return boundary

    async def receive(upload: _Upload) -> FileRow:
        if boundary:
            await _read_form(call, upload, boundary, {part}, texts)
        else:
            filename = sent_filename(call.request.headers.get("Content-Disposition", ""))
            incoming = await upload.begin(part, filename)
            while (block := await call.request.read_part(call.body_bytes_max())) is not None:
                await incoming.add(block)
        stored = await upload.store(call.deps.settings.file_retention_s)
        if not stored:
            raise _Refused(missing_parameter(part))
        return stored[0]

    return await _receive(call, account_id, receive)


async def store_content(
    call: Call, account_id: str, content: bytes, *, filename: str | None, param: str
) -> FileRow | Refusal:
    """Store a file that a request has among its values, as ``param``, as :func:`receive_file` stores a body."""

    async def receive(upload: _Upload) -> FileRow:
        incoming = await upload.begin(param, filename)
        await incoming.add(content)
        [stored] = await upload.store(call.deps.settings.file_retention_s)
        return stored

    return await _receive(call, account_id, receive)


async def receive_form(call: Call, stored_names: StoredNames) -> Refusal | None:
    """Receive as the body the form (``multipart/form-data``) that the route declares; nothing was read of it yet.

    Files are the parts that the route names, and those that have a file's name. What is stored of them lasts for
    :data:`UPLOAD_S`, and until the task that names it has ended. A form without files needs no read of its own.

    Refuses: 1. as the key is refused; 2. as :func:`receive_file`; 3. as ``stored_names`` does.
    """
    boundary = _boundary(call.request.headers.get("Content-Type", ""))
    if isinstance(boundary, Refusal):
        return await call.refuse_authenticated(boundary)

    route = call.route
    assert isinstance(route, Declaration)
    assert route.form is not None
    parts = {name + suffix for name in route.form_files for suffix in ("", LIST_SUFFIX)}

    async def receive(upload: _Upload) -> Form:
        fields = _named(await _read_form(call, upload, boundary, parts, None))
        files = tuple(await upload.take(fields, stored_names))
        memory_bytes = len(msgspec.json.encode(fields)) + sum(len(each.content) for each in files)
        return Form(fields, files, memory_bytes)

    form = await _receive(call, call.known_key.account_id, receive, is_verified=False)
    refusal = form if isinstance(form, Refusal) else call.take_form(form, route.form)
    return None if refusal is None else await call.refuse_authenticated(refusal)


async def _receive(
    call: Call, account_id: str, receive: Callable[[_Upload], Awaitable[T]], *, is_verified: bool = True
) -> T | Refusal:
    """Receive a body, discard what of it is not stored, and return what of it was refused."""
    try:
        async with AsyncExitStack() as at_end:
            return await receive(_Upload(call, account_id, at_end, is_verified=is_verified))
    except _Refused as refused:
        return refused.refusal
    except MultipartError as fault:
        return Refusal(code="invalid_form", message=f"The body is not a valid form: {fault.args[0]}.")
    except OSError as fault:
        call.deps.conditions.failed(STORAGE, "", fault.strerror or type(fault).__name__)
        return _STORAGE_FULL if fault.errno in _FULL else _NOT_STORED


def _boundary(content_type: str) -> str | Refusal:
    """Return the boundary of a form. Refuses with ``unsupported_media_type``."""
    boundary: str = parse_options_header(content_type)[1].get("boundary", "")
    if is_form(content_type) and boundary:
        return boundary
    message = "The body must be multipart/form-data with a boundary."
    return Refusal(code="unsupported_media_type", message=message)


async def _read_form(
    call: Call, upload: _Upload, boundary: str, parts: Collection[str], texts: Collection[str] | None
) -> dict[str, list[str]]:
    """Read a form's files into ``upload``, and return its fields.

    Files are the ``parts`` with these names. Others that have a file's name are refused unless they are of
    ``texts``; without these they are files too.
    """
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

    def __init__(self, upload: _Upload, parts: Collection[str], texts: Collection[str] | None) -> None:
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
            await self._begin(event)
        elif event is None:
            if self._file is None:
                self.fields.setdefault(self._name, []).append(_text(self._name, self._value))
            else:
                await self._file.flush()
        elif self._file is not None:
            await self._file.add(event)
        else:
            self._value += event
            self._fields_bytes += len(event)
            if self._fields_bytes > FIELDS_BYTES_MAX:
                message = f"makes the fields of the form larger than {FIELDS_BYTES_MAX} bytes"
                raise _Refused(_invalid(self._name, message))

    async def _begin(self, head: MultipartSegment) -> None:
        if any("\n" in line for _, line in head.headerlist):
            raise MultipartError("a header has a line feed")
        self._name, self._file, self._value = head.name or "", None, b""
        filename = sent_filename(head.header("Content-Disposition", ""))
        is_file = filename is not None
        if self._name in self._parts or (is_file and self._texts is None):
            self._file = await self._upload.begin(self._name, filename)
        elif is_file and self._texts is not None and self._name not in self._texts:
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


def _named(sent: Mapping[str, list[str]]) -> dict[str, object]:
    """Return the fields of a form by their names: texts, lists of those whose name says so, and objects.

    The parts of an object are named ``metadata[key]``.
    """
    fields: dict[str, object] = {}
    for sent_name, texts in sent.items():
        name = sent_name.removesuffix(LIST_SUFFIX)
        is_list = name != sent_name
        keyed = _KEYED.fullmatch(name)
        below, own_name = (fields, name) if keyed is None else (fields.setdefault(keyed[1], {}), keyed[2])
        if not isinstance(below, dict) or own_name in below or (len(texts) > 1 and not is_list):
            raise _Refused(_invalid(name, "was sent more than once"))
        if "\0" in name:
            raise _Refused(_invalid(name, "has a NUL in its name"))
        below[own_name] = texts if is_list else texts[0]
    return fields


def _type_of(incoming: _Incoming) -> str:
    """Return the type that the first bytes of a file show; blocks."""
    content = incoming.finish()
    head = content[:HEAD_BYTES] if isinstance(content, bytes) else content.read(HEAD_BYTES)
    return sniff(head) or UNKNOWN_TYPE


async def _read(incoming: _Incoming) -> FormFile:
    content = await incoming.upload.write(incoming.finish)
    # One that had to be written to the disk is far smaller than a stored file may be.
    read = content if isinstance(content, bytes) else await incoming.upload.write(content.read)
    return FormFile(incoming.name, incoming.spool.sha256, content=read)


_QUOTED: Final = re.compile(r'"(?:\\.|[^"\\])*"?')
"""A text in quotes; one that does not end takes all that follows, so that none is searched twice."""
_EXTENDED: Final = re.compile(r";\s*filename\*\s*=\s*(?:(utf-8|iso-8859-1)'[^';]*'([^;\s]*))?", re.ASCII | re.I)


def sent_filename(disposition: str) -> str | None:
    """Return the file's name of a ``Content-Disposition``: ``filename*`` (RFC 8187) where it can be read, else
    ``filename``. None if it has neither.
    """
    _, _, plain = parse_content_disposition(disposition)
    extended = _EXTENDED.search(_QUOTED.sub("", disposition[:DISPOSITION_CHARS_MAX]))
    if extended is None:
        return plain
    with suppress(UnicodeDecodeError):
        if extended[1]:
            return unquote_to_bytes(extended[2]).decode(extended[1])
    return plain or ""


def clean_filename(sent: str | None, extension: str) -> str:
    """Return the name that was sent, without folders and unprintable characters; "file" if nothing is left."""
    bare = (sent or "").replace("\\", "/").rpartition("/")[2]
    clean = "".join(sign for sign in bare if sign.isprintable()).strip()[:FILENAME_CHARS_MAX].strip()
    return clean if clean.strip(".") else f"file.{extension}"


def _limit_reached(call: Call, total: FilesTotal) -> Refusal:
    settings = call.deps.settings
    return Refusal(
        code="file_limit_reached",
        message=f"The account has {total.files} files with {total.bytes} bytes, uploads in progress among them; it "
        f"may have {settings.files_max} with {settings.files_bytes_max} bytes. Delete some, or wait until they "
        f"expire. A deleted file counts for {UPLOAD_S // 60} minutes after its upload.",
        final=True,
    )


_STORAGE_FULL: Final = Refusal(
    code="storage_full", message="There is no room to store the file. Nothing was stored; try again later."
)
_NOT_STORED: Final = Refusal(
    code="temporarily_unavailable",
    message="The file cannot be stored at the moment. Nothing was stored; try again.",
)
