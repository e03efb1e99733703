"""The tables of the processes that share a database: their leases, the clock they share, and their reports."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Identity, Index, Integer, SmallInteger, Table, Text, text
from sqlalchemy.dialects.postgresql import ARRAY, JSON

from holdfast.persistence.records.table_base import Time, metadata

processes = Table(
    "processes",
    metadata,
    Column("process_id", Text, primary_key=True),
    # Its machine, pid and start time, by which another process on the same machine detects that it has ended.
    Column("machine", Text),
    Column("pid", Integer, nullable=False),
    Column("started", Text),
    Column("lease_until", Time, nullable=False),
    # The names of the media providers it can reach.
    Column("providers", ARRAY(Text), nullable=False),
    # Whether other members send it asks, where they reach it, and the version of the frames it understands; null in
    # rows of older releases.
    Column("state", Text),
    Column("addresses", ARRAY(Text)),
    Column("protocol", SmallInteger),
)

singletons = Table(
    "singletons",
    metadata,
    # A kind of work that one process does for all, and that process; it counts while the process's lease does.
    Column("name", Text, primary_key=True),
    Column("process_id", Text, nullable=False),
)

service_clock = Table(
    "service_clock",
    metadata,
    # One row. Service time is the database's clock plus ``ahead_s``, which compensates steps of that clock.
    Column("id", SmallInteger, primary_key=True, autoincrement=False),
    Column("ahead_s", Double, nullable=False),
    # The last measurement: the process that made it, the time of the database's clock, and the service time.
    Column("process_id", Text, nullable=False),
    Column("database_at", Time, nullable=False),
    Column("service_at", Time, nullable=False),
)

reports = Table(
    "reports",
    metadata,
    # In the order of commits: writers take turns. So what follows a position that was read is all that is new.
    Column("position", BigInteger, Identity(always=True), primary_key=True),
    Column("report_id", Text, nullable=False, unique=True),
    # By the clock of the process that emitted it.
    Column("at", Time, nullable=False),
    # What is searched for; all fields are in the document.
    Column("kind", Text, nullable=False),
    Column("level", Text, nullable=False),
    Column("path", Text, nullable=False),
    Column("key", Text),
    Column("account_id", Text),
    Column("task_id", Text),
    Column("provider", Text),
    Column("member_id", Text),
    Column("trace_id", Text),
    Column("report", JSON, nullable=False),
    Index("ix_reports_at", "at", "report_id"),
    Index("ix_reports_kind", "kind", "at", "report_id"),
    Index("ix_reports_key", "key", "at", "report_id", postgresql_where=text("key is not null")),
    Index(
        "ix_reports_account_id", "account_id", "at", "report_id", postgresql_where=text("account_id is not null")
    ),
    Index("ix_reports_task_id", "task_id", "at", "report_id", postgresql_where=text("task_id is not null")),
    Index("ix_reports_provider", "provider", "at", "report_id", postgresql_where=text("provider is not null")),
    Index("ix_reports_trace_id", "trace_id", postgresql_where=text("trace_id is not null")),
)
