"""Alembic's entry: runs the migrations on the connection that ``holdfast.persistence.server.migrate`` hands in."""

from __future__ import annotations

from alembic import context

from holdfast.persistence.records.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
