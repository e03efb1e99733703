"""The Prometheus metrics of the service, for ``GET /metrics``. docs/metrics.md lists them.

The workers of one parent write them to files in one folder, and each renders the totals of all. A gauge's
``multiprocess_mode`` says what that is: the sum over running workers, or what one of them last saw in the database.
Labels have few values: providers are those of the catalog, and nothing has the id of an account or a task.
"""

from __future__ import annotations

import trio
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from holdfast.telemetry.metrics.batched_histogram import BatchedHistogram

SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
"""The buckets of times that are usually microseconds, and at worst as long as a deadline."""

# Requests and connections

HTTP_REQUEST_S = BatchedHistogram(
    "holdfast_http_request_duration_seconds",
    "Time from a request's head to its response.",
    ["route", "status"],
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5, 15),
)
HTTP_CONNECTIONS = Gauge("holdfast_http_connections", "Open connections.", multiprocess_mode="livesum")
HTTP_WAITING = Gauge(
    "holdfast_http_waiting", "Requests that wait for a task, and streams of customers.", multiprocess_mode="livesum"
)
HTTP_CONNECTIONS_CLOSED = Counter(
    "holdfast_http_connections_closed",
    "Connections that the server closed: head_timeout, body_timeout, send_timeout, refused (too many), "
    "room (idle, closed for a new one), stop, fault.",
    ["reason"],
)
REFUSALS = Counter("holdfast_refusals", "Requests that were refused.", ["status", "code"])
CALLBACKS_REFUSED = Counter(
    "holdfast_callbacks_refused",
    "Callbacks that were refused; the provider unknown is none of the catalog.",
    ["provider", "reason"],
)

# Writes and the database

JOURNAL_UNITS = Counter(
    "holdfast_journal_units",
    "Units of work: committed, stale, already_answered, not_written, broken, unknown.",
    ["result"],
)
JOURNAL_BATCH_UNITS = BatchedHistogram(
    "holdfast_journal_batch_units",
    "Units of work in one batch.",
    buckets=(1, 2, 5, 10, 20, 50, 100, 200, 500),
)
JOURNAL_COMMIT_S = BatchedHistogram(
    "holdfast_journal_commit_seconds",
    "Time from taking a batch to its durable commit; the count is that of commits.",
    buckets=SECONDS,
)
JOURNAL_QUEUE = Gauge(
    "holdfast_journal_queue_units",
    "Units of work that wait for the next batch. Growth means that the database's disk is too slow.",
    multiprocess_mode="livesum",
)
FENCE_STALE = Counter(
    "holdfast_fence_stale_units",
    "Units refused because a row had changed: a few whenever processes come or go. A steady increase means that "
    "processes are not linked.",
    ["kind"],
)
COMMIT_LOOKUPS = Counter(
    "holdfast_commit_lookups",
    "Batches whose COMMIT got no response, found committed or void.",
    ["result"],
)
DATABASE_UP = Gauge(
    "holdfast_database_up",
    "Whether the database answers (1) or not (0); of several workers the least.",
    multiprocess_mode="livemin",
)
DATABASE_WAIT_S = BatchedHistogram(
    "holdfast_database_wait_seconds",
    "Time that a query waited for a connection of its pool: read (POOL_SIZE), work (sweeps), record (operators' "
    "actions, files, coupons) or lease (heartbeats).",
    ["pool"],
    buckets=SECONDS,
)
WAL_SYNC_S = Gauge(
    "holdfast_database_wal_sync_seconds",
    "Mean time of PostgreSQL's flushes of its log in the last seconds, by its own statistics; NaN without a flush "
    "or without track_wal_io_timing, which the embedded server has.",
    multiprocess_mode="livemostrecent",
)
DATABASE_OUTAGES = Counter("holdfast_database_outages", "How often the database became unreachable or too slow.")

# Actors

