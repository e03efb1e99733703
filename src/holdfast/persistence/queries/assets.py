"""Stored outputs, found by the id that their links carry."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, select

from holdfast.persistence.tables import assets


class AssetRecord(NamedTuple):
    """One stored output; its bytes lie in the asset store under ``sha256``."""

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
    """The asset with this id, or None when it never was or its row has been swept."""
    found = rows.execute(_BY_ID, {"asset_id": asset_id}).one_or_none()
    return None if found is None else AssetRecord._make(found)
