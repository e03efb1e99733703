"""The tables of the processes that share a database, and of the clock they share."""

from __future__ import annotations

from sqlalchemy import Column, Double, Integer, SmallInteger, Table, Text
from sqlalchemy.dialects.postgresql import ARRAY

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
