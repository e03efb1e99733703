"""What an API key may do, and until when."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final, NamedTuple, TypedDict

from holdfast.ledger.refusals import Refusal

OF_PROVIDER: Final = "/*"
"""The end of a pattern for all models whose ids begin as it does, such as ``studio/*``."""

API_KEY_EXPIRED: Final = Refusal(code="api_key_expired", message="The API key has expired.")
API_KEY_PAUSED: Final = Refusal(code="api_key_paused", message="The API key is paused by its owner.")


class KeyTerms(NamedTuple):
    """What the owner of a key decides about it, but for its limit: each a column of its row, as it is named here.

    Without ``models`` it may use every model.
    """

    name: str
    scopes: tuple[str, ...]
    models: tuple[str, ...] = ()
    expires_at: datetime | None = None
    is_paused: bool = False

    def refuse_use(self, now: datetime) -> Refusal | None:
        """Refuse a key that cannot be used now: 1. ``api_key_expired``; 2. ``api_key_paused``."""
        if self.expires_at is not None and self.expires_at <= now:
            return API_KEY_EXPIRED
        return API_KEY_PAUSED if self.is_paused else None


class KeyChanges(TypedDict, total=False):
    """The terms that a change of a key gives; the others stay."""

    name: str
    models: tuple[str, ...]
    expires_at: datetime | None
    is_paused: bool


def is_model_allowed(models: Iterable[str], model_id: str) -> bool:
    """Whether a key with these models, or patterns of models, may use one. At least one must be given."""
    return any(matches(each, model_id) for each in models)


def matches(model: str, model_id: str) -> bool:
    """Whether a model of a key is this one, or a pattern for it."""
    return model == model_id or (model.endswith(OF_PROVIDER) and model_id.startswith(model[:-1]))
