"""Poison messages: how they are encoded, encrypted and shown, and which actors they are replayed to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import cast

from holdfast.actors.runtime.messages import Command
from holdfast.actors.runtime.refs import Directory
from holdfast.actors.workers.poison_writer import PoisonQueue, PoisonWriter
from holdfast.cluster.codec import CannotEncode
from holdfast.cluster.groups import SIGN_INS, codecs
from holdfast.ledger.clock import Now
from holdfast.persistence.operators.encryption import RowCipher
from holdfast.persistence.server.database import Database
from holdfast.settings.settings import Settings
from holdfast.supervision.poison_replays import PoisonReplays
from holdfast.supervision.spec import Child
from holdfast.supervision.tree import RunningChild
from holdfast.telemetry.reports.reporter import Reporter
from holdfast.wiring.masked_keys import masked_key


def poison_writer(
    settings: Settings, queue: PoisonQueue, database: Database, reporter: Reporter
) -> Callable[[], Child]:
    """Return the function that starts the worker which stores poison messages."""
    writer = PoisonWriter(
        queue,
        database=database,
        reporter=reporter,
        cipher=_cipher(settings),
        encode=_encode,
        mask=partial(masked_key, settings),
    )
    return lambda: RunningChild(writer.run)


def poison_replays(
    settings: Settings, database: Database, directories: Mapping[str, Directory], now: Now
) -> PoisonReplays:
    """Return what replays and discards poison messages."""
    return PoisonReplays(
        database,
        directories,
        decode=_decode,
        cipher=_cipher(settings),
        now=now,
        idempotency_ttl_s=settings.idempotency_ttl_s,
    )


def _cipher(settings: Settings) -> RowCipher:
    return RowCipher(settings.derived_key("poison messages"))


def _encode(group: str, message: object) -> bytes | None:
    """Return a message's body; None for one of sign-in, which may hold a code, or that links do not carry."""
    if group == SIGN_INS:
        return None
    try:
        return codecs()[group].encode_command(cast("Command[object]", message))
    except CannotEncode:
        return None


def _decode(group: str, message_type: str, body: bytes) -> Command[object]:
    return codecs()[group].decode_command(message_type, body)
