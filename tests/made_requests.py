"""Terms and requests of tasks and payment orders as tests need them: keywords replace what is usual."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from holdfast.ledger.catalog.terms import Rate, Terms, Units
from holdfast.ledger.orders.order import OrderRequest, Seller, identity_fx
from holdfast.ledger.tasks.task import TaskRequest

ONE = Units(units=1)

SELLER = Seller(
    brand_id="holdfast", legal_entity_id="holdfast", merchant_of_record="Holdfast", provider_account_id="holdfast"
)


def make_terms(micro: int = 1_000_000, /, *, units: Units = ONE, **fields: Any) -> Terms:
    """Terms of one picture, which costs what is held."""
    usual: dict[str, Any] = {
        "model": "studio/image-1",
        "modality": "image",
        "catalog_version": "cat_0",
        "input_hash": "0" * 64,
        "rate": Rate(mode="per_image", unit="image", unit_price="1"),
        **dict.fromkeys(("estimated", "largest", "smallest"), units),
        **dict.fromkeys(("estimate_micro", "minimum_micro", "maximum_micro", "hold_micro"), micro),
        "exact": True,
        "basis": "per_image: 1 x 1",
        "provider": "studio",
        "upstream_model": "poster",
        "provider_quote_hash": "0" * 64,
    }
    return Terms(**(usual | fields))


def make_request(terms: Terms, **fields: Any) -> TaskRequest:
    """A task of these terms."""
    usual: dict[str, Any] = {
        "input": {"prompt": "a lighthouse"},
        "terms": terms,
        "quote_id": "quo_1",
        "api_key_id": None,
        "hold_id": "hold_1",
        "hold_micro": terms.hold_micro,
    }
    return TaskRequest(**(usual | fields))


def make_order_request(order_id: str, account_id: str, at: datetime, /, **fields: Any) -> OrderRequest:
    """A card order of 10.00, for a day."""
    usual: dict[str, Any] = {
        "order_id": order_id,
        "account_id": account_id,
        "provider": "cardprovider",
        "amount_micro": 10_000_000,
        "currency": "USD",
        "operation_id": f"op_{order_id}",
        **dict.fromkeys(("brand_id", "legal_entity_id", "provider_account_id"), "holdfast"),
        "merchant_of_record": "Holdfast",
        "created_at": at,
        "expires_at": at + timedelta(hours=24),
        "fx": identity_fx("USD", at),
    }
    return OrderRequest(**(usual | fields))
