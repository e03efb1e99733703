"""The interface of a media provider.

A job is named by us (:func:`job_id`) and not by the provider, so that submitting it again after a crash names the
same job, and its first callback can arrive before the response to its submission.

Submitting has four outcomes, because money depends on the difference: *not sent* may be retried, *rejected* never,
*accepted* is followed, and *ambiguous* means that the provider may or may not have the job. An ambiguous job may be
submitted again only if ``idempotent_submit`` holds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from holdfast.ledger.catalog.entries import KindRules
from holdfast.ledger.catalog.models import ProviderConfig
from holdfast.ledger.tasks.provider_update import CancelOutcome, ProviderUpdate, UpdateStatus
from holdfast.providers.media.health import ProviderHealth

MESSAGE_MAX_CHARS: Final = 500
WORD_MAX_CHARS: Final = 64
"""The longest stage, status, unit or code."""

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]+")


def tidy(text: str | None, limit_chars: int) -> str | None:
    """Replace control characters by blanks and truncate; None if nothing remains.

    A bad text is no reason to refuse an update, and a NUL cannot be stored.
    """
    if text is None:
        return None
    clean = _CONTROLS.sub(" ", text[: limit_chars * 4]).strip()
    return (clean if len(clean) <= limit_chars else clean[: limit_chars - 1] + "…") or None


class Job(msgspec.Struct, frozen=True, tag=True):
    """One attempt at a task, as submitted to a provider. ``input`` is the JSON object that passed the schema."""

    request_id: str
    attempt: int
    upstream_model: str
    input: Mapping[str, object]
    callback_url: str


class Accepted(msgspec.Struct, frozen=True, tag=True):
    """The provider has the job. ``status`` is its first status; polls and callbacks report the rest."""

    provider_ref: str
    status: UpdateStatus


class NotSent(msgspec.Struct, frozen=True, tag=True):
    """The provider certainly does not have the job: it was unreachable or too busy. Retry later.

    ``answered``: the provider responded, so it is reachable.
    """

    reason: str
    retry_after_s: int | None = None
    answered: bool = False


class Rejected(msgspec.Struct, frozen=True, tag=True):
    """The provider will never take this job. ``code`` is a task error code such as ``invalid_upstream_input``."""

    code: str
    reason: str


class Ambiguous(msgspec.Struct, frozen=True, tag=True):
    """The request was sent, and no response shows whether the job was accepted."""

    reason: str


Submission = Accepted | NotSent | Rejected | Ambiguous


class JobCallFault(Exception):
    """A poll or cancel of a job failed: the provider was not reached, or its response cannot be used."""


def job_id(request_id: str, attempt: int) -> str:
    """Return our name of one attempt at a task: ``{request_id}.{attempt}``."""
    return f"{request_id}.{attempt}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderSetup:
    """What a provider is created with. ``url`` and ``token`` are the configured ones, or those of the studio.

    ``secrets`` verify its callbacks, the current one first: its own, or the common one if it has none.
    ``seal_callback_url`` adds a job's sealed query to a callback URL, given that URL, the task and the attempt.
    """

    config: ProviderConfig
    url: str
    token: str | None
    secrets: tuple[str, ...] = field(repr=False)
    seal_callback_url: Callable[[str, str, int], str]


@dataclass(frozen=True, slots=True)
class ProviderKind:
    """One kind of provider. ``create`` raises ``ValueError`` for a configuration that cannot be used."""

    rules: KindRules
    create: Callable[[ProviderSetup], MediaProvider]


class MediaProvider(Protocol):
    """A provider of media jobs.

    ``callback_secrets`` are the secrets its callbacks may be signed with, the current one first; without any, its
    callbacks are refused and its jobs are followed by polling alone.
    """

    @property
    def name(self) -> str:
        """The provider's name in the catalog. A callback names it in its body, and as ``k=`` in its signature."""

    @property
    def idempotent_submit(self) -> bool:
        """Whether submitting the same job again can never start it twice."""

    @property
    def polls(self) -> bool:
        """Whether :meth:`poll` is reliable."""

    @property
    def cancels(self) -> bool:
        """Whether :meth:`cancel` can have an effect."""

    @property
    def callback_secrets(self) -> tuple[str, ...]:
        """Secrets that verify this provider's callbacks; never logged."""

    @property
    def health(self) -> ProviderHealth:
        """Whether the provider responds, according to the calls so far."""

    @property
    def probes_when_idle(self) -> bool:
        """False if calls cost money; then it is probed only while it is down."""

    async def probe(self) -> None:
        """Make a small call whose result :attr:`health` records. No error of the provider is raised."""

    async def submit(self, job: Job) -> Submission:
        """Submit a job. No error of the provider or the network is raised."""

    async def poll(self, request_id: str, attempt: int, provider_ref: str | None) -> ProviderUpdate | None:
        """Read a job's status; None if the provider does not know the job. Raises :class:`JobCallFault`."""

    async def cancel(self, request_id: str, attempt: int, provider_ref: str | None) -> CancelOutcome:
        """Ask the provider to stop a job. Raises :class:`JobCallFault`."""

    async def close(self) -> None:
        """Close connections. No call may follow."""
