"""Compares rows and reads with the responses. Every function returns the differences it finds.

A difference names its kind: ``lost`` (answered and not there), ``doubled`` (there more often than asked for, or
without having been asked for), ``hold`` (a hold that does not fit its task, or has no end), ``charge`` (a sum that
is not what was agreed), ``answer`` (two answers that contradict each other, or the rows), ``failed`` (a task that
ended without success and without a reason), ``order`` (a payment that was not credited), ``expiry`` (credit that
did not expire).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .record import ENDED, TOP_UPS_PER_DAY, AccountRecord, Create, Order, micro
from .rows import AccountRows, OperationRow, TaskRow

Kind = Literal[
    "lost", "doubled", "hold", "charge", "answer", "failed", "order", "expiry", "audit", "recovery", "exit"
]


@dataclass(frozen=True, slots=True)
class Difference:
    """One violated promise."""

    kind: Kind
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def compare_rows(record: AccountRecord, rows: AccountRows | None, *, settled: bool) -> list[Difference]:
    """Compare one account's rows with its record; with ``settled`` nothing may be unfinished."""
    if rows is None:
        return [Difference("lost", f"account {record.account_id} of {record.email} has no row")]
    return [
        *(Difference("answer", text) for text in record.wrong_answers),
        *_compare_tasks(record, rows),
        *_compare_holds(record, rows, settled=settled),
        *_compare_limits(record, rows),
        *_compare_credits(record, rows, settled=settled),
        *_compare_sums(rows),
    ]


def _asked_for(record: AccountRecord) -> Callable[[TaskRow], Create | None]:
    """Return how to find the request of a task: by its number, or for a retry by the task it repeats."""
    retries = {create.retry_of: create for create in record.creates.values() if create.retry_of is not None}

    def find(task: TaskRow) -> Create | None:
        # A retry carries the metadata of the first task.
        return record.creates.get(task.number or 0) if task.retry_of is None else retries.get(task.retry_of)

    return find


def _compare_tasks(record: AccountRecord, rows: AccountRows) -> Iterator[Difference]:
    find = _asked_for(record)
    by_number: defaultdict[int, list[TaskRow]] = defaultdict(list)
    for task in rows.tasks:
        create = find(task)
        if create is None:
            yield Difference("doubled", f"{task.request_id} was never asked for")
            continue
        by_number[create.number].append(task)
        if task.status == "failed" and not create.will_fail and not record.may_fail:
            yield Difference("failed", f"{task.request_id} failed without its provider's word: {task.error}")
        if task.status == "succeeded" and create.will_fail:
            yield Difference("answer", f"{task.request_id} succeeded, though its provider failed it")
    for create in record.creates.values():
        yield from _compare_create(create, by_number[create.number])
    statuses = {task.request_id: task.status for task in rows.tasks}
    for request_id, status in record.ends.items():
        if statuses.get(request_id, status) != status:
            yield Difference("answer", f"{request_id} was answered {status} and is {statuses[request_id]}")


def _compare_create(create: Create, tasks: Sequence[TaskRow]) -> Iterator[Difference]:
    name = f"create {create.number} (key {create.key})"
    found = [task.request_id for task in tasks]
    if create.outcome == "done" and create.request_id not in found:
        yield Difference("lost", f"{name} was answered {create.request_id}, which has no row")
    if create.outcome == "refused" and found:
        yield Difference("doubled", f"{name} was refused and made {found}")
    if len(found) > 1:
        yield Difference("doubled", f"{name} made {len(found)} tasks: {found}")


