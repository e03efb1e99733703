"""The encodings of commands and their replies on links: msgpack of their declared types, never pickle.

A command is encoded as its type's fields; where a field may have one of several classes, as the rows that a task's
step writes, these are tagged. A reply is a value of the type that the command declares, a refusal, or either of
them replayed.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec

from holdfast.actors.runtime.messages import Command, Replayed
from holdfast.cluster.frames import BODY_BYTES_MAX
from holdfast.ledger.refusals import Refusal

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
        is_replayed = isinstance(reply, Replayed)
        value = reply.reply if isinstance(reply, Replayed) else reply
        form = REFUSAL if isinstance(value, Refusal) else VALUE
        try:
            return form + (REPLAYED if is_replayed else 0), _bounded(_encode(value), value)
        except (TypeError, ValueError, OverflowError) as exc:
            raise CannotEncode(type(value).__name__) from exc

    def decode_reply(self, name: str, form: int, body: bytes) -> object:
        """Decode the reply to a command of the type ``name``."""
        decoder = _refusals if form in {REFUSAL, REPLAYED_REFUSAL} else self._of(name)[1]
        value = decoder.decode(body)
        return Replayed(value) if form >= REPLAYED else value

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


def reply_type(command: type[Command[Any]]) -> Any:
    """Return the type that a command declares for its reply, apart from refusals and replayed replies."""
    [declared] = [base for base in command.__orig_bases__ if get_origin(base) is Command]  # type: ignore[attr-defined]  # of generic bases
    holder = SimpleNamespace(__annotations__={"reply": get_args(declared)[0]})
    hint = get_type_hints(holder, globalns=vars(sys.modules[command.__module__]))["reply"]
    if get_origin(hint) in {Union, UnionType}:
        [hint] = [each for each in get_args(hint) if get_origin(each) is not Replayed]
    return NoneType if hint is None else hint
