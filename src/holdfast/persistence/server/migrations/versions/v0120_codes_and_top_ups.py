"""Coupons' codes as hashes, and when top-ups were switched off, from the SQL beside this file."""

from __future__ import annotations

from holdfast.persistence.server.upgrade import run_script

revision = "0120"
down_revision = "0110"
# Older processes cannot make or redeem coupons; all else they do.
serves_from = "0110"


def upgrade() -> None:
    """Change the tables, and remove the codes from what was recorded of making coupons."""
    run_script(__file__)
