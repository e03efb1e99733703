"""Files as Replicate's clients upload them. Their links in inputs name the files to the native API, too."""

from __future__ import annotations

from functools import partial

import msgspec
from quart import Response

from holdfast.http.endpoints.files import UPLOAD_ERRORS, own_file, remove_file
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.credentials import TASKS_READ, TASKS_WRITE
from holdfast.http.kit.listing import CURSOR, LIMIT, ListBody, Position, list_of_account
from holdfast.http.kit.routes import BodyResponse, Media, Outcome, RouteTable
from holdfast.http.kit.uploads import receive_form
from holdfast.http.replicate.shapes import BASE, with_next_address
from holdfast.http.schemas.common import render
from holdfast.ledger.links import PublicUrls
from holdfast.ledger.public_types import FreeForm, Time
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.queries.files import files_of_account
from holdfast.persistence.records.rows import FileRow

route = RouteTable("Replicate")


class ReplicateFile(msgspec.Struct, frozen=True):
    """An uploaded file."""

    id: str
    """The file's id, `file_` and 32 characters."""

    name: str
    """The name that was sent."""

    content_type: str
    """The type that the first bytes show, whatever was sent."""

    size: int
    """The file's length in bytes."""

    etag: str
    """The hash of the file's bytes."""

    checksums: dict[str, str]
    """The hash of the file's bytes as `sha256`."""

    metadata: FreeForm
    """Always empty: metadata that is sent is not stored."""

    created_at: Time
    """When the file was stored."""

    expires_at: Time
    """When the file is deleted."""

    urls: dict[str, str]
    """`get`: the address of this, which stands for the file in an input."""


class ReplicateFileList(ListBody[ReplicateFile], frozen=True):
    """A page of files, newest first."""

    data: list[ReplicateFile] = msgspec.field(name="results")
    """The files of this page."""

    next_cursor: str | None = msgspec.field(name="next")
    """The address of the next page, null on the last."""


@route(
    "POST",
    f"{BASE}/files",
    summary="Upload a file, as the part `content` of a form",
    auth=Auth.API_KEY,
    scope=TASKS_WRITE,
    files_max=1,
    request_content={
        "multipart/form-data": {
            "type": "object",
            "required": ["content"],
            "properties": {"content": {"type": "string", "format": "binary", "description": "The file."}},
        }
    },
    reply=ReplicateFile,
    statuses=(201,),
    errors=UPLOAD_ERRORS,
)
async def upload_replicate_file(call: Call) -> Outcome:
    """The file is one of `GET /v2/files`, too."""
    key = await call.verify_key()
    if isinstance(key, Refusal):
        return key
    form = await receive_form(call, key.account_id, {"content"}, texts={"metadata"})
    return form if isinstance(form, Refusal) else BodyResponse(_body(call.deps.urls, form.files[0][1]), status=201)


@route(
    "GET",
    f"{BASE}/files",
    summary="List the account's files, newest first",
    auth=Auth.API_KEY,
    scope=TASKS_READ,
    reply=ReplicateFileList,
    parameters=(CURSOR, LIMIT),
    errors=("invalid_cursor",),
)
async def list_replicate_files(call: Call) -> Outcome:
    """Without those that have expired."""
    page = await list_of_account(
        call,
        partial(files_of_account, now=call.deps.now()),
        partial(_body, call.deps.urls),
        lambda file: Position(file.created_at, file.file_id),
    )
    return with_next_address(call, page)


@route(
    "GET",
    f"{BASE}/files/{{file_id}}",
    summary="Retrieve a file's description",
    auth=Auth.API_KEY,
    scope=TASKS_READ,
    reply=ReplicateFile,
    errors=("file_not_found",),
)
async def read_replicate_file(call: Call) -> Outcome:
    """`GET /v2/files/{file_id}/content` returns the file itself."""
    file = await own_file(call)
    return file if isinstance(file, Refusal) else _body(call.deps.urls, file)


@route(
    "DELETE",
    f"{BASE}/files/{{file_id}}",
    summary="Delete a file; providers of unfinished tasks that name it can fetch it until these end",
    auth=Auth.API_KEY,
    scope=TASKS_WRITE,
    statuses=(204,),
    media=(Media(status=204, content_types=(), description="The file is deleted."),),
    errors=("file_not_found",),
)
async def remove_replicate_file(call: Call) -> Outcome:
    """Its content is removed later, unless another file or a result has the same."""
    removed = await remove_file(call)
    return removed if isinstance(removed, Refusal) else Response(b"", status=204)


def _body(urls: PublicUrls, file: FileRow) -> ReplicateFile:
    return render(
        ReplicateFile,
        file,
        id=file.file_id,
        name=file.filename,
        size=file.bytes,
        etag=file.sha256,
        checksums={"sha256": file.sha256},
        metadata={},
        urls={"get": urls.url(f"{BASE}/files/{file.file_id}")},
    )
