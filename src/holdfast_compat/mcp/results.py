"""The results of tools: text, structured values, links, small images themselves; refusals that say what to do.

What a tool refuses is its result, since an agent reads that; errors of the protocol are for programs.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.http.kit.calls import Call
from holdfast.http.kit.credentials import key_prefix_sent
from holdfast.http.kit.errors import error_response, row_of
from holdfast.http.kit.stored_content import open_stored
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.task import Task
from holdfast.ledger.values import format_amount, format_time
from holdfast.persistence.records.rows import FileRow
from holdfast.providers.storage.base import AssetMissing, asset_key
from holdfast.providers.storage.sniffing import EXTENSIONS
from holdfast_compat.mcp.views import ShownFile, ShownTask

IMAGES_BYTES_MAX: Final = 512 * 1024
"""The limit of the images that are part of a result, together: clients take events of a megabyte, and base64 adds a
third. Others are links only.
"""

_ASK_OWNER: Final = "Stop creating tasks and ask the owner of the account for credit."


class StoredImage(NamedTuple):
    """A stored content, as far as it is known."""

    sha256: str | None
    content_type: str | None
    bytes: int | None


def result_of(value: msgspec.Struct, *parts: dict[str, object], is_replay: bool = False) -> dict[str, object]:
    """Return a tool's result: the value as text and as it is, and other parts of the content after it."""
    structured: dict[str, Any] = msgspec.to_builtins(value)
    if is_replay:
        structured["replayed"] = True
    text = msgspec.json.encode(structured).decode()
    return {"content": [{"type": "text", "text": text}, *parts], "structuredContent": structured}


async def task_result(call: Call, task: Task, shown: ShownTask, *, with_images: bool) -> dict[str, object]:
    """Return the result of a tool that shows one task."""
    links: list[dict[str, object]] = []
    for index, each in enumerate(shown.output):
        if each.url is not None:
            name = f"{task.request_id}-{index}"
            links.append(_link(each.url, name, each.content_type, each.bytes))
    images: list[dict[str, object]] = []
    if with_images and links:
        images = await _images(call, [StoredImage(*_content_of(each)) for each in task.state.output])
    return result_of(shown, *links, *images)


async def file_result(call: Call, file: FileRow, shown: ShownFile, *, with_images: bool) -> dict[str, object]:
    """Return the result of a tool that shows one file."""
    images = await _images(call, [StoredImage(file.sha256, file.content_type, file.bytes)]) if with_images else []
    return result_of(shown, _link(shown.url, shown.filename, shown.content_type, shown.bytes), *images)


def _content_of(output: Any) -> tuple[str | None, str | None, int | None]:
    return output.sha256, output.content_type, output.bytes


def _link(url: str, name: str, content_type: str | None, size: int | None) -> dict[str, object]:
    link: dict[str, object] = {"type": "resource_link", "uri": url, "name": name}
    if content_type is not None:
        link["mimeType"] = content_type
    if size is not None:
        link["size"] = size
    return link


async def _images(call: Call, stored: Sequence[StoredImage]) -> list[dict[str, object]]:
    """Return the images that are small enough; one that cannot be read is left out, as its link remains."""
    images: list[dict[str, object]] = []
    left = IMAGES_BYTES_MAX
    for sha256, content_type, size in stored:
        is_image = content_type is not None and content_type.startswith("image/")
        if sha256 is None or size is None or not is_image or size > left:
            continue
        assert content_type is not None
        try:
            reader = await open_stored(call, asset_key(sha256, EXTENSIONS[content_type]))
        except AssetMissing:
            continue
        if isinstance(reader, Refusal):
            continue
        async with reader:
            content = b"".join([block async for block in reader])
        left -= size
        data = base64.b64encode(content).decode()
        images.append({"type": "image", "data": data, "mimeType": content_type})
    return images


def refused_result(call: Call, refusal: Refusal) -> dict[str, object]:
    """Return the result of a tool that refuses, and count it as a refused request is."""
    row = row_of(refusal.code)
    call.deps.operating.refused.count(
        status=row.status,
        code=refusal.code,
        route=call.route.name,
        request_id=call.request.id,
        caller=call.request.caller,
        key_prefix=key_prefix_sent(call.request.sent.get(b"authorization", [])),
        origin=call.origin(),
    )
    _, body, _ = error_response(refusal, call.request.id)
    text = " ".join(filter(None, (f"{refusal.code}: {refusal.message}", _advice(refusal))))
    return {
        "content": [{"type": "text", "text": text}],
        "structuredContent": msgspec.json.decode(body),
        "isError": True,
    }


def _advice(refusal: Refusal) -> str:
    """Return what an agent should do next."""
    match refusal.code:
        case "key_limit_exceeded" | "account_limit_exceeded":
            assert refusal.limit is not None
            left_micro = max(0, refusal.limit.credits_micro - refusal.limit.spent_micro)
            resets_at = refusal.limit.resets_at
            until = "it does not reset" if resets_at is None else f"it resets at {format_time(resets_at)}"
            return (
                "Stop creating tasks: nothing was created or charged, and repeating this changes nothing. "
                f"{format_amount(left_micro)} credits are left of the limit; {until}."
            )
        case "insufficient_credit":
            return f"Nothing was created or charged. {_ASK_OWNER}"
        case "max_credits_exceeded":
            return "Nothing was created or charged. Ask for less, or for a cheaper model, and quote it first."
        case "model_not_allowed" | "insufficient_scope":
            return "Do not repeat this: the owner of the account decides what the API key may do."
    seconds = refusal.retry_after_s or (None if refusal.final else row_of(refusal.code).retry_after_s)
    if seconds is None:
        return ""
    return f"Wait {seconds} seconds before you call again, with the same idempotency_key if it creates a task."