def _compare_holds(record: AccountRecord, rows: AccountRows, *, settled: bool) -> Iterator[Difference]:
    """Check that each task has one hold of its price, open until the task ends, then captured or released."""
    holds = {hold.hold_id: hold for hold in rows.holds}
    usage = {entry.request_id: entry for entry in rows.usage}
    outcomes: defaultdict[str, list[OperationRow]] = defaultdict(list)
    opened: Counter[str] = Counter()
    for operation in rows.operations:
        if operation.kind in {"capture", "release"} and operation.hold_id is not None:
            outcomes[operation.hold_id].append(operation)
        if operation.kind == "hold" and operation.hold_id is not None:
            opened[operation.hold_id] += 1
    find = _asked_for(record)
    for task in rows.tasks:
        create = find(task)
        price = None if create is None else create.price_micro
        hold = holds.pop(task.hold_id, None)
        ends = outcomes.pop(task.hold_id, [])
        what = f"{task.request_id} ({task.status})"
        if hold is None or opened[task.hold_id] != 1 or hold.reference != task.request_id:
            yield Difference("hold", f"{what} has not exactly one hold of its own")
            continue
        if price is not None and hold.amount_micro != price:
            yield Difference("charge", f"{what} holds {hold.amount_micro} where {price} was asked")
        if len(ends) > 1:
            yield Difference("doubled", f"{what} was settled {len(ends)} times")
        has_ended = task.status in ENDED
        if has_ended != bool(ends) or has_ended != (hold.settled_number is not None):
            yield Difference("hold", f"{what} has {len(ends)} outcomes of its hold, settled {hold.settled_number}")
        if settled and not has_ended:
            yield Difference("hold", f"{what} has not ended, and holds {hold.amount_micro}")
        captured = sum(each.amount_micro for each in ends if each.kind == "capture")
        wanted = price if task.status == "succeeded" and price is not None else 0
        if create is not None and record.may_fail and (task.error or "").startswith("partial"):
            # Each result that was stored costs its part of the price.
            wanted = create.price_micro * task.results // create.pictures
        entry = usage.pop(task.request_id, None)
        if captured != wanted:
            yield Difference("charge", f"{what} was charged {captured} where {wanted} was agreed")
        if entry is None or entry.cost_micro != captured or entry.status != task.status:
            yield Difference("charge", f"{what} was charged {captured}, its usage entry says {entry}")
    yield from (Difference("hold", f"hold {hold_id} belongs to no task") for hold_id in holds)
    yield from (Difference("doubled", f"hold {hold_id} was settled for no task") for hold_id in outcomes)
    yield from (Difference("doubled", f"usage entry {request_id} belongs to no task") for request_id in usage)


def _compare_limits(record: AccountRecord, rows: AccountRows) -> Iterator[Difference]:
    """Check that no key spent more than its limit: what it holds, and what was captured of its other holds."""
    holds = {hold.hold_id: hold for hold in rows.holds}
    costs = {entry.request_id: entry.cost_micro for entry in rows.usage}
    spent: Counter[str] = Counter()
    for task in rows.tasks:
        hold = holds.get(task.hold_id)
        is_open = hold is not None and hold.settled_number is None
        spent[task.key_id] += hold.amount_micro if hold is not None and is_open else costs.get(task.request_id, 0)
    for key_id, most_micro in record.limits.items():
        if spent[key_id] > most_micro:
            yield Difference("charge", f"key {key_id} spent {spent[key_id]} of {most_micro}")


def _compare_credits(record: AccountRecord, rows: AccountRows, *, settled: bool) -> Iterator[Difference]:
    """Check that each recharge, grant and paid order was credited once per request, and nothing else was."""
    credited = [operation for operation in rows.operations if operation.kind in {"credit", "grant"}]
    for operation in rows.operations:
        if operation.kind not in {"credit", "grant", "expiry", "hold", "capture", "release"}:
            yield Difference("charge", f"operation {operation.operation_id} is a {operation.kind}")
    by_id = {operation.operation_id: operation for operation in credited}
    for recharge in record.recharges.values():
        found = [
            each for each in credited if (each.kind, each.amount_micro) == (recharge.kind, recharge.amount_micro)
        ]
        name = f"{recharge.kind} {recharge.number} of {recharge.amount_micro} (key {recharge.key})"
        if recharge.outcome == "done" and recharge.operation_id not in {each.operation_id for each in found}:
            yield Difference("lost", f"{name} was answered {recharge.operation_id}, which has no row")
        if len(found) > 1 or (found and recharge.outcome == "refused"):
            yield Difference("doubled", f"{name} ({recharge.outcome}) was credited {len(found)} times")
        for each in found:
            by_id.pop(each.operation_id, None)
    order_rows = {order.order_id: order for order in rows.orders if order.origin != "top_up"}
    asked = {order.order_id for order in record.orders.values() if order.order_id is not None}
    unknown = sum(order.outcome == "unknown" for order in record.orders.values())
    if len(order_rows.keys() - asked) > unknown:
        yield Difference("doubled", f"orders {sorted(order_rows.keys() - asked)} for {unknown} unanswered requests")
    for order in record.orders.values():
        yield from _compare_order(order, rows, by_id, settled=settled)
    yield from _compare_top_ups(record, rows, by_id, settled=settled)
    if settled and rows.expiring:
        yield Difference("expiry", f"lots {rows.expiring} of {rows.account_id} have not expired")
    for operation in by_id.values():
        yield Difference("doubled", f"{operation.amount_micro} were credited for nothing: {operation}")


def _compare_order(
    order: Order, rows: AccountRows, by_id: dict[str, OperationRow], *, settled: bool
) -> Iterator[Difference]:
    if order.outcome != "done":
        return
    name = f"{order.provider} order {order.order_id} of {order.amount_micro}"
    row = next((each for each in rows.orders if each.order_id == order.order_id), None)
    if row is None:
        yield Difference("lost", f"{name} was answered and has no row")
        return
    operation = by_id.pop(row.operation_id, None)
    if operation is None:
        if order.credited or (order.paid == "yes" and settled):
            kind: Kind = "lost" if order.credited else "order"
            yield Difference(kind, f"{name} was paid and not credited ({row.status})")
        return
    if order.paid == "no":
        yield Difference("doubled", f"{name} was credited without having been paid")
    if operation.amount_micro != order.amount_micro:
        yield Difference("charge", f"{name} was credited {operation.amount_micro}")


