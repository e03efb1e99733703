"""The results of tasks as OpenAI's clients read them: links, base64 in JSON, and the bytes themselves."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from quart import Response

from holdfast.http.kit.calls import Call
from holdfast.http.kit.responses import streamed
from holdfast.http.kit.routes import BodyResponse, Media, Outcome
from holdfast.http.kit.stored_content import SEND_TIMEOUT_S, open_stored
from holdfast.http.services.files import send_asset
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.public import public_output
from holdfast.ledger.tasks.task import Task
from holdfast.persistence.queries.tasks import asset_by_id
from holdfast.providers.storage.base import AssetMissing, AssetReader, asset_key
from holdfast.providers.storage.sniffing import EXTENSIONS
from holdfast_compat.openai.creating import task_headers
from holdfast_compat.openai.schemas import ImageItem, ImagesBody

AT_PROVIDER: Final = Media(status=302, content_types=(), description="The file is at its provider.")
_NOT_STORED: Final = Refusal(code="asset_expired", message="The result is no longer stored.")


def image_links(call: Call, task: Task) -> Outcome:
    """Return the links to a task's images."""
    output = public_output(call.deps.urls, task, now=call.deps.now())
    body = ImagesBody(int(task.created_at.timestamp()), [ImageItem(url=each.url) for each in output])
    return BodyResponse(body, headers=task_headers(task.request_id))


async def image_bytes(call: Call, task: Task) -> Outcome:
    """Return a task's images in base64, sent while they are read, so that they need little memory."""
    readers: list[AssetReader] = []
    async with AsyncExitStack() as opened:
        for item in task.state.output:
            if item.sha256 is None or item.content_type is None:
                return _NOT_STORED
            try:
                reader = await open_stored(call, asset_key(item.sha256, EXTENSIONS[item.content_type]))
            except AssetMissing:
                return _NOT_STORED
            if isinstance(reader, Refusal):
                return reader
            readers.append(await opened.enter_async_context(reader))
        kept = opened.pop_all()
    headers = {"Content-Type": "application/json", **dict(task_headers(task.request_id))}
    return streamed(_sent(_image_json(task, readers), kept), headers, timeout_s=SEND_TIMEOUT_S)


async def file_of(call: Call, task: Task) -> Outcome:
    """Return the bytes of a task's first result."""
    item = task.state.output[0]
    if item.asset_id is None:
        location = public_output(call.deps.urls, task, now=call.deps.now())[0].url or ""
        return Response(b"", status=302, headers={"Location": location, **dict(task_headers(task.request_id))})
    asset_id = item.asset_id
    asset = await call.read(lambda rows: asset_by_id(rows, asset_id))
    if asset is None:
        return _NOT_STORED
    response = await send_asset(call, asset)
    if isinstance(response, Response):
        response.headers.update(task_headers(task.request_id))
    return response


@asynccontextmanager
async def _sent(parts: AsyncIterator[bytes], opened: AsyncExitStack) -> AsyncIterator[AsyncIterator[bytes]]:
    async with opened:
        yield parts


async def _image_json(task: Task, readers: Sequence[AssetReader]) -> AsyncIterator[bytes]:
    yield b'{"created":%d,"data":[' % int(task.created_at.timestamp())
    for index, reader in enumerate(readers):
        yield b'%b{"url":null,"b64_json":"' % (b"," if index else b"")
        rest = b""
        async for block in reader:
            unsent = rest + block
            whole = len(unsent) - len(unsent) % 3  # base64 is of three bytes each
            rest = unsent[whole:]
            yield base64.b64encode(unsent[:whole])
        yield base64.b64encode(rest) + b'"}'
    yield b"]}"
