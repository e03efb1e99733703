"""The tables of the processes on one database, and of what each one owns."""

from __future__ import annotations

from sqlalchemy import Column, Double, Integer, SmallInteger, Table, Text
from sqlalchemy.dialects.postgresql import ARRAY

from holdfast.persistence.records.table_base import Time, metadata

processes = Table(
    "processes",
    metadata,
    Column("process_id", Text, primary_key=True),
    # Where it runs and under which number, so that its successor on the same machine knows at once that it ended.
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
    # One row. Service time is the database's clock plus this; a step of that clock is taken back here.
    Column("id", SmallInteger, primary_key=True, autoincrement=False),
    Column("ahead_s", Double, nullable=False),
    # The last measurement: by whom, at which time of the database's clock, and at which service time.
    Column("process_id", Text, nullable=False),
    Column("database_at", Time, nullable=False),
    Column("service_at", Time, nullable=False),
)
