"""Alembic's entry point: runs the migrations on the connection of ``holdfast.persistence.server.migrate``."""

from __future__ import annotations

from alembic import context

from holdfast.persistence.records.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
