"""Stored outputs, by the id in their links."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam

from holdfast.persistence.records.tables import assets
from holdfast.persistence.records.tasks import ASSET, AssetRow

_BY_ID = ASSET.where(assets.c.asset_id == bindparam("asset_id"))


def asset_by_id(rows: Connection, asset_id: str) -> AssetRow | None:
    """Return the asset with this id, or None if it never existed or its row was deleted."""
    found = rows.execute(_BY_ID, {"asset_id": asset_id}).one_or_none()
    return None if found is None else AssetRow(*found)
