"""Stored outputs, by the id in their links."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, select

from holdfast.persistence.records.tables import assets


class AssetRecord(NamedTuple):
    """One stored output; its bytes are in the asset store under ``sha256``."""

    asset_id: str
    request_id: str
    position: int
    sha256: str
    bytes: int
    content_type: str
    created_at: datetime
    expires_at: datetime


_BY_ID = select(
    assets.c.asset_id,
    assets.c.request_id,
    assets.c.position,
    assets.c.sha256,
    assets.c.bytes,
    assets.c.content_type,
    assets.c.created_at,
    assets.c.expires_at,
).where(assets.c.asset_id == bindparam("asset_id"))


def asset_by_id(rows: Connection, asset_id: str) -> AssetRecord | None:
    """Return the asset with this id, or None if it never existed or its row was deleted."""
    found = rows.execute(_BY_ID, {"asset_id": asset_id}).one_or_none()
    return None if found is None else AssetRecord._make(found)
