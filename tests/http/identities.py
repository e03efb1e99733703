"""The accounts, credentials and times that the tests of the HTTP API use."""

from __future__ import annotations

from datetime import UTC, datetime

NOW = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)
ACCOUNT = "acct_" + "1" * 32
OTHER_ACCOUNT = "acct_" + "2" * 32
SESSION = "ses_" + "1" * 32
KEY = "key_" + "1" * 32
TOKEN = "hst_" + "A" * 43
PUBLIC_URL = "https://holdfast.example"
SANDBOX_SECRET = "sandbox-secret"
CARD_SECRET = "card-webhook-secret"
