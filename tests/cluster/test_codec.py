"""Every command and every reply passes through its encoding unchanged."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import holdfast.actors
from holdfast.actors.account.messages import Recharge
from holdfast.actors.runtime.messages import Command, Replayed, reply_type
from holdfast.actors.task.messages import RecordHosting
from holdfast.cluster.codec import CannotEncode, Codec, codecs
from holdfast.ledger.refusals import Refusal

from .samples import samples

IN_ONE_PROCESS = {"CallProvider", "EventsDue", "Host", "JobKnown"}
"""Messages between a task's actor and the workers of its own process."""
REFUSAL = Refusal(code="insufficient_credit", message="no credit", required_micro=5, available_micro=2**62)


def all_commands() -> Iterator[type[Command[Any]]]:
    for module in pkgutil.walk_packages(holdfast.actors.__path__, "holdfast.actors."):
        importlib.import_module(module.name)
    open_bases: list[type[Any]] = [Command]
    while open_bases:
        found = open_bases.pop().__subclasses__()
        open_bases += found
        # The private base of several commands is no command itself.
        yield from (
            each for each in found if each.__module__.startswith("holdfast.") and not each.__name__.startswith("_")
        )


COMMANDS = sorted(set(all_commands()), key=lambda each: each.__name__)
BY_GROUP = {name: codec for codec in codecs().values() for name in codec.names}


def test_every_command_belongs_to_one_group_or_stays_in_its_process() -> None:
    assert {each.__name__ for each in COMMANDS} == {*BY_GROUP, *IN_ONE_PROCESS}
    assert len(BY_GROUP) == sum(len(codec.names) for codec in codecs().values())
    assert len({each.__name__ for each in COMMANDS}) == len(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.__name__)
def test_a_command_passes_unchanged(command: type[Command[Any]]) -> None:
    codec = BY_GROUP.get(command.__name__) or Codec([command])
    for value in samples(command):
        decoded = codec.decode_command(command.__name__, codec.encode_command(value))
        assert type(decoded) is command
        assert decoded == value


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.__name__)
def test_its_reply_passes_unchanged(command: type[Command[Any]]) -> None:
    codec = BY_GROUP.get(command.__name__) or Codec([command])
    for value in [*samples(reply_type(command)), REFUSAL]:
        for reply in (value, Replayed(value)):
            assert codec.decode_reply(command.__name__, *Codec.encode_reply(reply)) == reply


def test_what_has_no_encoding_is_refused() -> None:
    codec = Codec([Recharge])
    with pytest.raises(CannotEncode):
        codec.encode_command(Recharge(2**70))
    with pytest.raises(CannotEncode):
        codec.encode_command(RecordHosting(1, 1, ()))
    with pytest.raises(CannotEncode):
        Codec([RecordHosting]).encode_command(RecordHosting(1, 1, (object(),)))  # type: ignore[arg-type]
    with pytest.raises(CannotEncode):
        Codec.encode_reply({"number": 2**70})


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("Recharge", b""),
        ("Recharge", b"\x81\xacamount_micro\xa3ten"),
        ("Recharge", b"\xff\xff"),
        ("RecordHosting", b"\x83\xa7attempt\x01\xacround_number\x01\xa7results\x91\x92\xa6Popen2\x80"),
        ("os.system", b"\x80"),
    ],
)
def test_malformed_commands_are_refused(name: str, body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        Codec([Recharge, RecordHosting]).decode_command(name, body)
