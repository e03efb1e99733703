"""What the settings that ``holdfast init`` writes mean, in the words of docs/settings.md (a test compares them)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

DESCRIPTIONS: Final[Mapping[str, str]] = {
    "ENV": "production generates no secrets, shows no sign-in codes and has no card emulator",
    "PUBLIC_URL": "the public address, used in links and callback addresses; production refuses http://",
    "PORT": "where the service listens; port 0 uses a free port and logs it",
    "OPS_PORT": "a second listener for operators: with a port, only it serves /ops and /metrics",
    "PROCESSES": "worker processes below a parent",
    "TRUSTED_PROXIES": "networks or addresses of the proxies in front, separated by commas",
    "DATABASE_URL": "postgresql://user:password@host:5432/name, or with several hosts in libpq's form",
    "DATA_DIR": "stored results and files, uploads in progress",
    "CATALOG": "a TOML file of providers, models and prices; holdfast catalog check validates it",
    "SMTP_URL": "smtps://user:password@host or smtp://…, with STARTTLS unless it ends with ?starttls=off",
    "MAIL_FROM": "the sender of mail",
    "OPERATORS": "e-mail addresses in full, separated by commas: their accounts may read and act as operators",
    "OPERATOR_TOKEN": "the operators' secret",
    "SERVER_KEY": "the key for quotes, links, sign-in codes and webhook secrets",
    "CALLBACK_SECRET": "signs the callbacks of providers without their own secret",
    "SANDBOX_SECRET": "signs sandbox payments",
}
"""By the setting's name without its prefix."""
