"""A process that was frozen while a newer release migrated its database says so, and ends."""

from __future__ import annotations

import signal

import psycopg
import pytest

from holdfast.persistence.server.database import RELEASE
from holdfast.persistence.server.embedded import EmbeddedPostgres

from .conftest import NewService

MESSAGE = (
    "This process is of an older release than the database's schema: "
    f"that is at revision 9999, and the process at {RELEASE}."
)


@pytest.mark.slow
def test_a_process_that_thaws_after_a_migration_ends(new_service: NewService, postgres: EmbeddedPostgres) -> None:
    service = new_service(DATABASE_URL=postgres.url)
    service.start()
    assert service.process is not None
    service.process.send_signal(signal.SIGSTOP)
    with psycopg.connect(postgres.url) as connection:
        connection.execute("update alembic_version set version_num = '9999'")
        # No comment: it is not known that older processes can use the schema.
        connection.execute("comment on table alembic_version is null")
    service.process.send_signal(signal.SIGCONT)
    assert service.process.wait(60) == 1
    assert [line["reason"] for line in service.log_lines() if line["event"] == "the tree gave up"] == [MESSAGE]
    with psycopg.connect(postgres.url) as connection:
        stored = connection.execute("select report ->> 'reason' from reports where kind = 'escalation'").fetchall()
    assert stored == [(MESSAGE,)]

    # Whatever restarts it learns from the exit code that the same release cannot start again.
    service._launch()
    assert service.process.wait(60) == 2
    assert "Run that release or a later one." in service.log_tail()
