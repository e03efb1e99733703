"""Run many statements, or many COPYs, in one exchange with the server.

psycopg's own pipeline sends each statement as soon as it is queued, and wakes the server for it; its ``copy`` runs
one at a time. Here the server gets everything at once, and the process waits once, for the last response.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, TypeAlias

import psycopg
from psycopg import errors, pq
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.waiting import Ready, Wait

CHUNK_BYTES = 1 << 20

Statement: TypeAlias = tuple[str, Sequence[str | bytes]]
"""SQL with ``%s`` for each parameter, and the parameters as text, or as bytes in their type's binary form."""

_Encoded: TypeAlias = tuple[str, list[bytes], list[bool]]
"""SQL, its parameters, and whether each is in binary form."""


class StatementsOutdated(Exception):
    """The server cannot run a statement as it was prepared: a column has another type, or it was deallocated.

    The transaction has failed. Later runs prepare all statements again.
    """


class PreparedStatements:
    """Runs statements on one connection. Each is prepared when it first runs, for as long as the connection lasts.

    The server parses and plans it once then; a batch has the same few statements as the one before.
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self._names: dict[str, bytes] = {}
        self._prepared_count = 0

    def run(self, statements: Sequence[Statement]) -> list[list[tuple[Any, ...]]]:
        """Run ``statements`` in the open transaction, or in one begun here; return the rows of each.

        All of them have one time limit, as a single one has: the server answers when it has run the last, so one
        that works looks the same as one that is gone. The journal looks up what that commits later.

        Raises the server's first error, after which it runs nothing more of them (:class:`StatementsOutdated` if it
        concerns how an earlier run prepared one), or, before anything is sent, UnicodeEncodeError or DataError for
        text that it cannot hold.
        """
        pgconn = self.connection.pgconn
        begins = pgconn.transaction_status == pq.TransactionStatus.IDLE
        if begins:
            statements = [("begin", ()), *statements]
        encoded = [_encoded(statement) for statement in statements]
        results = self.connection.wait(self._exchanged(pgconn, encoded))
        transformer = Transformer(self.connection)
        found: list[list[tuple[Any, ...]]] = []
        for result in results[1:] if begins else results:
            if result.ntuples:
                transformer.set_pgresult(result)
                found.append(transformer.load_rows(0, result.ntuples, tuple))
            else:
                found.append([])
        return found

    def _exchanged(
        self, pgconn: pq.abc.PGconn, statements: Sequence[_Encoded]
    ) -> Generator[Wait, Ready | int, list[pq.abc.PGresult]]:
        new_names: dict[str, bytes] = {}
        requests: list[tuple[str, bool]] = []  # the SQL, and whether the request runs it or prepares it
        pgconn.enter_pipeline_mode()
        for sql, parameters, are_binary in statements:
            name = self._names.get(sql) or new_names.get(sql)
            if name is None:
                self._prepared_count += 1
                name = new_names[sql] = b"holdfast_%d" % self._prepared_count
                pgconn.send_prepare(name, _numbered(sql))
                requests.append((sql, False))
            pgconn.send_query_prepared(name, parameters, are_binary)
            requests.append((sql, True))
        pgconn.pipeline_sync()
        yield from flushed(pgconn)
        results: list[pq.abc.PGresult] = []
        try:
            for _ in requests:
                result = yield from _next_result(pgconn)
                assert result is not None
                results.append(result)
                yield from _next_result(pgconn)  # the end of its results
            yield from _next_result(pgconn)  # the response to the sync
        except psycopg.OperationalError:
            # The connection broke. If the server has said why, that is raised.
            if all(result.status in _SUCCEEDED for result in results):
                raise
        else:
            pgconn.exit_pipeline_mode()
        for (sql, runs), result in zip(requests, results, strict=False):
            if result.status not in _SUCCEEDED:
                error = error_from_result(result)
                if sql not in new_names and isinstance(error, _OUTDATED):
                    self._names.clear()
                    raise StatementsOutdated(str(error)) from error
                raise error
            if not runs:
                self._names[sql] = new_names[sql]
        return [result for (_, runs), result in zip(requests, results, strict=True) if runs]


_SUCCEEDED = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)
_OUTDATED = (errors.FeatureNotSupported, errors.InvalidSqlStatementName)


def _encoded(statement: Statement) -> _Encoded:
    sql, parameters = statement
    are_binary = [isinstance(each, bytes) for each in parameters]
    return sql, [each if isinstance(each, bytes) else _encoded_text(each) for each in parameters], are_binary


def _encoded_text(text: str) -> bytes:
    if "\0" in text:
        raise psycopg.DataError("PostgreSQL text cannot contain NUL (0x00) bytes")
    return text.encode()


def _numbered(sql: str) -> bytes:
    """Return SQL with the server's own placeholders, ``$1`` and so on."""
    first, *rest = sql.split("%s")
    return "".join([first, *(f"${number}{part}" for number, part in enumerate(rest, start=1))]).encode()


def copy_all(connection: psycopg.Connection[Any], copies: Sequence[tuple[str, str]]) -> None:
    """Run ``copies`` (SQL and text of each) in the open transaction, or in one begun here.

    Raises the server's first error, which ends the transaction, or UnicodeEncodeError before anything is sent.
    """
    if not copies:
        return
    pgconn = connection.pgconn
    begins = ["begin"] if pgconn.transaction_status == pq.TransactionStatus.IDLE else []
    request = "; ".join([*begins, *(sql for sql, _ in copies)]).encode()
    # Encoded first: text that cannot be encoded must not leave the server waiting for it.
    texts = [text.encode() for _, text in copies]
    connection.wait(_copied(pgconn, request, texts))


def _copied(pgconn: pq.abc.PGconn, request: bytes, texts: Sequence[bytes]) -> Generator[Wait, Ready | int, None]:
    pgconn.send_query(request)
    yield from flushed(pgconn)
    waiting = iter(texts)
    error: pq.abc.PGresult | None = None
    while (result := (yield from _next_result(pgconn))) is not None:
        if result.status == pq.ExecStatus.COPY_IN:
            yield from _sent(pgconn, next(waiting))
        elif result.status != pq.ExecStatus.COMMAND_OK and error is None:
            error = result
    if error is not None:
        raise error_from_result(error)


def _sent(pgconn: pq.abc.PGconn, text: bytes) -> Generator[Wait, Ready | int, None]:
    for start in range(0, len(text), CHUNK_BYTES):
        while pgconn.put_copy_data(text[start : start + CHUNK_BYTES]) == 0:
            yield Wait.W
        yield from flushed(pgconn)
    while pgconn.put_copy_end(None) == 0:
        yield Wait.W
    yield from flushed(pgconn)


def flushed(pgconn: pq.abc.PGconn) -> Generator[Wait, Ready | int, None]:
    """Wait until everything queued has been sent."""
    while pgconn.flush():
        # Read too: a server that rejects the data reports it and stops reading.
        if (yield Wait.RW) & Ready.R:
            pgconn.consume_input()


def _next_result(pgconn: pq.abc.PGconn) -> Generator[Wait, Ready | int, pq.abc.PGresult | None]:
    while pgconn.is_busy():
        yield Wait.R
        pgconn.consume_input()
    return pgconn.get_result()
