"""What agents are shown: models with their prices, tasks, files and the account, each in few words."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from typing import Final, Literal

import msgspec

from holdfast.http.schemas.common import render
from holdfast.http.schemas.models import Pause, pause_body
from holdfast.ledger.api_keys import KeyTerms, is_model_allowed
from holdfast.ledger.catalog.models import Catalog, Modality, Model
from holdfast.ledger.credit.account import AccountTotals
from holdfast.ledger.credit.limits import WHOLE_ACCOUNT, Spending
from holdfast.ledger.links import PublicUrls
from holdfast.ledger.public_types import Amount, LimitWindow, TaskId, Time
from holdfast.ledger.tasks.public import public_output
from holdfast.ledger.tasks.task import Task, TaskStatus
from holdfast.ledger.values import format_amount, format_price, format_time, time_or_none
from holdfast.persistence.operators.overrides import Overrides
from holdfast.persistence.records.key_rows import ApiKeyRecord
from holdfast.persistence.records.rows import FileRow

WAIT_AGAIN: Final = "It has not ended: call wait_for_task again."


class ShownModel(msgspec.Struct, frozen=True):
    """A model, without its schema."""

    model: str
    modality: Modality
    price: str
    example_costs: Amount | None
    description: str | None
    paused: Pause | None


class ShownModels(msgspec.Struct, frozen=True):
    """The models that the key may use."""

    models: list[ShownModel]


class ShownOutput(msgspec.Struct, frozen=True):
    """One result."""

    url: str | None
    content_type: str | None
    bytes: int | None
    width: int | None
    height: int | None
    duration_s: float | None
    expires_at: Time | None


class ShownTask(msgspec.Struct, frozen=True):
    """A task."""

    request_id: TaskId
    model: str
    status: TaskStatus
    ended: bool
    percent: int | None
    held_credits: Amount
    cost_credits: Amount
    created_at: Time
    deadline_at: Time | None
    error: str | None
    output: list[ShownOutput]
    next_step: str | None = None


class ShownTasks(msgspec.Struct, frozen=True):
    """The account's newest tasks."""

    tasks: list[ShownTask]


class ShownFile(msgspec.Struct, frozen=True):
    """A file."""

    file_id: str
    filename: str
    content_type: str
    bytes: int
    url: str
    created_at: Time
    expires_at: Time


class ShownFiles(msgspec.Struct, frozen=True):
    """The account's newest files."""

    files: list[ShownFile]


class ShownLimit(msgspec.Struct, frozen=True):
    """A limit that counts for the key, and what is left of it."""

    of: Literal["api_key", "key_group", "account"]
    window: LimitWindow
    credits: Amount
    spent: Amount
    left: Amount
    resets_at: Time | None


class ShownAccount(msgspec.Struct, frozen=True):
    """The account's credit, and what the key may do with it."""

    account_id: str
    available_balance: Amount
    held_total: Amount
    balance: Amount
    limits: list[ShownLimit]
    max_credits_per_task: Amount | None
    models: list[str] | None


def usable_models(catalog: Catalog, terms: KeyTerms) -> list[Model]:
    """Return the models that run and that a key may use."""
    return [
        each
        for each in catalog.models.values()
        if not each.priced_only
        and each.status != "disabled"
        and (not terms.models or is_model_allowed(terms.models, each.id))
    ]


def price_of(model: Model) -> str:
    """Return what a model costs, as the customer pays it: "0.012 credits per image", or the range of its tiers."""
    rates = [each.rate for each in (model.base, *model.tiers)]
    unit, words = rates[0].unit, []
    for name, kind in (("unit_price", ""), ("input_price", "input, "), ("output_price", "output, ")):
        prices = sorted({Decimal(price) for each in rates if (price := getattr(each, name)) is not None})
        if prices:
            ends = dict.fromkeys(format_price(f"{each:f}") for each in (prices[0], prices[-1]))
            words.append(f"{kind}{' to '.join(ends)} credits per {unit}")
    least = "" if model.pricing.minimum is None else ", with a minimum for each task"
    return f"{'; '.join(words) or 'free'}{least}"


def shown_model(catalog: Catalog, overrides: Overrides, model: Model) -> ShownModel:
    """Render a model."""
    example = catalog.examples.get(model.id)
    return ShownModel(
        model=model.id,
        modality=model.modality,
        price=price_of(model),
        example_costs=None if example is None else format_amount(example.estimate_micro),
        description=model.description,
        paused=pause_body(overrides, model.id, model.upstream.provider),
    )


def shown_task(urls: PublicUrls, task: Task, now: datetime) -> ShownTask:
    """Render a task, its links signed as of ``now``."""
    output = public_output(urls, task, now=now)
    return ShownTask(
        request_id=task.request_id,
        model=task.model,
        status=task.status,
        ended=task.is_terminal,
        percent=task.state.percent,
        held_credits=format_amount(0 if task.is_terminal else task.request.hold_micro),
        cost_credits=format_amount(task.state.cost_micro),
        created_at=format_time(task.created_at),
        deadline_at=time_or_none(task.deadline_at),
        error=task.state.error,
        output=[render(ShownOutput, each) for each in output],
        next_step=None if task.is_terminal else WAIT_AGAIN,
    )


def shown_file(urls: PublicUrls, file: FileRow, now: datetime) -> ShownFile:
    """Render a file, its link signed as of ``now``."""
    return render(ShownFile, file, url=urls.file_url(file.file_id, urls.link_expiry(now, file.expires_at)))


def shown_account(totals: AccountTotals, key: ApiKeyRecord, limits: Iterable[Spending]) -> ShownAccount:
    """Render an account and its key."""
    terms = key.terms
    most_micro = terms.max_credits_per_task_micro
    return ShownAccount(
        account_id=totals.account_id,
        available_balance=format_amount(totals.balance_micro - totals.held_micro),
        held_total=format_amount(totals.held_micro),
        balance=format_amount(totals.balance_micro),
        limits=[_shown_limit(each) for each in limits],
        max_credits_per_task=None if most_micro is None else format_amount(most_micro),
        models=list(terms.models) or None,
    )


def _shown_limit(spending: Spending) -> ShownLimit:
    most_micro, spent_micro = spending.most_micro, spending.spent_micro
    whose: Literal["api_key", "key_group", "account"] = "key_group"
    if spending.group_name is None:
        whose = "account" if spending.limited_id == WHOLE_ACCOUNT else "api_key"
    return ShownLimit(
        of=whose,
        window=spending.window,
        credits=format_amount(most_micro),
        spent=format_amount(spent_micro),
        left=format_amount(max(0, most_micro - spent_micro)),
        resets_at=time_or_none(spending.resets_at),
    )
