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
    """Reads on one connection of the service's own, each part for a second at most."""
    return await call.deps.database.read(read_server_state)
