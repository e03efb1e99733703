"""``holdfast move-account``: move an account to another cell, from a machine that reaches both databases.

It works on the rows, beside the running services of both cells, and can be ended at any moment: the next run goes
on where it stopped, or undoes the move.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import Final, NamedTuple

import trio
from sqlalchemy import Connection, text

from holdfast.ledger.cells import Cells
from holdfast.ledger.values import place_of, utc_now
from holdfast.persistence.claims.contents import Content, ContentClaims
from holdfast.persistence.operators.moves import (
    MoveRefused,
    Unfinished,
    arrive,
    came_from,
    complete,
    contents_of,
    depart,
    email_of,
    find_move,
    has_email,
    undo,
)
from holdfast.persistence.records.move_tables import AccountMove
from holdfast.persistence.server.connections import connected
from holdfast.persistence.server.database import Database
from holdfast.providers.storage.base import AssetMissing, AssetStore, asset_key
from holdfast.providers.storage.sniffing import EXTENSIONS, UNKNOWN_TYPE
from holdfast.providers.storage.spool import Spool
from holdfast.settings.settings import Settings
from holdfast.wiring.parts import asset_store

CLAIM: Final = timedelta(hours=6)
"""How long copied contents are kept at the target before their rows arrive; a repeated command renews it."""
WAIT_S: Final = 60.0
"""How long an account that has something to finish is tried again."""
PAUSE_S: Final = 0.5


class EndOfMove(NamedTuple):
    """A cell that the move is from or to: its settings and the URL of its database."""

    settings: Settings
    url: str

    @property
    def number(self) -> int:
        """Its number."""
        assert self.settings.cell is not None, "two cells with numbers"
        return self.settings.cell


def faults_of_pair(account_id: str, source: Settings, target: Settings) -> list[str]:
    """Return what is wrong with the settings of two cells, of which one is to get an account of the other.

    The cell of its place is one of them: requests of the account come there, and that cell alone knows where it is.
    """
    if source.cell is None or target.cell is None or source.cells != target.cells:
        return ["CELL and CELLS must be set in both cells, and CELLS be the same"]
    if source.cell == target.cell:
        return ["CELL is the same in both"]
    listed = [cell.number for cell in Cells(source.cell, source.cells).of_place(place_of(account_id))]
    if source.cell not in listed and target.cell not in listed:
        return [f"{account_id} has a place of cell {listed[0]}: move it there first, and from there"]
    faults = [
        f"{name.upper()} differs: what one cell has signed or sealed is not valid in the other"
        for name in ("server_key", "callback_secret", "sandbox_secret")
        if getattr(source, name) != getattr(target, name)
    ]
    if source.receipt_prefix == target.receipt_prefix:
        faults.append("RECEIPT_PREFIX is the same: receipts of both cells would have the same numbers")
    if _place_of_store(source) == _place_of_store(target):
        faults.append("both cells have the same storage of results: one would delete those of the other")
    return faults


def move_account(
    account_id: str,
    source: EndOfMove,
    target: EndOfMove,
    *,
    undoing: bool = False,
    say: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Move an account, or undo a move that has not arrived; ``say`` gets a line for each step.

    Raises :class:`MoveRefused`, and :class:`~holdfast.persistence.server.database_faults.DatabaseAway`.
    """
    with ExitStack() as stack:
        rows, others = (stack.enter_context(connected(cell.url)) for cell in (source, target))
        if _are_one(rows, others, account_id):
            raise MoveRefused("Both cells have the same database.")
        move = find_move(rows, account_id)
        if move is not None and move.cell != target.number:
            raise MoveRefused(f"{account_id} has left for cell {move.cell}.")
        if undoing:
            if move is None:
                raise MoveRefused(f"{account_id} is not being moved.")
            undo(rows, others, move, cell=source.number)
            say(f"{account_id} is open again in cell {source.number}")
            return
        if move is not None and move.state == "moved":
            say(f"{account_id} is in cell {move.cell} since {move.at:%Y-%m-%d %H:%M:%S} UTC")
            return
        copied: set[Content] = set()
        copy = partial(_copy_contents, account_id, source, target, rows, copied)
        say(f"{copy()} results and files copied")
        if move is None:
            _check_place(account_id, source, target, rows)
            _check_email(account_id, source, target, rows, others)
            move = _departed(rows, account_id, target.number, sleep)
        say(f"closed in cell {source.number} at operation {move.number}")
        copy()
        arrive(rows, others, move, cell=source.number)
        say(f"open in cell {target.number}: all rows are there, and break no rule of the audit")
        complete(rows, move)
        say(f"{account_id} is in cell {target.number}")


