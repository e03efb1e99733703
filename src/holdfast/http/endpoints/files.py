"""Files that customers upload, to name them in inputs where a model takes a link, and stored results by link."""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.kit.listing import PAGE, Position, StoredListBody, list_of_account
from holdfast.http.kit.routes import Outcome, RouteTable
from holdfast.http.kit.stored_content import (
    IF_CACHED,
    LINK_ERRORS,
    RANGE,
    content_media,
    link_parameters,
    refuse_link,
    serve_content,
)
from holdfast.http.kit.uploads import receive_file
from holdfast.http.schemas.common import render
from holdfast.http.services.files import (
    DISPOSITION,
    LINK_EXPIRED,
    delete_own_file,
    file_not_found,
    own_file,
    send_asset,
)
from holdfast.ledger.api_keys import FILES_WRITE, TASKS_READ
from holdfast.ledger.public_types import Time
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.queries.files import file_by_id, files_of_account
from holdfast.persistence.queries.tasks import asset_by_id
from holdfast.persistence.records.rows import FileRow
from holdfast.providers.storage.sniffing import UNKNOWN_TYPE

route = RouteTable("Files")


class FileBody(msgspec.Struct, frozen=True):
    """An uploaded file. Its id may be sent in a model's input, where the model takes a link."""

    file_id: str
    """The file's id, `file_` and 32 characters."""
    filename: str
    """The name that was sent, without folders; `file` with an extension if none was."""
    content_type: str
    """The type that the first bytes show, whatever was sent; `application/octet-stream` if they show none."""
    bytes: int
    """The file's length in bytes."""
    sha256: str
    """The hash of the file's bytes, in hexadecimal digits."""
    url: str
    """A signed link to the file, valid for an hour from this response, at most until `expires_at`."""
    created_at: Time
    """When the file was stored."""
    expires_at: Time
    """When the file is deleted; providers of unfinished tasks that name it can fetch it until these have ended."""


class FileList(StoredListBody[FileBody], frozen=True):
    """A page of files, newest first."""


class FileDeleted(msgspec.Struct, frozen=True):
    """The file is deleted."""

    file_id: str
    """The file's id."""
    deleted: bool
    """Always true."""


def file_body(deps: Dependencies, file: FileRow) -> FileBody:
    """Render a file, with a link that is signed as of now."""
    url = deps.urls.file_url(file.file_id, deps.urls.link_expiry(deps.now(), file.expires_at))
    return render(FileBody, file, url=url)


_GONE: Final = Refusal(
    code="asset_expired", message="The link has expired. Retrieve the file for a new one while it is stored."
)


@route(
    "POST",
    "/v2/files",
    summary="Upload a file: as the part `file` of a form, or as the whole body",
    auth=Auth.API_KEY,
    scope=FILES_WRITE,
    files_max=1,
    form_files={"file": "The file."},
    reply=FileBody,
    parameters=(DISPOSITION,),
)
async def upload_file(call: Call) -> Outcome:
    """The type in the response is that of the file's first bytes, whatever its name or its sender say."""
    account_id = await call.verify_caller()
    if isinstance(account_id, Refusal):
        return account_id
    file = await receive_file(call, account_id)
    return file if isinstance(file, Refusal) else file_body(call.deps, file)


upload_own_file = route.mirror(
    route,
    upload_file,
    "upload_own_file",
    "/v2/control/files",
    "Upload a file with a session: as the part `file` of a form, or as the whole body",
    auth=Auth.SESSION_OR_KEY,
    scope=FILES_WRITE,
)


@route(
    "GET",
    "/v2/files",
    summary="List the account's files; newest first",
    auth=Auth.API_KEY,
    scope=TASKS_READ,
    reply=FileList,
    parameters=PAGE,
)
async def list_files(call: Call) -> Outcome:
    """Without those that have expired."""
    return await list_of_account(
        call,
        partial(files_of_account, now=call.deps.now()),
        partial(file_body, call.deps),
        lambda file: Position(file.created_at, file.file_id),
    )


list_own_files = route.mirror(
    route,
    list_files,
    "list_own_files",
    "/v2/control/files",
    "List the account's files with a session; newest first",
    auth=Auth.SESSION,
)


@route(
    "GET",
    "/v2/files/{file_id}",
    summary="Retrieve a file's description; its link is signed for this response",
    auth=Auth.API_KEY,
    scope=TASKS_READ,
    reply=FileBody,
    errors=("file_not_found",),
)
async def read_file(call: Call) -> Outcome:
    """Another account's file does not exist."""
    file = await own_file(call)
    return file if isinstance(file, Refusal) else file_body(call.deps, file)


@route(
    "GET",
    "/v2/files/{file_id}/content",
    summary="Retrieve a file, by its signed link or with an API key; supports ranges",
    auth=Auth.KEY_OR_LINK,
    scope=TASKS_READ,
    media=content_media(UNKNOWN_TYPE),
    parameters=(*link_parameters(required=False), RANGE, IF_CACHED),
    errors=("file_not_found", *LINK_ERRORS),
)
async def fetch_file(call: Call) -> Outcome:
    """A link to a file that has expired works on for the provider of a task that needs it."""
    file_id = call.path["file_id"]
    if call.bearer is not None:
        file, gone = await own_file(call), file_not_found(file_id)
    else:
        file, gone = await _linked_file(call), _GONE
    if isinstance(file, Refusal):
        return file

    async def is_gone() -> bool:
        return await call.read(lambda rows: file_by_id(rows, file_id)) is None

    return await serve_content(call, file, file.filename, gone=gone, is_gone=is_gone)


@route(
    "DELETE",
    "/v2/files/{file_id}",
    summary="Delete a file; providers of unfinished tasks that name it can fetch it until these end",
    auth=Auth.API_KEY,
    scope=FILES_WRITE,
    reply=FileDeleted,
    errors=("file_not_found",),
)
async def remove_file(call: Call) -> Outcome:
    """Its content is removed later, unless another file or a result has the same."""
    return await delete_own_file(call) or FileDeleted(file_id=call.path["file_id"], deleted=True)


remove_own_file = route.mirror(
    route,
    remove_file,
    "remove_own_file",
    "/v2/control/files/{file_id}",
    "Delete a file with a session; providers of unfinished tasks that name it can fetch it until these end",
    auth=Auth.SESSION,
)


@route(
    "GET",
    "/v2/assets/{asset_id}",
    summary="Retrieve a stored result by its signed link; supports ranges",
    media=content_media(),
    parameters=(*link_parameters(required=True), RANGE, IF_CACHED),
    errors=LINK_ERRORS,
)
async def fetch_asset(call: Call) -> Outcome:
    """The link's own parameters are the credential; it is an output's `url` of a task."""
    asset_id = call.path["asset_id"]
    refusal = refuse_link(call, asset_id, LINK_EXPIRED)
    if refusal is not None:
        return refusal
    asset = await call.read(lambda rows: asset_by_id(rows, asset_id))
    return LINK_EXPIRED if asset is None else await send_asset(call, asset)


async def _linked_file(call: Call) -> FileRow | Refusal:
    """Verify the link before any row is read, and return its file."""
    file_id = call.path["file_id"]
    refusal = refuse_link(call, file_id, _GONE)
    file = None if refusal is not None else await call.read(lambda rows: file_by_id(rows, file_id))
    return refusal or (file if file is not None and file.expires_at > file.created_at else _GONE)
