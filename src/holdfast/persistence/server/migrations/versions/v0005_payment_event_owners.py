"""Reject a payment event that was already applied to another order.

A provider's event id is unique at that provider. If one id arrives for two orders at once, through two processes,
both find it unknown, and the database must reject the second.
"""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Create the trigger that rejects moving an applied event to another order."""
    op.execute(
        """
        create function refuse_second_owner() returns trigger language plpgsql as $$
        begin
            raise exception 'payment event % of % belongs to another order', old.event_id, old.provider
                using errcode = 'unique_violation';
        end
        $$
        """
    )
    op.execute(
        "create trigger payment_events_have_one_order before update on payment_events for each row "
        "when (old.verdict in ('applied', 'stale') and old.order_id is distinct from new.order_id) "
        "execute function refuse_second_owner()"
    )
