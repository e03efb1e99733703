"""The groups of commands that links carry: what is accepted from another member, and no more."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final, get_args

from holdfast.actors.account.actor import AccountCommand
from holdfast.actors.sign_in.actor import SignInCommand
from holdfast.actors.task.messages import TaskCommand
from holdfast.actors.task.worker_messages import DeliveryEnded, SlotFreed, TaskQueued
from holdfast.cluster.codec import Codec
from holdfast.supervision.control.messages import ControlCommand

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
