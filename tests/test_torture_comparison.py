"""The torture harness's comparison: correct rows pass, each kind of wrong row is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from torture.compare import Difference, compare_reads, compare_rows
from torture.record import TOP_UPS_PER_DAY, AccountRecord, Create, Order, Recharge
from torture.rows import AccountRows, HoldRow, OperationRow, OrderRow, TaskRow, UsageRow

ACCOUNT = "acct_1"


def record() -> AccountRecord:
    """What a customer was answered: a recharge, three tasks (one under way), two orders; two got no answer."""
    found = AccountRecord("ada@example.com", ACCOUNT)
    found.recharges = {
        1: Recharge(1, 1_000_001, "recharge-1", "done", "op_1"),
        2: Recharge(2, 2, None),
    }
    found.creates = {
        11: Create(11, 30_000, "create-11", outcome="done", request_id="task_a"),
        12: Create(12, 60_000, None, outcome="done", request_id="task_b"),
        13: Create(13, 30_000, "create-13", outcome="done", request_id="task_c"),
        14: Create(14, 30_000, None),
        15: Create(15, 30_000, "create-15", outcome="refused"),
    }
    found.orders = {
        21: Order(21, "sandbox", 5_000_000, None, "done", "ord_1", "op_9", paid="yes", credited=True),
        22: Order(22, "cardprovider", 7_000_000, None, "done", "ord_2", "op_10"),
    }
    found.ends = {"task_a": "succeeded", "task_b": "canceled"}
    return found


def operation(  # noqa: PLR0917 - read as a table
    number: int,
    kind: str,
    amount: int,
    balance: int,
    held: int,
    task: str = "",
) -> OperationRow:
    """One operation, its postings in order."""
    hold_id = f"hold_{task}" if task else None
    return OperationRow(number, f"op_{number}", kind, amount, balance, held, hold_id, f"task_{task}")


def rows() -> AccountRows:
    """The rows that fit the record, as of a moment when the third task is still under way."""
    return AccountRows(
        ACCOUNT,
        balance_micro=5_970_001,
        held_micro=30_000,
        operation_count=7,
        operations=[
            operation(1, "credit", 1_000_001, 1_000_001, 0),
            operation(2, "hold", 30_000, 1_000_001, 30_000, "a"),
            operation(3, "hold", 60_000, 1_000_001, 90_000, "b"),
            operation(4, "capture", 30_000, 970_001, 60_000, "a"),
            operation(5, "release", 60_000, 970_001, 0, "b"),
            replace(operation(6, "credit", 5_000_000, 5_970_001, 0), operation_id="op_9"),
            operation(7, "hold", 30_000, 5_970_001, 30_000, "c"),
        ],
        holds=[
            HoldRow("hold_a", 30_000, "task_a", 4),
            HoldRow("hold_b", 60_000, "task_b", 5),
            HoldRow("hold_c", 30_000, "task_c", None),
        ],
        tasks=[
            TaskRow("task_a", "succeeded", "hold_a", 11, None),
            TaskRow("task_b", "canceled", "hold_b", 12, None),
            TaskRow("task_c", "processing", "hold_c", 13, None),
        ],
        usage=[
            UsageRow("task_a", "succeeded", 30_000, "op_4"),
            UsageRow("task_b", "canceled", 0, "op_5"),
            UsageRow("task_c", "processing", 0, None),
        ],
        orders=[
            OrderRow("ord_1", "sandbox", "credited", "op_9"),
            OrderRow("ord_2", "cardprovider", "pending", "op_10"),
        ],
    )


def kinds(found: list[Difference]) -> set[str]:
    """The kinds of differences."""
    return {difference.kind for difference in found}


def test_matching_rows_are_no_difference() -> None:
    assert compare_rows(record(), rows(), settled=False) == []


def test_an_open_hold_is_a_difference_after_settling() -> None:
    assert kinds(compare_rows(record(), rows(), settled=True)) == {"hold"}


def test_an_account_without_a_row_is_found() -> None:
    assert kinds(compare_rows(record(), None, settled=False)) == {"lost"}


def without(found: AccountRows, number: int) -> None:
    """Remove an operation as if it had never been written, adjusting later numbers and totals."""
    gone = found.operations.pop(number - 1)
    for place, each in enumerate(found.operations[number - 1 :], number):
        balance = each.balance_after_micro - (gone.amount_micro if gone.kind == "credit" else 0)
        found.operations[place - 1] = replace(each, number=place, balance_after_micro=balance)
    found.operation_count -= 1
    found.balance_micro -= gone.amount_micro


def again(found: AccountRows, operation_id: str) -> None:
    """Credit the amount of the first operation once more, with everything that belongs to it."""
    amount = found.operations[0].amount_micro
    found.balance_micro += amount
    found.operation_count += 1
    found.operations.append(
        OperationRow(8, operation_id, "credit", amount, found.balance_micro, found.held_micro, None, operation_id)
    )


Damage = Callable[[AccountRecord, AccountRows], object]
DAMAGES: dict[str, tuple[Damage, set[str]]] = {
    "a lost credit": (lambda _, found: without(found, 1), {"lost"}),
    "a lost payment": (lambda _, found: without(found, 6), {"lost"}),
    "a duplicated recharge": (lambda _, found: again(found, "op_8"), {"doubled"}),
    "a credit for an unpaid order": (lambda asked, _: unpaid(asked.orders[21]), {"doubled"}),
    "a task charged twice": (
        lambda _, found: found.operations.append(operation(8, "capture", 30_000, 5_940_001, 0, "a")),
        {"doubled", "charge"},
    ),
    "a wrong charge": (lambda asked, _: setattr(asked.creates[11], "price_micro", 20_000), {"charge"}),
    "a usage entry with another cost": (lambda _, found: change(found.usage, 0, cost_micro=20_000), {"charge"}),
    "a canceled task with an open hold": (lambda _, found: canceled(found, 2), {"hold"}),
    "a task with another end than answered": (lambda asked, _: asked.ends.update(task_a="failed"), {"answer"}),
    "a balance that contradicts its operations": (lambda _, found: setattr(found, "balance_micro", 1), {"charge"}),
    "postings that do not sum to zero": (
        lambda _, found: change(found.operations, 3, postings_sum_micro=1),
        {"charge"},
    ),
}


def unpaid(order: Order) -> None:
    order.paid, order.credited = "no", False


def change(found: list[Any], place: int, **fields: object) -> None:
    found[place] = replace(found[place], **fields)


def canceled(found: AccountRows, place: int) -> None:
    change(found.tasks, place, status="canceled")
    change(found.usage, place, status="canceled")


@pytest.mark.parametrize("name", DAMAGES)
def test_each_damage_is_found_although_other_sums_match(name: str) -> None:
    asked, found = record(), rows()
    damage, wanted = DAMAGES[name]
    damage(asked, found)
    assert wanted <= kinds(compare_rows(asked, found, settled=False)) <= wanted | {"charge"}


def test_an_unanswered_recharge_is_credited_at_most_once() -> None:
    found, asked = rows(), record()
    asked.recharges[2].amount_micro = 1_000_002
    found.operations[0] = replace(found.operations[0], amount_micro=1_000_001)
    for number in (8, 9):
        found.balance_micro += 1_000_002
        found.operation_count += 1
        row = OperationRow(number, f"op_{number}0", "credit", 1_000_002, found.balance_micro, 30_000, None, "op")
        found.operations.append(row)
        wanted = set() if number == 8 else {"doubled"}
        assert kinds(compare_rows(asked, found, settled=False)) == wanted


def test_credit_must_have_expired_after_settling() -> None:
    found = rows()
    found.expiring = [6]
    assert kinds(compare_rows(record(), found, settled=False)) == set()
    assert kinds(compare_rows(record(), found, settled=True)) == {"hold", "expiry"}


def test_a_payment_must_be_credited_after_settling() -> None:
    asked, found = record(), rows()
    asked.orders[22].paid = "yes"
    assert compare_rows(asked, found, settled=False) == []
    assert "order" in kinds(compare_rows(asked, found, settled=True))


@pytest.mark.parametrize(("most_micro", "wanted"), [(60_000, set()), (59_999, {"charge"})])
def test_a_key_above_its_limit_is_found(most_micro: int, wanted: set[str]) -> None:
    """What is captured counts, and what is held; what was released does not."""
    asked, found = record(), rows()
    found.tasks[:] = [replace(task, key_id="key_1") for task in found.tasks]
    asked.limits["key_1"] = most_micro
    assert kinds(compare_rows(asked, found, settled=False)) == wanted


def test_a_grant_and_its_expiry_are_counted_and_a_second_grant_is_found() -> None:
    asked, found = record(), rows()
    asked.recharges[3] = Recharge(3, 2_000_003, "grant-3", "done", "op_8", "grant")
    for row in (
        OperationRow(8, "op_8", "grant", 2_000_003, 7_970_004, 30_000, None, "op_8"),
        OperationRow(9, "op_9e", "expiry", 2_000_000, 5_970_004, 30_000, None, "op_8"),
    ):
        found.operations.append(row)
    found.balance_micro, found.operation_count = 5_970_004, 9
    assert compare_rows(asked, found, settled=False) == []
    found.operations.append(OperationRow(10, "op_10g", "grant", 2_000_003, 7_970_007, 30_000, None, "op_10g"))
    found.balance_micro, found.operation_count = 7_970_007, 10
    assert kinds(compare_rows(asked, found, settled=False)) == {"doubled"}


@pytest.mark.parametrize(
    ("charges", "is_credited", "wanted"),
    [
        (0, False, set()),
        (1, True, set()),
        (1, False, {"order"}),
        (2, True, {"doubled"}),
        (0, True, {"doubled"}),
    ],
)
def test_a_top_up_is_charged_once_and_credited_if_it_was(
    charges: int, wanted: set[str], *, is_credited: bool
) -> None:
    asked, found = record(), rows()
    found.orders.append(OrderRow("ord_9", "cardprovider", "pending", "op_20", "top_up", 5_000_000, "2026-11-23"))
    if charges:
        asked.charges["ord_9"] = charges
    if is_credited:
        found.operations.append(OperationRow(8, "op_20", "credit", 5_000_000, 10_970_001, 30_000, None, "ord_9"))
        found.balance_micro, found.operation_count = 10_970_001, 8
    assert kinds(compare_rows(asked, found, settled=True)) - {"hold"} == wanted


def test_more_top_ups_than_allowed_in_a_day_are_found() -> None:
    asked, found = record(), rows()
    for number in range(TOP_UPS_PER_DAY + 1):
        found.orders.append(
            OrderRow(f"ord_{number}t", "cardprovider", "pending", "op_x", "top_up", 5, "2026-11-23")
        )
        asked.charges[f"ord_{number}t"] = 1
    texts = [each.text for each in compare_rows(asked, found, settled=True) if each.kind == "charge"]
    assert texts == [f"acct_1: {TOP_UPS_PER_DAY + 1} top-ups on 2026-11-23"]


def test_a_lost_task_is_found() -> None:
    found = rows()
    del found.tasks[2], found.usage[2], found.holds[2], found.operations[6]
    found.held_micro, found.operation_count = 0, 6
    assert kinds(compare_rows(record(), found, settled=False)) == {"lost"}


@pytest.mark.parametrize(
    ("number", "wanted"),
    [(14, set()), (13, {"doubled"}), (15, {"doubled"}), (99, {"doubled"}), (None, {"doubled"})],
    ids=["unanswered", "answered before", "refused", "never asked for", "without a number"],
)
def test_an_unknown_task_is_accepted_only_for_a_missing_answer(number: int | None, wanted: set[str]) -> None:
    found = rows()
    found.tasks.append(TaskRow("task_d", "queued", "hold_d", number, None))
    found.holds.append(HoldRow("hold_d", 30_000, "task_d", None))
    found.usage.append(UsageRow("task_d", "queued", 0, None))
    found.operations.append(operation(8, "hold", 30_000, 5_970_001, 60_000, "d"))
    found.held_micro, found.operation_count = 60_000, 8
    assert kinds(compare_rows(record(), found, settled=False)) == wanted


def test_an_unexplained_failure_is_found_unless_a_fault_excuses_it() -> None:
    asked, found = record(), rows()
    found.tasks[1] = replace(found.tasks[1], status="failed", error="provider_timeout")
    found.usage[1] = replace(found.usage[1], status="failed")
    del asked.ends["task_b"]
    assert kinds(compare_rows(asked, found, settled=False)) == {"failed"}
    asked.may_fail = True
    assert compare_rows(asked, found, settled=False) == []


def test_a_partial_success_is_charged_in_part_where_excused() -> None:
    asked, found = record(), rows()
    asked.creates[11].price_micro, asked.creates[11].pictures = 60_000, 2
    found.holds[0] = replace(found.holds[0], amount_micro=60_000)
    found.operations[1] = replace(found.operations[1], amount_micro=60_000, held_after_micro=60_000)
    found.operations[2] = replace(found.operations[2], held_after_micro=120_000)
    found.tasks[0] = replace(found.tasks[0], error="partial: 1 of 2", results=1)
    assert kinds(compare_rows(asked, found, settled=False)) == {"charge"}
    asked.may_fail = True
    assert compare_rows(asked, found, settled=False) == []
    found.tasks[0] = replace(found.tasks[0], results=2)
    assert kinds(compare_rows(asked, found, settled=False)) == {"charge"}


def test_contradicting_final_answers_are_found() -> None:
    asked = record()
    asked.note_end("task_a", "canceled", ended=())
    asked.note_end("task_b", "processing", ended=("task_b",))
    assert [difference.kind for difference in compare_rows(asked, rows(), settled=False)] == ["answer", "answer"]


def test_an_answer_sent_before_the_end_contradicts_nothing() -> None:
    asked = record()
    asked.note_end("task_b", "processing", ended=("task_a",))
    assert compare_rows(asked, rows(), settled=False) == []


def reads() -> dict[str, Any]:
    """What the interface shows of those rows."""
    found = rows()
    return {
        "account": {"balance": "5.970001", "held_total": "0.03", "available_balance": "5.940001"},
        "tasks": [{"request_id": each.request_id, "status": each.status} for each in found.tasks],
        "statement": [{"operation_id": each.operation_id, "kind": each.kind} for each in found.operations],
        "usage": [
            {"request_id": each.request_id, "cost_credits": f"{each.cost_micro / 1_000_000:.6f}"}
            for each in found.usage
        ],
    }


def test_reads_that_match_the_rows_are_no_difference() -> None:
    assert compare_reads(rows(), **reads()) == []


@pytest.mark.parametrize("name", ["tasks", "statement", "usage"])
def test_a_list_with_missing_or_repeated_items_is_found(name: str) -> None:
    shown = reads()
    shown[name] = shown[name][1:]
    assert kinds(compare_reads(rows(), **shown)) == {"lost"}
    shown = reads()
    shown[name] = [*shown[name], shown[name][0]]
    assert kinds(compare_reads(rows(), **shown)) == {"doubled"}


def test_totals_that_differ_from_the_rows_are_found() -> None:
    shown = reads()
    shown["account"]["available_balance"] = "5.97"
    assert kinds(compare_reads(rows(), **shown)) == {"answer"}
