"""The Prometheus metrics of the service, for ``GET /metrics``.

The workers of one parent write them to files in one folder, and each renders the totals of all. A gauge's
``multiprocess_mode`` says what that is: the sum over running workers, or what one of them last saw in the database.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from holdfast.metrics.batched_histogram import BatchedHistogram

SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
"""The buckets of what takes microseconds usually, and a deadline's time at worst."""

HTTP_RESPONSE_S = BatchedHistogram(
    "holdfast_http_answer_seconds",
    "Time from a request's head to its response, by route and status.",
    ["route", "status"],
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5, 15),
)
HTTP_CONNECTIONS = Gauge("holdfast_http_connections", "Open connections.", multiprocess_mode="livesum")
HTTP_CONNECTIONS_CLOSED = Counter(
    "holdfast_http_connections_cut",
    "Connections closed by the server, by reason: head_timeout, body_timeout, send_timeout, refused, "
    "room (idle, closed for a new one), stop, fault.",
    ["reason"],
)
JOURNAL_BATCHES = Counter("holdfast_journal_batches", "Transactions the journal committed.")
JOURNAL_UNITS = Counter("holdfast_journal_units", "Units of work, by the outcome of their batch.", ["verdict"])
JOURNAL_BATCH_UNITS = BatchedHistogram(
    "holdfast_journal_batch_units",
    "Units of work in one batch.",
    buckets=(1, 2, 5, 10, 20, 50, 100, 200, 500),
)
JOURNAL_COMMIT_S = BatchedHistogram(
    "holdfast_journal_commit_seconds",
    "Time from taking a batch to its durable commit.",
    buckets=SECONDS,
)
JOURNAL_QUEUE = Gauge(
    "holdfast_journal_queue_units", "Units of work waiting for the next batch.", multiprocess_mode="livesum"
)
FENCE_STALE = Counter(
    "holdfast_fence_stale_units",
    "Units refused by the version fence: another process, or an earlier decision, had changed the row.",
    ["kind"],
)
COMMIT_LOOKUPS = Counter(
    "holdfast_commit_lookups", "Batches whose COMMIT response was lost, by what the look-up found.", ["found"]
)
ACTORS_AWAKE = Gauge("holdfast_actors_awake", "Active virtual actors.", ["kind"], multiprocess_mode="livesum")
ACTOR_EVENTS = Counter(
    "holdfast_actor_events",
    "Events of virtual actors: activated, passivated, crashed, voided, put_off (by the database), "
    "quarantined, tried (their quarantine being over), released.",
    ["kind", "event"],
)
MAILBOX_WAIT_S = BatchedHistogram(
    "holdfast_mailbox_wait_seconds",
    "Time that a message waited in its mailbox, by kind of actor.",
    ["kind"],
    buckets=SECONDS,
)
TURN_S = BatchedHistogram(
    "holdfast_turn_seconds",
    "Time that an actor took to handle a message, waits for others included, by kind of actor.",
    ["kind"],
    buckets=SECONDS,
)
LOOP_LAG_S = BatchedHistogram(
    "holdfast_loop_lag_seconds", "How late the event loop resumed a task that was due.", buckets=SECONDS
)
TASKS_CREATED = Counter("holdfast_tasks_created", "Tasks that were accepted, by provider.", ["provider"])
TASK_S = BatchedHistogram(
    "holdfast_task_seconds",
    "Time from a task's creation to its end, by provider and last status.",
    ["provider", "status"],
    buckets=(0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600, 1800, 3600, 21600, 86400),
)
MEMBERS = Gauge(
    "holdfast_members", "Members that own accounts, as this process sees them.", multiprocess_mode="livemin"
)
FORWARDED = Counter(
    "holdfast_forwarded_asks",
    "Asks sent to the member that owns their actor, by result: answered, served_here (not accepted there), lost.",
    ["result"],
)
DEAD_LETTERS = Counter("holdfast_dead_letters", "Messages that were not answered or read, by reason.", ["reason"])
DATABASE_AWAY = Counter("holdfast_database_away", "How often the database became unreachable.")
ORDER_CHECKS = Counter("holdfast_order_looks", "Checks of due payment orders, by result.", ["result"])
ORDERS_HELD = Gauge(
    "holdfast_orders_held",
    "Payment orders in the database that wait for an operator.",
    multiprocess_mode="livemostrecent",
)
REVIEWS_OPEN = Gauge(
    "holdfast_reviews_open",
    "Tasks in the database whose review waits for an operator.",
    multiprocess_mode="livemostrecent",
)
ORDERS_MISMATCHED = Gauge(
    "holdfast_orders_mismatched",
    "Payment orders in the database that differ from their provider's record.",
    multiprocess_mode="livemostrecent",
)
EVENT_DELIVERIES = Counter(
    "holdfast_event_deliveries", "Deliveries of events, by result: delivered, failed, given_up.", ["result"]
)
EVENTS_PENDING = Gauge(
    "holdfast_events_pending",
    "Events in the database that are not delivered yet.",
    multiprocess_mode="livemostrecent",
)
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
NAME_LOOKUPS = Counter(
    "holdfast_name_lookups",
    "Look-ups of host names, by purpose and result: answered, failed, timed_out, late (answered "
    "after the caller gave up), remembered (refused or answered from memory), no_thread.",
    ["purpose", "result"],
)

BATCHED = (HTTP_RESPONSE_S, JOURNAL_BATCH_UNITS, JOURNAL_COMMIT_S, MAILBOX_WAIT_S, TURN_S, LOOP_LAG_S, TASK_S)


def flush() -> None:
    """Write this worker's batched observations to its files, where the other workers find them."""
    for histogram in BATCHED:
        histogram.flush()


def render_workers(folder: str) -> bytes:
    """Render the totals of all workers that write to ``folder``, those that have ended included.

    What the others observed in the last seconds is added at their next :func:`flush`.
    """
    flush()
    registry = CollectorRegistry()
    MultiProcessCollector(registry, folder)  # type: ignore[no-untyped-call]
    return generate_latest(registry)
