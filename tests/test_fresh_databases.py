"""The databases that tests share one after the other."""

from __future__ import annotations

import psycopg
import pytest

from .fresh_databases import FreshDatabases


@pytest.mark.parametrize(
    "change", ["revoke usage on schema public from public", "grant select on accounts to public"]
)
def test_a_database_whose_rights_were_changed_is_not_reused(fresh_databases: FreshDatabases, change: str) -> None:
    url = fresh_databases.take()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(change)
    fresh_databases.give_back(url)
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(url)
