"""The encodings of commands and their replies on links: msgpack of their declared types, never pickle.

A command is encoded as its type's fields. A field that may have one of several classes, as the rows that a task's
step writes, is encoded with the name of its class. A reply is a value of the type that the command declares, a
refusal, or either of them replayed.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Final, TypeAlias, Union, get_args, get_origin, get_type_hints

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


class _Named(msgspec.Struct, frozen=True, array_like=True):
    """A value of one of several classes."""

    name: str
    value: msgspec.Raw


_encode = msgspec.msgpack.Encoder().encode
_refusals: Final = msgspec.msgpack.Decoder(Refusal)
Wire: TypeAlias = Any


class _Kind:
    """The encoding of one type of command, and of its reply."""

    def __init__(self, command: type[Command[object]]) -> None:
        hints = get_type_hints(command)
        self._command = command
        self._variants = {field.name: _Variants.of(hints[field.name]) for field in fields(command)}  # type: ignore[arg-type]  # commands are dataclasses
        self._is_plain = not any(self._variants.values())
        self._wire: type[Wire] = command
        if not self._is_plain:
            wire_types = [(n, hints[n] if v is None else v.wire_type) for n, v in self._variants.items()]
            self._wire = msgspec.defstruct(command.__name__, wire_types, kw_only=True)
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(self._wire)
        self._replies: msgspec.msgpack.Decoder[object] = msgspec.msgpack.Decoder(reply_type(command))

    def encode(self, command: Command[object]) -> bytes:
        if self._is_plain:
            return _encode(command)
        values = {n: getattr(command, n) for n in self._variants}
        return _encode(
            self._wire(**{n: v.encode(values[n]) if v else values[n] for n, v in self._variants.items()})
        )

    def decode(self, body: bytes) -> Command[object]:
        decoded = self._decoder.decode(body)
        if self._is_plain:
            return decoded  # type: ignore[no-any-return]  # the decoder's type is the command
        values = {n: getattr(decoded, n) for n in self._variants}
        return self._command(**{n: v.decode(values[n]) if v else values[n] for n, v in self._variants.items()})

    def decode_value(self, body: bytes) -> object:
        return self._replies.decode(body)


class _Variants:
    """A field of one of several classes, or a tuple of such values."""

    def __init__(self, classes: Iterable[type], *, are_many: bool) -> None:
        self._are_many = are_many
        self._decoders: dict[str, msgspec.msgpack.Decoder[object]] = {
            each.__name__: msgspec.msgpack.Decoder(each) for each in classes
        }
        self.wire_type = tuple[_Named, ...] if are_many else _Named

    @staticmethod
    def of(hint: Any) -> _Variants | None:
        """Return how a field with this type is encoded; None if by its type alone."""
        are_many = get_origin(hint) is tuple and get_args(hint)[1:] == (Ellipsis,)
        single = get_args(hint)[0] if are_many else hint
        if get_origin(single) not in {Union, UnionType}:
            return None
        classes = [each for each in get_args(single) if hasattr(each, "__annotations__")]
        return _Variants(classes, are_many=are_many) if len(classes) > 1 else None

    def encode(self, value: Any) -> object:
        return tuple(map(self._encode_one, value)) if self._are_many else self._encode_one(value)

    def decode(self, wire: Any) -> object:
        return tuple(map(self._decode_one, wire)) if self._are_many else self._decode_one(wire)

    def _encode_one(self, value: object) -> _Named:
        name = type(value).__name__
        if name not in self._decoders:
            raise TypeError(f"{name} is not among the classes of the field")
        return _Named(name, msgspec.Raw(_encode(value)))

    def _decode_one(self, named: _Named) -> object:
        decoder = self._decoders.get(named.name)
        if decoder is None:
            raise msgspec.ValidationError(f"{named.name} is not among the classes of the field")
        return decoder.decode(named.value)


class Codec:
    """The encodings of the commands of one group. What it decodes raises ``msgspec.DecodeError`` if malformed."""

    def __init__(self, commands: Iterable[type[Command[Any]]]) -> None:
        self._kinds: Mapping[str, _Kind] = {each.__name__: _Kind(each) for each in commands}

    @property
    def names(self) -> Collection[str]:
        """The names of the commands."""
        return self._kinds.keys()

    def encode_command(self, command: Command[object]) -> bytes:
        """Encode a command; its type's name is sent beside it. Raises :class:`CannotEncode`."""
        kind = self._kinds.get(type(command).__name__)
        if kind is None:
            raise CannotEncode(type(command).__name__)
        try:
            return _bounded(kind.encode(command), command)
        except (TypeError, ValueError, OverflowError) as exc:
            raise CannotEncode(type(command).__name__) from exc

    def decode_command(self, name: str, body: bytes) -> Command[object]:
        """Decode a command of the type ``name``."""
        return self._kind(name).decode(body)

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
        value = (
            _refusals.decode(body) if form in {REFUSAL, REPLAYED_REFUSAL} else self._kind(name).decode_value(body)
        )
        return Replayed(value) if form >= REPLAYED else value

    def _kind(self, name: str) -> _Kind:
        kind = self._kinds.get(name)
        if kind is None:
            raise msgspec.ValidationError(f"the command {name[:40]!r} is not known")
        return kind


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
