"""Builders of tasks and news for the tests of the ledger's rules."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from holdfast.ledger.news import Output, ProviderNews
from holdfast.ledger.task_steps import ProviderTraits, on_submitted, on_wake
from holdfast.ledger.tasks import Task, accept_task
from holdfast.ledger.terms import Deadlines, Hosting, PricingMode, Rate, Terms, Units

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
HOSTING = Hosting()
DEADLINES = Deadlines()


def build_terms(
    *,
    mode: PricingMode = "per_image",
    unit: str = "image",
    units: int = 4,
    hold_micro: int | None = None,
    hosting: Hosting = HOSTING,
    deadlines: Deadlines = DEADLINES,
) -> Terms:
    count = Units(units=units)
    amount_micro = units * 60_000
    rate = Rate(mode=mode, unit=unit, unit_price="0.06", input_price="0.001", output_price="0.002")
    return Terms(
        model="studio/image-1",
        modality="image",
        catalog_version="cat_1",
        input_hash="00",
        rate=rate,
        estimated=count,
        largest=count,
        smallest=count,
        estimate_micro=amount_micro,
        minimum_micro=amount_micro,
        maximum_micro=amount_micro,
        hold_micro=amount_micro if hold_micro is None else hold_micro,
        exact=True,
        basis=f"{mode}: {units} x 0.06",
        provider="studio",
        upstream_model="image-1",
        provider_quote_hash="11",
        hosting=hosting,
        deadlines=deadlines,
    )


@pytest.fixture
def noon() -> datetime:
    return NOON


@pytest.fixture
def traits() -> ProviderTraits:
    """A provider that can do everything."""
    return ProviderTraits(idempotent_submit=True, polls=True, cancels=True)


@pytest.fixture
def make_task() -> Callable[..., Task]:
    """Build a queued task accepted at noon; the keywords are those of its terms."""

    def make(*, webhook_url: str | None = None, **terms: Any) -> Task:
        return accept_task(
            account_id="acct_1",
            request_id="task_01",
            hold_id="hold_1",
            input=b'{"prompt":"a lighthouse","n":4,"size":1.5,"tags":["a",null,true]}',
            terms=build_terms(**terms),
            quote_id="quo_1",
            api_key_id="key_1",
            now=NOON,
            metadata=(("order", "7"),),
            webhook_url=webhook_url,
        )

    return make


@pytest.fixture
def make_acked(make_task: Callable[..., Task], traits: ProviderTraits) -> Callable[..., Task]:
    """Build a task whose first attempt the provider took a second after noon."""

    def make(**options: Any) -> Task:
        sent = on_wake(make_task(**options), NOON, traits=traits, operation_id="op_1").task
        assert sent is not None
        acked = on_submitted(sent, 1, "job-1", NOON + timedelta(seconds=1)).task
        assert acked is not None
        return acked

    return make


@pytest.fixture
def make_news() -> Callable[..., ProviderNews]:
    """Build news of the first attempt, each with an event id of its own; ``made`` is a number of outputs."""
    numbers = itertools.count(1)

    def make(status: str, *, made: int = 0, **fields: Any) -> ProviderNews:
        base: dict[str, Any] = {
            "source": "callback",
            "provider": "studio",
            "event_id": f"evt_{next(numbers)}",
            "request_id": "task_01",
            "attempt": 1,
            "status": status,
            "outputs": tuple(Output(index=n, url=f"https://studio.test/{n}.png") for n in range(made)),
        }
        news = ProviderNews(**(base | fields))
        assert msgspec.json.decode(msgspec.json.encode(news), type=ProviderNews) == news
        return news

    return make
