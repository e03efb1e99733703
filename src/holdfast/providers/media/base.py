"""What the house asks of a media provider, whoever it is.

A job is named by us (:func:`job_id`) and never by the provider, so that submitting it again after a crash names the
same job, and so that its first callback can never outrun the row it is about.

Submitting has four outcomes because money hangs on the difference: *not sent* may be tried again at will,
*rejected* never, *accepted* is followed up, and *ambiguous* means that the provider may or may not be working. Only
where ``idempotent_submit`` holds may an ambiguous job be submitted again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from holdfast.ledger.tasks.provider_update import ProviderUpdate, UpdateStatus
from holdfast.providers.media.health import ProviderHealth


@dataclass(frozen=True, slots=True)
class Job:
    """One attempt at a task, as handed to a provider. ``input`` is the JSON object that passed the schema."""

    request_id: str
    attempt: int
    upstream_model: str
    input: Mapping[str, object]
    callback_url: str


@dataclass(frozen=True, slots=True)
class Accepted:
    """The provider has the job. ``status`` is what it said of it at once; polls and callbacks tell the rest."""

    provider_ref: str
    status: UpdateStatus


@dataclass(frozen=True, slots=True)
class NotSent:
    """The provider surely does not have the job: it was unreachable or too busy. Try again later.

    ``answered``: it said so itself.
    """

    reason: str
    retry_after_s: int | None = None
    answered: bool = False


@dataclass(frozen=True, slots=True)
class Rejected:
    """The provider will never take this job. ``code`` is a task error code such as ``invalid_upstream_input``."""

    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class Ambiguous:
    """The request left, and no answer told what became of it."""

    reason: str


Submission = Accepted | NotSent | Rejected | Ambiguous

CancelOutcome = Literal["requested", "confirmed", "too_late", "unsupported"]
"""``requested``: it will try; ``confirmed``: it stopped; ``too_late``: the job had ended or is not known there."""


class PollFault(Exception):
    """The provider could not be asked, or answered with what cannot be understood. The job's fate is unknown."""


def job_id(request_id: str, attempt: int) -> str:
    """Our name of one attempt at a task: ``{request_id}.{attempt}``."""
    return f"{request_id}.{attempt}"


class MediaProvider(Protocol):
    """A place where media jobs are done.

    ``callback_secrets`` are the secrets its callbacks may be signed with, the current one first; without any, none
    of its callbacks is believed and its jobs are followed by polling alone.
    """

    @property
    def name(self) -> str:
        """The provider's name in the catalog, which its callbacks carry as ``provider`` and ``k=``."""

    @property
    def idempotent_submit(self) -> bool:
        """True where submitting the same job again can never start it twice."""

    @property
    def polls(self) -> bool:
        """True where :meth:`poll` tells the truth of a job."""

    @property
    def cancels(self) -> bool:
        """True where :meth:`cancel` can have an effect."""

    @property
    def callback_secrets(self) -> tuple[str, ...]:
        """Secrets that verify this provider's callbacks; never logged."""

    @property
    def health(self) -> ProviderHealth:
        """Whether it answers, as calls to it have shown."""

    @property
    def probes_when_idle(self) -> bool:
        """False where calls cost money, so that it is probed only while it is down."""

    async def probe(self) -> None:
        """Make a small call whose result :attr:`health` records. Never raises for what the provider does."""

    async def submit(self, job: Job) -> Submission:
        """Hand over a job. Never raises for what the provider or the network does."""

    async def poll(self, request_id: str, attempt: int, provider_ref: str | None) -> ProviderUpdate | None:
        """Ask for a job's news; None where it is unknown there. Raises :class:`PollFault`."""

    async def cancel(self, request_id: str, attempt: int, provider_ref: str | None) -> CancelOutcome:
        """Ask for a job to be stopped. Raises :class:`PollFault`."""

    async def close(self) -> None:
        """Give back connections. Nothing may be asked afterwards."""
