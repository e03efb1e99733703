"""Tasks, orders and operations to write, with ``text`` in each of their texts."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from holdfast.ledger.catalog.terms import Rate, Terms, Units
from holdfast.ledger.credit.operations import Operation, OperationKind, Posting
from holdfast.ledger.orders.order import Order, OrderRequest, OrderState, identity_fx
from holdfast.ledger.tasks.task import StatusEntry, Task, TaskRequest, TaskState


def make_task(account_id: str, request_id: str, at: datetime, text: Any = "text", *, version: int = 1) -> Task:
    """A queued task."""
    units = Units(units=1)
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
        request=TaskRequest(
            input={text or "empty": [text, None]},
            terms=Terms(
                model=text,
                modality="image",
                catalog_version="cat_0",
                input_hash="0" * 64,
                rate=Rate(mode="per_image", unit="image", unit_price="1"),
                estimated=units,
                largest=units,
                smallest=units,
                estimate_micro=1,
                minimum_micro=1,
                maximum_micro=1,
                hold_micro=1,
                exact=True,
                basis=text,
                provider="studio",
                upstream_model="poster",
                provider_quote_hash="0" * 64,
            ),
            quote_id="quo_1",
            api_key_id=None,
            hold_id=f"hold_{request_id}",
            hold_micro=1,
            metadata={text: text},
        ),
        state=TaskState(status_history=(StatusEntry(status="queued", ts=at, error=text),)),
    )


def make_order(account_id: str, order_id: str, at: datetime, text: Any = "text") -> Order:
    """A pending card order."""
    request = OrderRequest(
        order_id=order_id,
        account_id=account_id,
        provider="cardprovider",
        amount_micro=10_000_000,
        currency="USD",
        operation_id=f"op_{order_id}",
        brand_id=text,
        legal_entity_id=text,
        merchant_of_record=text,
        provider_account_id=text,
        created_at=at,
        expires_at=at + timedelta(hours=24),
        fx=identity_fx("USD", at),
    )
    state = OrderState(reversal_refs=(text,))
    return Order(version=1, updated_at=at, wake_at=None, request=request, state=state)


def make_operation(
    account_id: str,
    number: int,
    kind: OperationKind,
    at: datetime,
    text: str = "text",
    *,
    hold_id: str | None = None,
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
        reference=text,
        reason=text,
        at=at,
        chain_hash=bytes(range(256)),
    )
