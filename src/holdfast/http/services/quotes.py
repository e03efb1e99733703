"""Quotes of a caller's inputs."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from holdfast.http.kit.calls import Call
from holdfast.http.schemas.common import QuoteRequest, render
from holdfast.http.schemas.models import QuoteBody, estimate_body, pause_body
from holdfast.ledger.catalog.pricing import quote_input
from holdfast.ledger.catalog.seals import SealedQuote, seal_quote
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import CURRENCY, new_id
from holdfast.providers.outbound.urls import is_public_url


async def made_quote(call: Call, wanted: QuoteRequest) -> QuoteBody | Refusal:
    """Price an input. With a credential only its account may use the quote.

    Refuses: 1. ``model_not_found``; 2. ``model_not_available``; 3. ``invalid_input`` and ``quote_unavailable``.
    """
    deps = call.deps
    priced = await call.compute(
        partial(
            quote_input,
            deps.registry.catalog,
            wanted.model,
            wanted.input,
            base_url=deps.urls.base,
            is_public=is_public_url,
        )
    )
    if isinstance(priced, Refusal):
        return priced
    account_id = await call.account_of_caller()
    sealed = SealedQuote(
        quote_id=new_id("quo"),
        terms=priced.terms,
        account_id=account_id,
        brand_id=deps.settings.brand_id,
        expires_at=deps.now() + timedelta(seconds=deps.settings.quote_ttl_s),
    )
    return render(
        QuoteBody,
        priced.terms,
        sealed,
        quote_id=seal_quote(sealed, deps.settings.quote_keys[0]),
        currency=CURRENCY,
        estimate=estimate_body(priced.terms),
        paused=pause_body(deps.operating.overrides, priced.terms.model, priced.terms.provider),
    )
