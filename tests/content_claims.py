"""Claims of contents in a test's own transaction."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import psycopg
from sqlalchemy import Connection

from holdfast.persistence.claims.contents import RESULT_CLAIM_S, Content, claim_contents


def claim_content(rows: Connection, content: Content, at: datetime) -> bool:
    """Claim one content; False while it is being deleted."""
    return content in claim_contents(driver_connection(rows), [content], at + timedelta(seconds=RESULT_CLAIM_S))


def driver_connection(rows: Connection) -> psycopg.Connection[Any]:
    """Return psycopg's connection."""
    connection = rows.connection.driver_connection
    assert isinstance(connection, psycopg.Connection)
    return connection
