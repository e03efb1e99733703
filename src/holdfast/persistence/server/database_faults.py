"""Classify exceptions of the database: the server is gone, it is slow, or the statement itself is at fault.

The first two are no fault of the statement, of the actor that sent it, or of the caller. Every other exception
passes through and is handled as a bug.
"""

from __future__ import annotations

from typing import Literal

import psycopg
from psycopg import errors
from sqlalchemy.exc import DBAPIError, PendingRollbackError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from holdfast.telemetry.reports.causes import CannotServe

Trouble = Literal["away", "slow"]
"""away: the connection or the server is gone, or it takes no writes. slow: it did not answer in time."""

_AWAY_STATES = frozenset(
    {
        "57P01",  # admin shutdown
        "57P02",  # crash shutdown
        "57P03",  # cannot connect now: starting up, shutting down, recovering
        "57P05",  # idle session timeout
        "25P03",  # idle-in-transaction timeout: the server closed the connection
        "53300",  # too many connections
    }
)
_SLOW_STATES = frozenset(
    {
        "57014",  # query canceled: the statement timeout, or an operator
        "55P03",  # lock not available: the lock timeout
        "53100",  # disk full: a read's temporary files
        "53200",  # out of memory
        "58030",  # input/output error
    }
)
_NO_WRITES_STATES = frozenset(
    {
        "25006",  # read-only transaction: the server has become a standby, or was switched to read-only
        "53100",  # disk full
        "53200",  # out of memory
        "58030",  # input/output error
    }
)
_RETRIED_STATES = frozenset(
    {
        "40001",  # serialization failure
        "40P01",  # deadlock detected
    }
)


class DatabaseAway(Exception):
    """The database cannot be reached or did not answer in time; nothing was changed by this call.

    The exception of :meth:`Database.work`: when the connection is lost while its transaction commits, the
    change may have been committed.
    """

    def __init__(self, reason: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after_s = retry_after_s


class QueryTimedOut(DatabaseAway):
    """One query took too long, or no connection was free in time; the database itself may be available."""


class DatabaseTooOld(CannotServe):
    """The server's version is below the oldest one supported."""


class OlderRelease(CannotServe):
    """Processes of this release cannot use the database's schema, which a newer one has migrated."""


class ServerSilent(psycopg.OperationalError):
    """The server sent nothing within the client's own time limit, and the connection has been closed.

    A working server responds within ``statement_timeout``; one whose processes are stopped, or whose host is
    unreachable, does not.
    """


def trouble_of(exc: BaseException, *, writing: bool = False) -> Trouble | None:
    """Return whether an exception of psycopg, SQLAlchemy or ours means that the database is away or slow.

    ``writing``: the statement writes, so that a server that takes no writes counts as away.
    """
    match exc:
        case QueryTimedOut() | PoolTimeout() | ServerSilent():
            return "slow"
        case DatabaseAway() | PendingRollbackError():
            return "away"
        case DBAPIError(orig=BaseException() as cause):
            found = trouble_of(cause, writing=writing)
            return "away" if found is None and exc.connection_invalidated else found
        case psycopg.OperationalError() | psycopg.InterfaceError() | psycopg.InternalError():
            return _trouble_of_driver(exc, writing=writing)
        case _:
            return None


def is_away(exc: BaseException) -> bool:
    """Whether the connection or the server is gone."""
    return trouble_of(exc) == "away"


def is_worth_retrying(exc: BaseException) -> bool:
    """Whether a transaction may succeed if repeated: it met a deadlock, a lock or a timeout."""
    state = exc.sqlstate if isinstance(exc, psycopg.Error) else None
    return state in _RETRIED_STATES or isinstance(exc, errors.LockNotAvailable | errors.QueryCanceled)


def takes_no_writes(exc: BaseException) -> bool:
    """Whether the server reports that it cannot write at all now."""
    state = exc.sqlstate if isinstance(exc, psycopg.Error) else None
    return state in _AWAY_STATES or state in _NO_WRITES_STATES


def reason_of(exc: BaseException) -> str:
    """Return the driver's message on one line."""
    cause = exc.orig if isinstance(exc, DBAPIError) and exc.orig is not None else exc
    return " ".join(str(cause).split()) or type(cause).__name__


def _trouble_of_driver(exc: psycopg.Error, *, writing: bool) -> Trouble | None:
    state = exc.sqlstate
    if state is None:
        # Without a state the fault is the client library's own: it could not connect, or lost the connection.
        is_closed = isinstance(exc, psycopg.InterfaceError) and "connection" in str(exc)
        is_lost = isinstance(exc, psycopg.OperationalError) and not isinstance(exc, errors.PipelineAborted)
        return "away" if is_closed or is_lost else None
    if state.startswith("08") or state in _AWAY_STATES or (writing and state in _NO_WRITES_STATES):
        return "away"
    return "slow" if state in _SLOW_STATES else None
