"""The encodings of commands and their replies on links: msgpack of their declared types, never pickle.

A command is encoded as its type's fields; where a field may have one of several classes, as the rows that a task's
step writes, these are tagged. A reply is a value of the type that the command declares, a refusal, or either of
them replayed; a fault keeps its name. Of the groups below is accepted from another member, and no more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import Any, Final, get_args

import msgspec

from holdfast.actors.account.actor import AccountCommand
from holdfast.actors.runtime.faults import (
    AccountAway,
    AskFault,
    Crashed,
    Deadlock,
    NotAccepted,
    OutcomeUnknown,
    Overloaded,
    Quarantined,
    StaleFence,
    Unavailable,
)
from holdfast.actors.runtime.messages import Command, Replayed, reply_type
from holdfast.actors.sign_in.actor import SignInCommand
from holdfast.actors.task.messages import DeliveryEnded, SlotFreed, TaskCommand, TaskQueued
from holdfast.cluster.frames import BODY_BYTES_MAX, Fault
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.records.unreadable import UnreadableRow
from holdfast.supervision.control.messages import ControlCommand

VALUE, REFUSAL, REPLAYED, REPLAYED_REFUSAL = 0, 1, 2, 3
"""The forms of a reply."""


class CannotEncode(Exception):
    """The value has no encoding that a frame carries.

    Its type is not among the group's, it contains an integer beyond 64 bits, or it is too large.
    """


_encode = msgspec.msgpack.Encoder().encode
_refusals: Final = msgspec.msgpack.Decoder(Refusal)


class Codec:
    """The encodings of the commands of one group. What it decodes raises ``msgspec.DecodeError`` if malformed."""

    def __init__(self, commands: Iterable[type[Command[Any]]]) -> None:
        self._decoders: dict[str, tuple[msgspec.msgpack.Decoder[Any], msgspec.msgpack.Decoder[object]]] = {
            each.__name__: (msgspec.msgpack.Decoder(each), msgspec.msgpack.Decoder(reply_type(each)))
            for each in commands
        }

    @property
    def names(self) -> Collection[str]:
        """The names of the commands."""
        return self._decoders.keys()

    def encode_command(self, command: Command[object]) -> bytes:
        """Encode a command; its type's name is sent beside it. Raises :class:`CannotEncode`."""
        if type(command).__name__ not in self._decoders:
            raise CannotEncode(type(command).__name__)
        try:
            return _bounded(_encode(command), command)
        except (TypeError, ValueError, OverflowError) as exc:
            raise CannotEncode(type(command).__name__) from exc

    def decode_command(self, name: str, body: bytes) -> Command[object]:
        """Decode a command of the type ``name``."""
        decoded: Command[object] = self._of(name)[0].decode(body)
        return decoded

    @staticmethod
    def encode_reply(reply: object) -> tuple[int, bytes]:
        """Return a reply's form and its encoding. Raises :class:`CannotEncode`."""
        if isinstance(reply, Replayed):
            value: object = reply.reply
            form = REPLAYED_REFUSAL if isinstance(value, Refusal) else REPLAYED
        else:
            value, form = reply, REFUSAL if isinstance(reply, Refusal) else VALUE
        try:
            return form, _bounded(_encode(value), value)
        except (TypeError, ValueError, OverflowError) as exc:
            raise CannotEncode(type(value).__name__) from exc

    def decode_reply(self, name: str, form: int, body: bytes) -> object:
        """Decode the reply to a command of the type ``name``."""
        decoder = _refusals if form in (REFUSAL, REPLAYED_REFUSAL) else self._of(name)[1]
        value = decoder.decode(body)
        return Replayed(value) if form in {REPLAYED, REPLAYED_REFUSAL} else value

    def _of(self, name: str) -> tuple[msgspec.msgpack.Decoder[Any], msgspec.msgpack.Decoder[object]]:
        """Return the decoders of a command and of its reply."""
        found = self._decoders.get(name)
        if found is None:
            raise msgspec.ValidationError(f"the command {name[:40]!r} is not known")
        return found


def _bounded(body: bytes, value: object) -> bytes:
    if len(body) > BODY_BYTES_MAX:
        raise CannotEncode(f"{type(value).__name__} of {len(body)} bytes")
    return body


class LinkLost(Exception):
    """The link closed before the reply arrived: the command may have taken effect."""


_ASK_FAULTS: Final[Mapping[str, type[AskFault]]] = {
    each.__name__: each
    for each in (NotAccepted, AccountAway, Overloaded, Unavailable, Quarantined, OutcomeUnknown, Deadlock)
}
_OTHERS: Final[Mapping[str, type[Exception]]] = {
    each.__name__: each for each in (Crashed, StaleFence, UnreadableRow)
}


def fault_frame(number: int, fault: BaseException) -> Fault:
    """Return a fault as a frame. What has no counterpart at the asker is a crash there."""
    name = type(fault).__name__
    if isinstance(fault, AskFault):
        kinds = (kind.__name__ for kind in type(fault).__mro__ if kind.__name__ in _ASK_FAULTS)
        return Fault(number, next(kinds, "Unavailable"), str(fault), fault.retry_after_s)
    return Fault(number, name if name in _OTHERS else "Crashed", str(fault))


def fault_of(frame: Fault) -> Exception:
    """Return the exception that a frame stands for."""
    ask_fault = _ASK_FAULTS.get(frame.name)
    if ask_fault is not None:
        return ask_fault(frame.message, retry_after_s=frame.retry_after_s)
    return _OTHERS.get(frame.name, Crashed)(frame.message)


ACCOUNTS: Final = "accounts"
SIGN_INS: Final = "sign-in"
TASKS: Final = "tasks"
DISPATCHER: Final = "dispatcher"
OUTBOX: Final = "outbox"
CONTROL: Final = "control"


@cache
def codecs() -> Mapping[str, Codec]:
    """Return the encodings by group."""
    return {
        ACCOUNTS: Codec(get_args(AccountCommand)),
        SIGN_INS: Codec(get_args(SignInCommand)),
        TASKS: Codec(get_args(TaskCommand)),
        DISPATCHER: Codec((TaskQueued, SlotFreed)),
        OUTBOX: Codec((DeliveryEnded,)),
        CONTROL: Codec(get_args(ControlCommand)),
    }
