"""Tasks, orders and operations to write, with ``text`` in each of their texts."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from tests.made_requests import make_order_request, make_request, make_terms

from holdfast.ledger.credit.operations import NewLot, Operation, OperationKind, Posting
from holdfast.ledger.orders.order import Order, OrderState
from holdfast.ledger.tasks.task import StatusEntry, Task, TaskState


def make_task(account_id: str, request_id: str, at: datetime, text: Any = "text", *, version: int = 1) -> Task:
    """A queued task."""
    return Task(
        account_id=account_id,
        request_id=request_id,
        version=version,
        status="queued",
        model=text,
        provider=text,
        created_at=at,
        updated_at=at,
        wake_at=at,
        dispatched=False,
        request=make_request(
            make_terms(1, model=text, basis=text),
            input={text or "empty": [text, None]},
            hold_id=f"hold_{request_id}",
            metadata={text: text},
        ),
        state=TaskState(status_history=(StatusEntry(status="queued", ts=at, error=text),)),
    )


def make_order(account_id: str, order_id: str, at: datetime, text: Any = "text") -> Order:
    """A pending card order."""
    named = dict.fromkeys(("brand_id", "legal_entity_id", "merchant_of_record", "provider_account_id"), text)
    request = make_order_request(order_id, account_id, at, **named)
    state = OrderState(reversal_refs=(text,))
    return Order(version=1, updated_at=at, wake_at=None, request=request, state=state)


def columns_of_order(order: Order) -> dict[str, Any]:
    """Return the columns of an order's row."""
    return {
        "account_id": order.account_id,
        "order_id": order.order_id,
        "version": order.version,
        "provider": order.request.provider,
        "origin": order.request.origin,
        "status": order.status,
        "reconcile_status": order.statuses.reconcile_status,
        "created_at": order.request.created_at,
        "updated_at": order.updated_at,
        "expires_at": order.request.expires_at,
        "wake_at": order.wake_at,
        "request": msgspec.to_builtins(order.request),
        "state": msgspec.to_builtins(order.state),
    }


def make_operation(
    account_id: str,
    number: int,
    kind: OperationKind,
    at: datetime,
    text: str = "text",
    *,
    hold_id: str | None = None,
    lot: NewLot | None = None,
) -> Operation:
    """An operation with amounts at the ends of their range."""
    return Operation(
        operation_id=f"op_{account_id}_{number}",
        account_id=account_id,
        number=number,
        kind=kind,
        amount_micro=5,
        postings=(Posting(text, -5), Posting(text, 5)),
        balance_after_micro=-(2**62),
        held_after_micro=2**62,
        hold_id=hold_id,
        lot=lot,
        emptied=() if lot is None else (number,),
        reference=text,
        reason=text,
        at=at,
        chain_hash=bytes(range(256)),
    )