def _check_place(account_id: str, source: EndOfMove, target: EndOfMove, rows: Connection) -> None:
    """Check that a request of the account will find it.

    A request follows one move. So an account that a cell of its place has moved here can only go back to that one,
    or to the cell that has the place now, which is asked first.
    """
    home, *former = (
        cell.number for cell in Cells(source.number, source.settings.cells).of_place(place_of(account_id))
    )
    earlier = came_from(rows, account_id)
    if home not in (source.number, target.number) and earlier in (home, *former) and earlier != target.number:
        raise MoveRefused(f"{account_id} came from cell {earlier}, which would not find it: move it there first.")


def _check_email(
    account_id: str, source: EndOfMove, target: EndOfMove, rows: Connection, others: Connection
) -> None:
    """Check that sign-in with the account's address will find it, and no other.

    The cell that is asked for the address knows of moves from itself alone. So an account that was opened where an
    earlier one of its address had been moved to can only be moved to the cell of the address, and back.
    """
    email = email_of(rows, account_id)
    if email is None:
        raise MoveRefused(f"{account_id} is not in this cell.")
    if has_email(others, email):
        raise MoveRefused("An account of the other cell has the same e-mail address.")
    asked = [cell.number for cell in Cells(source.number, source.settings.cells).of_email(email)]
    if source.number in asked or target.number == asked[0]:
        return
    earlier = find_move(others, account_id)
    if earlier is None or earlier.cell != source.number:
        raise MoveRefused(f"Its e-mail address is of cell {asked[0]}, which would not find it in the other cell.")


def _departed(rows: Connection, account_id: str, to: int, sleep: Callable[[float], None]) -> AccountMove:
    waited_s = 0.0
    while isinstance(found := depart(rows, account_id, to=to), Unfinished):
        if waited_s >= WAIT_S:
            raise MoveRefused(
                f"{account_id} waits for {found.receipts} receipts and {found.coupons} coupons: try again later."
            )
        sleep(PAUSE_S)
        waited_s += PAUSE_S
    return found


def _are_one(source: Connection, target: Connection, account_id: str) -> bool:
    """Whether both are connected to the same database: there a lock of one keeps the other from it."""
    key = {"key": f"move of {account_id}"}
    with source.begin(), target.begin():
        source.execute(text("select pg_advisory_xact_lock(hashtextextended(:key, 0))"), key)
        return not target.scalar(text("select pg_try_advisory_xact_lock(hashtextextended(:key, 0))"), key)


def _place_of_store(settings: Settings) -> tuple[str, ...]:
    if settings.asset_store == "local":
        return ("local", str(settings.data_dir.resolve()))
    return ("s3", str(settings.s3_endpoint), settings.s3_bucket)


# ------------------------------------------------------------------------------------------- results and files


def _copy_contents(
    account_id: str, source: EndOfMove, target: EndOfMove, rows: Connection, copied: set[Content]
) -> int:
    """Claim and copy the contents that are not ``copied`` yet; return how many there are now."""
    wanted = [each for each in contents_of(rows, account_id, archive_type=UNKNOWN_TYPE) if each not in copied]
    if wanted:
        claims = ContentClaims(Database(target.url).keep_writer())
        until = utc_now() + CLAIM
        stores = asset_store(source.settings), asset_store(target.settings)
        for content in wanted:
            if not claims.claim(content, until):
                raise MoveRefused("The other cell is deleting a content of the account: try again in a minute.")
            trio.run(_copy, content, *stores)
            copied.add(content)
    return len(copied)


async def _copy(content: Content, source: AssetStore, target: AssetStore) -> None:
    """Copy one content. One that the source does not have, as of an upload that was not finished, is left out."""
    extension = EXTENSIONS[content.content_type]
    try:
        reader = await source.open(asset_key(content.sha256, extension))
    except AssetMissing:
        return
    with closing(Spool(Path(gettempdir()))) as spool:
        async with reader:
            async for block in reader:
                spool.write(block)
        one = trio.CapacityLimiter(1)
        await trio.to_thread.run_sync(target.put, spool.finish(), content.sha256, extension, limiter=one)
