"""Run several COPYs in one request.

The server goes from one to the next without another request, which saves a round trip for each, and a dozen
acquisitions of the interpreter lock. psycopg's own ``copy`` runs one at a time.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import psycopg
from psycopg import pq
from psycopg.errors import error_from_result
from psycopg.waiting import Ready, Wait

CHUNK_BYTES = 1 << 20


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
