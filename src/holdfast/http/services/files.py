"""An account's uploaded files, and the sending of stored results."""

from __future__ import annotations

from typing import Final

from holdfast.http.kit.calls import Call
from holdfast.http.kit.routes import Outcome, Parameter
from holdfast.http.kit.stored_content import serve_content
from holdfast.http.kit.values import shown
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import is_id
from holdfast.persistence.claims.files import delete_file
from holdfast.persistence.queries.files import file_by_id
from holdfast.persistence.queries.tasks import asset_by_id
from holdfast.persistence.records.rows import AssetRow, FileRow
from holdfast.providers.storage.sniffing import EXTENSIONS

DISPOSITION: Final = Parameter(
    name="Content-Disposition",
    location="header",
    description='The name of a file that is the whole body, as in `attachment; filename="cat.png"`.',
)
LINK_EXPIRED: Final = Refusal(
    code="asset_expired",
    message="The link has expired. Retrieve the task for a new one while its results are stored.",
)
"""The refusal of a result that is no longer stored, or whose link is over."""


def file_not_found(file_id: str) -> Refusal:
    """Return the refusal of a file's id that the caller has no file for."""
    return Refusal(code="file_not_found", message=f"The file {shown(file_id)} does not exist, or has expired.")


async def own_file(call: Call, file_id: str | None = None) -> FileRow | Refusal:
    """Authenticate the key and return its account's file, by default the path's.

    Refuses: 1. as the key is refused; 2. ``file_not_found``.
    """
    key = await call.verify_key()
    if isinstance(key, Refusal):
        return key
    file_id = call.path["file_id"] if file_id is None else file_id
    file = await call.deps.find_by_id(file_by_id, file_id)
    if file is None or file.account_id != key.account_id or file.expires_at <= call.deps.now():
        return file_not_found(file_id)
    return file


async def delete_own_file(call: Call) -> Refusal | None:
    """Authenticate the caller and delete the account's file of the path. Refuses as :func:`own_file` does."""
    account_id = await call.verify_caller()
    if isinstance(account_id, Refusal):
        return account_id
    file_id, now = call.path["file_id"], call.deps.now()
    if not is_id(file_id) or not await call.write(
        account_id, lambda rows: delete_file(rows, account_id, file_id, now)
    ):
        return file_not_found(file_id)
    return None


async def send_asset(call: Call, asset: AssetRow) -> Outcome:
    """Send a stored result, or the part of it that the request asks for. Refuses with ``asset_expired``."""
    if asset.expires_at <= call.deps.now():
        return LINK_EXPIRED

    async def is_gone() -> bool:
        return await call.read(lambda rows: asset_by_id(rows, asset.asset_id)) is None

    filename = f"{asset.asset_id}.{EXTENSIONS[asset.content_type]}"
    return await serve_content(call, asset, filename, gone=LINK_EXPIRED, is_gone=is_gone)
