"""The archive of all that is stored of an account."""

from __future__ import annotations

from functools import partial
from typing import Literal

import msgspec

from holdfast.http.kit.calls import Auth, Call
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
from holdfast.http.schemas.common import render
from holdfast.ledger.public_types import Time
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import new_id, new_id_of_account
from holdfast.persistence.claims.archives import TRIES_MAX, archive_by_id, begin_archive, find_archive
from holdfast.persistence.records.rows import ArchiveRow, FileRow
from holdfast.providers.storage.sniffing import UNKNOWN_TYPE

route = RouteTable("Account")

_GONE = Refusal(code="asset_expired", message="The link has expired, or the archive. Ask for another.")


class ArchiveBody(msgspec.Struct, frozen=True):
    """The archive of an account: one ZIP file."""

    archive_id: str
    """The archive's id, `arc_…`."""
    state: Literal["making", "ready", "failed"]
    """`ready` once it can be fetched; one that has `failed` may be asked for again."""
    requested_at: Time
    """When it was asked for."""
    made_at: Time | None
    """When it was made; null before."""
    expires_at: Time | None
    """When it is deleted, a day after it was made; null before. Until then no other is made."""
    bytes: int | None
    """Its length in bytes; null before it is made."""
    url: str | None
    """A signed link to it, valid for an hour from this response, at most until `expires_at`; null before."""


@route(
    "POST",
    "/v2/control/archive",
    summary="Ask for an archive of all that is stored of the account",
    auth=Auth.SESSION,
    reply=ArchiveBody,
)
async def request_archive(call: Call) -> Outcome:
    """It is made in the background. While there is one, that is returned.

    The ZIP has the account, its keys without secrets, webhooks, orders, receipts, operations and tasks as lines
    of JSON, the usage log as CSV, and results and files up to 1 GiB; `manifest.json` names those it does not have.
    """
    account_id, now = call.session.account_id, call.deps.now()
    begin = partial(
        begin_archive,
        account_id=account_id,
        archive_id=new_id_of_account("arc", account_id),
        change_id=new_id("chg"),
        now=now,
    )
    return _body(call, await call.write(account_id, begin))


@route(
    "GET",
    "/v2/control/archive",
    summary="Retrieve the archive that was asked for last, with a link once it is made",
    auth=Auth.SESSION,
    reply=ArchiveBody,
    errors=("archive_not_found",),
)
async def read_archive(call: Call) -> Outcome:
    """The link is signed for this response."""
    found = await call.read(partial(find_archive, account_id=call.session.account_id))
    if found is None or (found.expires_at is not None and found.expires_at <= call.deps.now()):
        return Refusal(code="archive_not_found", message="No archive was asked for, or it has expired.")
    return _body(call, found)


@route(
    "GET",
    "/v2/archives/{archive_id}",
    summary="Retrieve an archive by its signed link; supports ranges",
    media=content_media(UNKNOWN_TYPE),
    parameters=(*link_parameters(required=True), RANGE, IF_CACHED),
    errors=LINK_ERRORS,
)
async def fetch_archive(call: Call) -> Outcome:
    """The link's own parameters are the credential."""
    archive_id = call.path["archive_id"]
    refusal = refuse_link(call, archive_id, _GONE)
    if refusal is not None:
        return refusal
    found = await call.read(partial(archive_by_id, archive_id=archive_id))
    if found is None or found.expires_at is None or found.expires_at <= call.deps.now():
        return _GONE
    assert found.sha256 is not None
    assert found.bytes is not None
    content = FileRow(
        found.account_id,
        archive_id,
        f"{archive_id}.zip",
        UNKNOWN_TYPE,
        found.bytes,
        found.sha256,
        found.requested_at,
        found.expires_at,
    )

    async def is_gone() -> bool:
        return await call.read(partial(archive_by_id, archive_id=archive_id)) is None

    return await serve_content(call, content, content.filename, gone=_GONE, is_gone=is_gone)


def _body(call: Call, found: ArchiveRow) -> ArchiveBody:
    now, urls = call.deps.now(), call.deps.urls
    url = None
    if found.expires_at is not None:
        url = urls.archive_url(found.archive_id, urls.link_expiry(now, found.expires_at))
    has_failed = found.made_at is None and found.tries >= TRIES_MAX and found.claimed_until <= now
    state = "failed" if has_failed else "making" if found.made_at is None else "ready"
    return render(ArchiveBody, found, state=state, url=url)
