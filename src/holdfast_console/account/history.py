"""The account's history: what happened to it as a whole, and what its API keys did."""

from __future__ import annotations

from typing import Final

from holdfast.http.endpoints.api_keys import ApiKeyList, list_api_keys
from holdfast.http.endpoints.history import list_history
from holdfast.http.kit.calls import Auth
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.records.rows import AccountChange
from holdfast_console.rendering import Html
from holdfast_console.views import ViewResult, ViewTable, Visit

HISTORY: Final = "/account/history"
WORDS: Final[dict[AccountChange, str]] = {
    "email_changed": "The e-mail address was changed",
    "closing": "The account is to be deleted",
    "kept": "The account is kept: its owner signed in",
    "closed": "The account was closed",
    "erased": "The account's data was deleted",
    "archive_requested": "An archive was asked for",
    "archive_made": "An archive was made",
    "api_key_created": "Made the key",
    "api_key_changed": "Changed the key",
    "api_key_revoked": "Revoked the key",
    "limits_set": "Set the account's limits",
    "key_group_created": "Created the key group",
    "key_group_changed": "Changed the key group",
    "key_group_deleted": "Deleted the key group",
    "webhook_created": "Created the webhook",
    "webhook_changed": "Changed the webhook",
    "webhook_deleted": "Deleted the webhook",
    "webhook_tested": "Sent a test event to the webhook",
    "event_resent": "Sent the event again",
    "webhook_secret_rotated": "Rotated the secret of webhooks",
    "order_created": "Created the order",
}

view = ViewTable(Auth.SESSION)


@view(HISTORY)
async def history(visit: Visit) -> ViewResult:
    """The history, newest first; with ``api_key_id`` what one key did."""
    changes = await visit.read_list(list_history)
    keys = await visit.read(list_api_keys, ApiKeyList)
    listed = [] if isinstance(keys, Refusal) else keys.data
    values = {
        "changes": changes,
        "words": WORDS,
        "keys": listed,
        "names": {key.api_key_id: key.name for key in listed},
    }
    return Html("history.html", values)
