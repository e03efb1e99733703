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