ACTORS_ACTIVE = Gauge("holdfast_actors_active", "Active actors.", ["kind"], multiprocess_mode="livesum")
ACTOR_EVENTS = Counter(
    "holdfast_actor_events",
    "Events of actors: activated, passivated, stopped, restarted (by an operator), crashed, "
    "voided, postponed (by the database), quarantined, tried (their quarantine being over), released.",
    ["kind", "event"],
)
ACTORS_QUARANTINED = Gauge(
    "holdfast_actors_quarantined",
    "Actors in quarantine.",
    ["kind"],
    multiprocess_mode="livesum",
)
CONDITIONS = Gauge(
    "holdfast_conditions",
    "Lasting trouble: of how many subjects (such as providers) a process sees it, by condition: database, "
    "provider, card, top-ups, mail, storage, webhooks, callbacks, unavailable (requests get 503), lockouts, "
    "crash-loops.",
    ["condition"],
    multiprocess_mode="livesum",
)
REPORTS = Counter("holdfast_reports", "Reports to operators.", ["kind", "level"])
MAILBOX_WAIT_S = BatchedHistogram(
    "holdfast_mailbox_wait_seconds",
    "Time that a message waited in its mailbox.",
    ["kind"],
    buckets=SECONDS,
)
TURN_S = BatchedHistogram(
    "holdfast_turn_seconds",
    "Time that a message took to be handled, waits for others included.",
    ["kind"],
    buckets=SECONDS,
)
WORKER_PASS_S = BatchedHistogram(
    "holdfast_worker_pass_seconds",
    "Time of one pass of a worker, without the wait for the next.",
    ["worker"],
    buckets=SECONDS,
)
POISON_MESSAGES = Counter("holdfast_poison_messages", "Messages that crashed their actor and were kept.", ["kind"])
DEAD_LETTERS = Counter(
    "holdfast_dead_letters",
    "Messages that no actor handled: dead (quarantined), full (mailbox), expired (deadline), "
    "orphan_reply (its sender had gone).",
    ["reason"],
)
LOOP_LAG_S = BatchedHistogram(
    "holdfast_loop_lag_seconds",
    "How late the event loop resumed a task that was due, measured once a second.",
    buckets=SECONDS,
)

# Tasks

TASKS_CREATED = Counter("holdfast_tasks_created", "Tasks that were accepted.", ["provider"])
TASK_S = BatchedHistogram(
    "holdfast_task_duration_seconds",
    "Time from a task's creation to its end.",
    ["provider", "status"],
    buckets=(0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600, 1800, 3600, 21600, 86400),
)
TASKS_UNFINISHED = Gauge(
    "holdfast_tasks_unfinished",
    "Tasks that have not ended, in the database. Of a provider's queue at most 10000 are counted.",
    ["provider", "status"],
    multiprocess_mode="livemostrecent",
)
TASKS_QUEUED_AGE_S = Gauge(
    "holdfast_tasks_queued_age_seconds",
    "Age of the oldest task that waits for a slot, in the database; 0 if none waits.",
    ["provider"],
    multiprocess_mode="livemostrecent",
)
REVIEWS_OPEN = Gauge(
    "holdfast_reviews_open",
    "Tasks whose review waits for an operator, in the database.",
    multiprocess_mode="livemostrecent",
)
REVIEWS_AGE_S = Gauge(
    "holdfast_reviews_age_seconds",
    "For how long the oldest review has waited for an operator, in the database; 0 if none waits.",
    multiprocess_mode="livemostrecent",
)

# Providers

PROVIDER_STATE = Gauge(
    "holdfast_provider_state",
    "How many processes see the provider in this state: unknown, up, silent, down.",
    ["provider", "state"],
    multiprocess_mode="livesum",
)
PROVIDER_CALL_S = BatchedHistogram(
    "holdfast_provider_call_duration_seconds",
    "Time from a call to its response or failure: submit, poll, cancel, probe.",
    ["provider", "call"],
    buckets=(0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60),
)
PROVIDER_ERRORS = Counter(
    "holdfast_provider_call_errors",
    "Calls that failed: timeout, connect_error, connect_timeout, pool_timeout, "
    "read_error, read_timeout, write_error, write_timeout, remote_protocol_error, body_too_large, or status_ with "
    "the number of an HTTP status: 401, 402, 403, 408, 429, and from 500.",
    ["provider", "call", "reason"],
)
PROVIDER_SLOTS = Gauge(
    "holdfast_provider_slots",
    "Slots of the provider, where this process assigns them, else 0.",
    ["provider"],
    multiprocess_mode="livesum",
)
PROVIDER_SLOTS_USED = Gauge(
    "holdfast_provider_slots_used",
    "Slots of the provider that tasks occupy, where this process assigns them, else 0.",
    ["provider"],
    multiprocess_mode="livesum",
)

# Payments

ORDER_CHECKS = Counter(
    "holdfast_order_checks",
    "Checks of due orders: the order's reconcile status after a comparison with the card provider, or "
    "expired, attached or refused (its intent), left (nothing to do).",
    ["result"],
)
FILES = Gauge(
    "holdfast_files", "Uploaded files that are stored, in the database.", multiprocess_mode="livemostrecent"
)
FILES_BYTES = Gauge(
    "holdfast_files_bytes",
    "Bytes of the uploaded files that are stored, in the database; those with equal bytes share them in the store.",
    multiprocess_mode="livemostrecent",
)
ORDERS_HELD = Gauge(
    "holdfast_orders_held",
    "Payments that do not match their order and wait for an operator, in the database.",
    multiprocess_mode="livemostrecent",
)
ORDERS_MISMATCHED = Gauge(
    "holdfast_orders_mismatched",
    "Orders that differ from the card provider's record, in the database.",
    multiprocess_mode="livemostrecent",
)

