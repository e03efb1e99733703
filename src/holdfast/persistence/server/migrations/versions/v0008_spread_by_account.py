"""Unique keys that include the account's id, and directories for what is unique across accounts.

Older releases work with this schema: triggers write the directories for them, and each index still starts with the
column they look up. Only their sign-ins read the whole table ``accounts``. While an index is built, writes wait.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

UNIQUE = (
    ("operations", "operation_id"),
    ("tasks", "request_id"),
    ("assets", "asset_id"),
    ("api_keys", "secret_sha256"),
    ("sessions", "token_sha256"),
)


def upgrade() -> None:
    """Create the directories with their entries, and replace the indexes."""
    _create_directory("accounts", "account_emails", key=("email",), owner={"account_id": "id"})
    _create_directory(
        "orders",
        "order_payments",
        key=("provider", "provider_payment_id"),
        owner={"account_id": "account_id", "order_id": "order_id"},
    )
    op.drop_index("uq_accounts_email", "accounts")
    for table, column in UNIQUE:
        op.drop_index(f"uq_{table}_{column}", table)
        op.create_index(f"uq_{table}_{column}", table, [column, "account_id"], unique=True)
    op.drop_index("uq_orders_order_id", "orders")
    op.create_index("ix_orders_order_id", "orders", ["order_id"])
    op.drop_index("uq_orders_provider_payment_id", "orders")
    op.create_index(
        "uq_orders_provider_payment_id",
        "orders",
        ["provider", "provider_payment_id", "account_id"],
        unique=True,
        postgresql_where=sa.text("provider_payment_id is not null"),
    )


def _create_directory(table: str, directory: str, *, key: tuple[str, ...], owner: dict[str, str]) -> None:
    """Create a directory of ``table``, fill it, and create the trigger that writes it.

    ``key`` are the columns that are unique across accounts, the last of which may be null; ``owner`` are the
    directory's further columns, and the table's columns that they repeat.
    """
    op.create_table(
        directory,
        *(sa.Column(name, sa.Text(), nullable=False) for name in (*key, *owner)),
        sa.PrimaryKeyConstraint(*key, name=op.f(f"pk_{directory}")),
    )
    columns = ", ".join((*key, *owner))
    values = (*key, *owner.values())
    found = ", ".join(values)
    op.execute(f"insert into {directory} ({columns}) select {found} from {table} where {key[-1]} is not null")
    old, new = ("(" + ", ".join(f"{row}.{name}" for name in values) + ")" for row in ("old", "new"))
    op.execute(
        f"""
        create function write_{directory}() returns trigger language plpgsql as $$
        begin
            if tg_op = 'UPDATE' then
                if {old} is not distinct from {new} then
                    return null;
                end if;
            end if;
            if tg_op <> 'INSERT' then
                delete from {directory} where ({columns}) = {old};
            end if;
            if tg_op <> 'DELETE' then
                if new.{key[-1]} is not null then
                    insert into {directory} ({columns}) values {new};
                end if;
            end if;
            return null;
        end
        $$
        """
    )
    op.execute(
        f"create trigger {table}_write_{directory} after insert or delete or update of {', '.join(values)} "
        f"on {table} for each row execute function write_{directory}()"
    )
