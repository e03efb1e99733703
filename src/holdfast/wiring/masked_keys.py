"""Masked keys: what operators see as the key of an actor."""

from __future__ import annotations

import hmac
from typing import Final

from holdfast.cluster.groups import SIGN_INS
from holdfast.settings.settings import Settings

_DIGITS: Final = 16


def masked_key(settings: Settings, group: str, key: str) -> str:
    """Return a key as it is; of a sign-in actor its kind, and a digest of the e-mail address or the origin."""
    if group != SIGN_INS:
        return key
    kind, _, address = key.partition(":")
    secret = settings.derived_key("shown keys")
    return f"{kind}:{hmac.digest(secret, address.encode(errors='replace'), 'sha256').hex()[:_DIGITS]}"
