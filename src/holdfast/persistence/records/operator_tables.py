"""The rows and tables of operators: what they did, their sessions, messages that crashed their actor, checks."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, NamedTuple

from holdfast.persistence.records.table_base import Int32, columns_of, index, table

ActionResult = Literal["done", "refused", "failed", "unknown"]
"""``unknown``: its caller stopped waiting, so the effect may have happened or not."""

OverrideKind = Literal["provider_slots", "provider_pause", "model_pause", "account_creates"]
"""What an override is for: the jobs that a provider runs at once; new tasks of a provider, or of a model; how many
tasks an account creates in a second.
"""
NewTasks = Literal["wait", "refuse"]

PoisonState = Literal["kept", "replaying", "unknown", "replayed", "discarded"]
"""``unknown``: a replay had no result, so the message may have taken effect."""


class OperatorAction(NamedTuple):
    """One action. ``result`` is None until it has ended, and stays None if the process ended first.

    ``operator`` acted with ``credential`` from ``origin``; ``code`` is that of a refusal or fault. ``account_id``
    and ``task_id`` are what it concerned, where known. ``parameters`` are what the operator sent, as texts, and
    ``effect`` is what was done: both have amounts and decisions.
    """

    action_id: str
    at: datetime
    operator: str
    credential: str
    origin: str
    action: str
    target: str
    account_id: str | None
    task_id: str | None
    reason: str | None
    trace_id: str
    ended_at: datetime | None = None
    result: ActionResult | None = None
    code: str | None = None
    parameters: dict[str, str] | None = None
    effect: dict[str, str] | None = None


class Override(NamedTuple):
    """What an operator has set for a time in place of the catalog or a setting, the newest of its kind and subject.

    ``subject`` is a provider's name, a model's id or an account's. A pause has ``new_tasks``, the others a
    ``number``: of slots, or of creates a second. ``note`` is for customers. ``version`` counts its changes.
    """

    kind: OverrideKind
    subject: str
    number: float | None
    new_tasks: NewTasks | None
    reason: str
    note: str | None
    operator: str
    action_id: str
    set_at: datetime
    ends_at: datetime
    version: Int32 = 1


class OperatorSession(NamedTuple):
    """A session; it may have expired or been ended, or its operator's account may be disabled."""

    cookie_mac: bytes
    operator: str
    origin: str
    created_at: datetime
    expires_at: datetime
    ended_at: datetime | None = None
    disabled_at: datetime | None = None


class PoisonRecord(NamedTuple):
    """One message. ``body`` is encrypted, None if it is not stored; ``key`` is the one shown to operators.

    ``version`` and ``state_digest`` are of the actor's state when it crashed last, ``reason`` and ``location`` of
    the exception. ``replay_result`` is that of the last of ``replays``.
    """

    poison_id: str
    group_name: str
    key: str
    message_type: str
    body: bytes | None
    body_mac: bytes
    state: PoisonState
    first_at: datetime
    last_at: datetime
    crashes: Int32
    trace_id: str | None
    reason_type: str
    reason: str
    location: str | None
    incarnation: Int32
    version: int | None
    state_digest: str | None
    replays: Int32 = 0
    replayed_at: datetime | None = None
    replay_result: str | None = None
    claimed_until: datetime | None = None


class CheckCallbackRow(NamedTuple):
    """A callback that was received: the encoded update, or the code of its refusal."""

    callback_id: str
    check_id: str
    at: datetime
    refused: str | None
    update: bytes | None


# Rows are never deleted: a trigger rejects it.
operator_actions = table(
    "operator_actions",
    ["action_id"],
    *columns_of(OperatorAction),
    index("ix_operator_actions_at", "at", "action_id"),
    index("ix_operator_actions_account", "account_id", "at", "action_id", where="account_id is not null"),
    index("ix_operator_actions_task", "task_id", "at", "action_id", where="task_id is not null"),
)

# The key is an HMAC of the cookie under a key derived from the operators' token: with a new token all sessions end.
operator_sessions = table(
    "operator_sessions",
    ["cookie_mac"],
    *columns_of(OperatorSession, without=["disabled_at"]),
    index("ix_operator_sessions_expires_at", "expires_at"),
)

# One that has ended stays: the sum of the versions, which never falls, says whether any was changed.
overrides = table("overrides", ["kind", "subject"], *columns_of(Override))

poison_messages = table(
    "poison_messages",
    ["poison_id"],
    *columns_of(PoisonRecord),
    index(
        "uq_poison_messages_open",
        "group_name",
        "key",
        "message_type",
        "body_mac",
        unique=True,
        where="state in ('kept', 'replaying', 'unknown')",
    ),
    index("ix_poison_messages_last_at", "last_at"),
    index("ix_poison_messages_first_at", "first_at", "poison_id"),
)

check_callbacks = table(
    "check_callbacks",
    ["callback_id"],
    *columns_of(CheckCallbackRow),
    index("ix_check_callbacks_check", "check_id", "at"),
    index("ix_check_callbacks_at", "at"),
)
