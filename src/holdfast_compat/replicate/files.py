"""Files as Replicate's clients upload them. Their links in inputs name the files to the native API, too."""

from __future__ import annotations

from functools import partial

from quart import Response

from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.listing import CURSOR, LIMIT, Position, list_of_account
from holdfast.http.kit.routes import BodyResponse, Media, Outcome, RouteTable
from holdfast.http.kit.uploads import receive_file
from holdfast.http.services.files import DISPOSITION, delete_own_file, own_file
from holdfast.ledger.api_keys import FILES_WRITE, TASKS_READ
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.queries.files import files_of_account
from holdfast_compat.replicate.schemas import (
    BASE,
    ReplicateFile,
    ReplicateFileList,
    replicate_file,
    with_next_address,
)

route = RouteTable("Replicate", auth=Auth.API_KEY)


@route(
    "POST",
    f"{BASE}/files",
    summary="Upload a file, as the part `content` of a form",
    scope=FILES_WRITE,
    files_max=1,
    form_files={"content": "The file."},
    reply=ReplicateFile,
    statuses=(201,),
    parameters=(DISPOSITION,),
)
async def upload_replicate_file(call: Call) -> Outcome:
    """The file is one of `GET /v2/files`, too."""
    key = await call.verify_key()
    if isinstance(key, Refusal):
        return key
    file = await receive_file(call, key.account_id, "content", texts={"metadata"})
    return file if isinstance(file, Refusal) else BodyResponse(replicate_file(call.deps.urls, file), status=201)


@route(
    "GET",
    f"{BASE}/files",
    summary="List the account's files; newest first",
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
        partial(replicate_file, call.deps.urls),
        lambda file: Position(file.created_at, file.file_id),
    )
    return with_next_address(call, page)


@route(
    "GET",
    f"{BASE}/files/{{file_id}}",
    summary="Retrieve a file's description",
    scope=TASKS_READ,
    reply=ReplicateFile,
    errors=("file_not_found",),
)
async def read_replicate_file(call: Call) -> Outcome:
    """`GET /v2/files/{file_id}/content` returns the file itself."""
    file = await own_file(call)
    return file if isinstance(file, Refusal) else replicate_file(call.deps.urls, file)


@route(
    "DELETE",
    f"{BASE}/files/{{file_id}}",
    summary="Delete a file; providers of unfinished tasks that name it can fetch it until these end",
    scope=FILES_WRITE,
    statuses=(204,),
    media=(Media(status=204, content_types=(), description="The file is deleted."),),
    errors=("file_not_found",),
)
async def remove_replicate_file(call: Call) -> Outcome:
    """Its content is removed later, unless another file or a result has the same."""
    return await delete_own_file(call) or Response(b"", status=204)
