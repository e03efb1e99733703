"""The records of operators, written without the journal: they must be possible while an operator repairs it."""

from __future__ import annotations

from datetime import datetime

from holdfast.persistence.operators.actions import write_action
from holdfast.persistence.operators.sessions import add_session, end_session
from holdfast.persistence.records.operator_tables import OperatorAction, OperatorSession
from holdfast.persistence.server.database import Database


class OperatorRecords:
    """Every method raises :class:`~holdfast.persistence.server.database_faults.DatabaseAway`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def write_action(self, action: OperatorAction) -> None:
        """Write an action before its effect, or complete it afterwards."""
        await self._database.work(write_action, action)

    async def add_session(self, session: OperatorSession) -> None:
        """Write a new session."""
        await self._database.work(add_session, session)

    async def end_session(self, cookie_mac: bytes, at: datetime) -> None:
        """End a session."""
        await self._database.work(end_session, cookie_mac, at)