# Events to customers

EVENT_DELIVERIES = Counter(
    "holdfast_event_deliveries", "Deliveries of events: delivered, failed, given_up.", ["result"]
)
EVENTS_PENDING = Gauge(
    "holdfast_events_pending",
    "Events that are still to be delivered, in the database.",
    multiprocess_mode="livemostrecent",
)
EVENTS_FAILING = Gauge(
    "holdfast_events_failing",
    "Events that are still to be delivered after an attempt that failed, in the database; 10000 at most.",
    multiprocess_mode="livemostrecent",
)
EVENTS_GIVEN_UP = Gauge(
    "holdfast_events_given_up",
    "Events whose delivery was given up, in the database; 10000 at most.",
    multiprocess_mode="livemostrecent",
)
EVENTS_PENDING_AGE_S = Gauge(
    "holdfast_events_pending_age_seconds",
    "Age of the oldest event that is still to be delivered, in the database; 0 if there is none.",
    multiprocess_mode="livemostrecent",
)
NAME_LOOKUPS = Counter(
    "holdfast_name_lookups",
    "Look-ups of host names, for webhooks, downloads and providers: answered, failed, timed_out, "
    "late (answered after the caller gave up), remembered (refused or answered from memory), no_thread (too many).",
    ["purpose", "result"],
)

# The audit

AUDIT_VERIFIED_AGE_S = Gauge(
    "holdfast_audit_verified_age_seconds",
    "How long ago the last complete pass of the checker began: every older operation has been checked since.",
    multiprocess_mode="livemostrecent",
)
AUDIT_DIFFERENCES = Gauge(
    "holdfast_audit_differences",
    "Rules of the audit that accounts break now, as the checker found them.",
    multiprocess_mode="livemostrecent",
)
AUDIT_OPERATIONS = Counter("holdfast_audit_operations", "Operations that the checker has checked.")

# Processes

BUILD_INFO = Gauge(
    "holdfast_build_info",
    "The processes that run this version of Holdfast and of Python.",
    ["version", "python"],
    multiprocess_mode="livesum",
)
PROCESS_CPU_S = Counter(
    "holdfast_process_cpu_seconds",
    "CPU time that a process used: a worker, by its number, parent, or single (without a parent).",
    ["process"],
)
PROCESS_MEMORY_BYTES = Gauge(
    "holdfast_process_resident_memory_bytes",
    "Resident memory of a process: a worker, by its number (during a roll with its successor), parent, or single.",
    ["process"],
    multiprocess_mode="livesum",
)
LOG_MEMORY_BYTES = Gauge(
    "holdfast_log_memory_bytes",
    "Log lines that the processes have in memory, where following one thing finds them.",
    multiprocess_mode="livesum",
)

# Members

MEMBERS = Gauge(
    "holdfast_members",
    "Members that own accounts, as this process sees them; of several workers the least.",
    multiprocess_mode="livemin",
)
FORWARDED = Counter(
    "holdfast_forwarded_asks",
    "Asks sent to the member that owns their actor: answered, served_here (not accepted there), lost.",
    ["result"],
)

BATCHED = (
    HTTP_REQUEST_S,
    JOURNAL_BATCH_UNITS,
    JOURNAL_COMMIT_S,
    DATABASE_WAIT_S,
    MAILBOX_WAIT_S,
    TURN_S,
    WORKER_PASS_S,
    LOOP_LAG_S,
    TASK_S,
    PROVIDER_CALL_S,
)


def flush() -> None:
    """Write this worker's batched observations to its files, where the other workers find them."""
    for histogram in BATCHED:
        histogram.flush()


async def render_process() -> bytes:
    """Render this process's metrics: in place of :func:`render_workers` where there is one process."""
    return generate_latest()


_renderings = trio.CapacityLimiter(2)


async def render_workers(folder: str) -> bytes:
    """Render the totals of all workers that write to ``folder``, those that have ended included.

    What the others observed in the last moment is added at their next :func:`flush`. Reading the files of many
    workers takes long, so a thread does it.
    """
    flush()
    return await trio.to_thread.run_sync(_render_files, folder, limiter=_renderings)


def _render_files(folder: str) -> bytes:
    registry = CollectorRegistry()
    MultiProcessCollector(registry, folder)  # type: ignore[no-untyped-call]
    return generate_latest(registry)