def _compare_top_ups(
    record: AccountRecord, rows: AccountRows, by_id: dict[str, OperationRow], *, settled: bool
) -> Iterator[Difference]:
    """Check that each automatic top-up was charged at most once, and credited if it was, so many a day."""
    charged: Counter[str] = Counter()
    for row in rows.orders:
        if row.origin != "top_up":
            continue
        name = f"top-up {row.order_id} of {row.amount_micro} ({row.status})"
        operation = by_id.pop(row.operation_id, None)
        if operation is not None and operation.amount_micro != row.amount_micro:
            yield Difference("charge", f"{name} was credited {operation.amount_micro}")
        if not settled:
            continue  # what the card provider has is looked at then
        charges = record.charges.get(row.order_id, 0)
        charged[row.day] += charges > 0
        if charges > 1:
            yield Difference("doubled", f"{name} was charged {charges} times")
        if charges and operation is None:
            yield Difference("order", f"{name} was charged and not credited")
        if operation is not None and not charges:
            yield Difference("doubled", f"{name} was credited without a charge")
    for day, many in charged.items():
        if many > TOP_UPS_PER_DAY:
            yield Difference("charge", f"{rows.account_id}: {many} top-ups on {day}")


def _compare_sums(rows: AccountRows) -> Iterator[Difference]:
    """Check that each operation's totals follow from the one before, up to the account's own."""
    balance = held = 0
    amounts = {hold.hold_id: hold.amount_micro for hold in rows.holds}
    for place, operation in enumerate(rows.operations, 1):
        whole = amounts.get(operation.hold_id or "", 0)
        match operation.kind:
            case "credit" | "grant":
                balance += operation.amount_micro
            case "expiry":
                balance -= operation.amount_micro
            case "hold":
                held += operation.amount_micro
            case "capture":
                balance -= operation.amount_micro
                held -= whole
            case "release":
                held -= whole
        if operation.number != place:
            yield Difference("lost", f"{rows.account_id}: operation {operation.number} stands at place {place}")
            return
        if operation.postings_sum_micro != 0:
            yield Difference(
                "charge", f"{operation.operation_id}: its postings sum to {operation.postings_sum_micro}"
            )
        if (operation.balance_after_micro, operation.held_after_micro) != (balance, held):
            yield Difference("charge", f"{operation.operation_id} leaves {operation}, not {balance} and {held}")
            return
    if (rows.balance_micro, rows.held_micro, rows.operation_count) != (balance, held, len(rows.operations)):
        yield Difference(
            "charge",
            f"{rows.account_id} has {rows.balance_micro}, held {rows.held_micro} at {rows.operation_count},"
            f" its operations say {balance}, {held} at {len(rows.operations)}",
        )


def compare_reads(
    rows: AccountRows,
    account: Mapping[str, Any],
    tasks: Sequence[Mapping[str, Any]],
    statement: Sequence[Mapping[str, Any]],
    usage: Sequence[Mapping[str, Any]],
) -> list[Difference]:
    """Compare the API's view of a settled account (totals and whole lists) with its rows."""
    found = []
    totals = tuple(micro(account[name]) for name in ("balance", "held_total", "available_balance"))
    wanted = (rows.balance_micro, rows.held_micro, rows.balance_micro - rows.held_micro)
    if totals != wanted:
        found.append(Difference("answer", f"{rows.account_id}: totals {totals} are shown, rows say {wanted}"))
    shown: tuple[tuple[str, list[Any], list[Any]], ...] = (
        (
            "tasks",
            [(each["request_id"], each["status"]) for each in tasks],
            [(row.request_id, row.status) for row in rows.tasks],
        ),
        (
            "operations",
            [(each["operation_id"], each["kind"]) for each in statement],
            [(row.operation_id, row.kind) for row in rows.operations],
        ),
        (
            "usage entries",
            [(each["request_id"], micro(each["cost_credits"])) for each in usage],
            [(row.request_id, row.cost_micro) for row in rows.usage],
        ),
    )
    for name, listed, stored in shown:
        missing, extra = Counter(stored) - Counter(listed), Counter(listed) - Counter(stored)
        if missing:
            found.append(Difference("lost", f"{rows.account_id}: {name} not in the list: {sorted(missing)[:5]}"))
        if extra:
            found.append(
                Difference("doubled", f"{rows.account_id}: {name} listed and not stored: {sorted(extra)[:5]}")
            )
    return found
