"""Who an operator is.

An operator has one of three credentials:

- the operators' token, as a bearer; its name is ``operator-token``, and it may act;
- a session of an account whose e-mail address the settings list as an operator's (act) or a reader's (read);
- the cookie of a session in a browser, which began with one of the other two.

The settings decide the role at each request, so an operator who is no longer listed is refused at once.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from holdfast.ledger.refusals import Refusal
from holdfast.settings.settings import Settings

OperatorRole = Literal["read", "act"]
OperatorCredential = Literal["token", "session", "cookie"]

TOKEN_OPERATOR: Final = "operator-token"  # noqa: S105 - a name
"""The name of the operator who uses the operators' token."""

NOT_AN_OPERATOR: Final = Refusal(code="insufficient_role", message="The account is not an operator's.")
MAY_ONLY_READ: Final = Refusal(code="insufficient_role", message="This operator may read, but not act.")


class Operator(NamedTuple):
    """The operator who makes a request. ``name`` is an e-mail address or :data:`TOKEN_OPERATOR`."""

    name: str
    role: OperatorRole
    credential: OperatorCredential


def role_of(name: str, settings: Settings) -> OperatorRole | None:
    """Return the role of an operator's name, None if it is no operator's."""
    if name == TOKEN_OPERATOR or name in settings.operators:
        return "act"
    return "read" if name in settings.operator_readers else None


def operator_of(name: str, credential: OperatorCredential, settings: Settings) -> Operator | Refusal:
    """Return the operator of that name. Refuses with ``insufficient_role``."""
    role = role_of(name, settings)
    return NOT_AN_OPERATOR if role is None else Operator(name, role, credential)
