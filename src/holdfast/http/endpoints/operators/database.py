"""The database server: what its connections do, whom locks block, what is slow, and what is large."""

from __future__ import annotations

from holdfast.http.kit.actions import OperatorRoutes
from holdfast.http.kit.calls import Call
from holdfast.http.kit.routes import Outcome
from holdfast.persistence.queries.server_state import ServerState, read_server_state

route = OperatorRoutes("Database")


@route.read(
    "/ops/api/database",
    "Retrieve the state of the database server: connections, locks, slow statements, tables, replicas",
    ServerState,
)
async def read_database(call: Call) -> Outcome:
    """Read on one connection, each part for a second at most, also while a locked table counts as an outage."""
    return await call.deps.database.examine(read_server_state)
