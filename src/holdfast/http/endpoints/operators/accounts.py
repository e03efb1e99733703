"""Accounts as operators see and change them, but for their credit."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Final, TypeVar, get_args

import msgspec
from sqlalchemy import Connection

from holdfast.actors.account.messages import AllowMail, SetAccess, SetCeiling, SwitchOffTopUp
from holdfast.actors.runtime.messages import Command
from holdfast.http.endpoints.api_keys import ApiKeyBody, shown_api_keys
from holdfast.http.endpoints.key_groups import KeyGroupBody, shown_key_groups
from holdfast.http.endpoints.limits import AccountLimit, AccountLimitList, Window, read_limit_window, shown_limits
from holdfast.http.endpoints.sign_in import read_email
from holdfast.http.endpoints.tasks.usage_totals import (
    FILTERS,
    GROUP_BY,
    PERIOD,
    TIME_ZONE,
    UsageTotals,
    answer,
    read_question,
)
from holdfast.http.kit.actions import ActionRun, OperatorRoutes
from holdfast.http.kit.calls import Call
from holdfast.http.kit.credentials import API_KEY_START, KEY_PREFIX_CHARS
from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.kit.listing import (
    FORMAT,
    LIMIT,
    PAGE,
    CsvFile,
    Position,
    StoredListBody,
    TotalledListBody,
    columns_of,
    csv_media,
    filter_by,
    list_for_operators,
    read_window,
)
from holdfast.http.kit.routes import Outcome, Parameter
from holdfast.http.kit.values import missing_parameter, read_amount, shown
from holdfast.http.schemas.cards import AutoTopUpBody, auto_top_up_body
from holdfast.http.schemas.common import AmountGiven, render
from holdfast.http.schemas.events import AlertsBody, WebhookBody, alerts_body, webhook_body
from holdfast.http.schemas.operators import ActionWithReason, Reason
from holdfast.ledger.public_types import AccountId, Amount, Role, Time
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import format_amount
from holdfast.persistence.claims.files import files_total
from holdfast.persistence.queries.accounts import account_of_email, account_overview, email_of_account
from holdfast.persistence.queries.finding import (
    Found,
    accounts_of_address,
    accounts_of_key,
    made_by_request,
    newest_with,
    subject_of,
)
from holdfast.persistence.queries.newest import AccountOrder, AccountState, list_accounts
from holdfast.persistence.queries.orders import SwitchedOffTopUp, switched_off_top_ups, top_up_of_account
from holdfast.persistence.queries.webhooks import mail_recipient, webhooks_of_account

T = TypeVar("T")

route = OperatorRoutes("Accounts")

_EMAIL: Final = Parameter(
    "email",
    "query",
    "The account's e-mail address.",
    schema={"type": "string", "minLength": 1, "examples": ["ada@example.com"]},
    required=True,
)


class AccountDetails(msgspec.Struct, frozen=True):
    """An account as operators see it."""

    account_id: AccountId
    email: str
    """The e-mail address that signs in."""
    role: Role
    """The role given at the last sign-in."""
    brand_id: str
    """The brand the account belongs to."""
    created_at: Time
    """When the account was created."""
    disabled_at: Time | None
    """Since when the account is disabled; null if it is not."""
    closes_at: Time | None
    """When the account is closed, as its owner wants; null if it is not to be."""
    closed_at: Time | None
    """When the account was closed; its address is no address any more."""
    erased_at: Time | None
    """When everything was deleted that is not kept of a closed account."""
    balance: Amount
    """Credit bought less credit charged or reversed; held credit is part of it."""
    held_total: Amount
    """Credit held for tasks that have not ended."""
    available_balance: Amount
    """The balance less the held total."""
    operation_count: int
    """How many ledger operations the account has."""
    tasks_in_flight: int
    """How many of its tasks have not ended."""
    file_count: int
    """How many files it has stored, those that are yet to be deleted too."""
    file_bytes: int
    """The bytes of these files."""
    sessions_live: int
    """How many of its sessions are valid."""
    api_keys: list[ApiKeyBody]
    """Its API keys, newest first, revoked ones too."""
    key_groups: list[KeyGroupBody]
    """Its key groups, newest first."""
    limits: list[AccountLimit]
    """The limits of the whole account, the shortest window first."""
    auto_top_up: AutoTopUpBody | None
    """Its automatic top-up; null if it has never saved a card or set one."""


class AccessBody(msgspec.Struct, frozen=True):
    """Whether the account is disabled."""

    account_id: AccountId
    disabled_at: Time | None
    """Since when it is disabled; null if it is not."""


@route.read(
    "/ops/api/accounts",
    "Find an account by its e-mail address",
    AccountDetails,
    parameters=(_EMAIL,),
    errors=("missing_parameter", "invalid_email", "account_not_found"),
)
async def find_account(call: Call) -> Outcome:
    """The address is compared in the form in which sign-in stores it."""
    sent = call.query().get("email")
    if not sent:
        return missing_parameter("email")
    email = read_email(sent[0])
    if isinstance(email, Refusal):
        return email

    def read(rows: Connection) -> AccountDetails | None:
        account_id = account_of_email(rows, email)
        return None if account_id is None else _read_account(rows, account_id, now=call.deps.now())

    return await call.deps.database.read(read) or account_not_found(email)


class AccountEntry(msgspec.Struct, frozen=True):
    """An account in the list of all."""

    account_id: AccountId
    email: str
    """The e-mail address that signs in."""
    created_at: Time
    """When the account was created."""
    state: AccountState
    """`open`, `disabled` by an operator, or `closed` by its owner."""
    balance: Amount
    """Credit bought less credit charged or reversed; held credit is part of it."""
    held: Amount
    """Credit held for tasks that have not ended."""
    operation_count: int
    """How many ledger operations the account has."""
    spent: Amount | None
    """What was charged in the last `days`; null but in the order by it."""


class AllAccounts(TotalledListBody[AccountEntry], frozen=True):
    """A page of all accounts, with how many there are by state, and the sums of their balances."""


_COLUMNS: Final = columns_of(
    "account_id", "email", "created_at", "state", "balance_micro", "held_micro", "operation_count", "spent_micro"
)
_LIST_FILTERS: Final = (
    filter_by("email", "Only accounts whose e-mail address has this part."),
    filter_by("state", "Only accounts in this state.", get_args(AccountState)),
    filter_by(
        "order",
        "By `newest`, if not given; or those with the largest `balance`, or that have `spent` most, first: a "
        "single page, without a cursor.",
        get_args(AccountOrder),
    ),
    filter_by("days", "How many days count as spent; one, if not given.", ("1", "7", "30")),
)


@route.read(
    "/ops/api/all-accounts",
    "List all accounts with their totals: by newest, largest balance or most spent, or as a CSV file",
    AllAccounts,
    parameters=(*_LIST_FILTERS, *PAGE, FORMAT),
    media=(csv_media(_COLUMNS),),
)
async def list_all_accounts(call: Call) -> Outcome:
    """No index has balances, what was spent, and parts of addresses: one such request at a time reads all accounts,
    or the charges of the days.
    """
    query = call.query()
    return await list_for_operators(
        call,
        partial(list_accounts, now=call.deps.now()),
        partial(render, AccountEntry),
        lambda found: Position(found.created_at, found.account_id),
        file=CsvFile("accounts.csv", _COLUMNS),
        totals="accounts",
        is_slow=any(query.get(each.name) for each in _LIST_FILTERS),
    )


_on_account: Final = route.below("/ops/api/accounts/{account_id}", errors=("account_not_found",))


@_on_account.read(
    "", "Retrieve an account: its totals, its state and its keys", AccountDetails, errors=("record_unreadable",)
)
async def read_account_details(call: Call) -> Outcome:
    """A disabled account is shown too."""
    account_id = call.path["account_id"]
    found = await call.deps.find_by_id(partial(_read_account, now=call.deps.now()), account_id)
    return found or account_not_found(account_id)


class CeilingRequest(msgspec.Struct, frozen=True):
    """The ceiling of an account's limit in a kind of window."""

    window: Window
    """The window: a day, a week from Monday, or a month, in UTC; or `total`, which has no end."""
    reason: Reason
    credits: AmountGiven | None = None
    """The most that may be spent in each window; null or omitted: the ceiling is removed."""


@_on_account.action(
    "/ceilings", "Set or remove the ceiling of what an account may spend in a window", errors=("invalid_amount",)
)
async def set_ceiling(run: ActionRun, given: CeilingRequest, account_id: str) -> AccountLimitList | Refusal:
    """It counts whatever limit the owner has set, who cannot set a higher one."""
    window = read_limit_window(given.window, "window")
    ceiling_micro = None if given.credits is None else read_amount(given.credits, param="credits")
    if isinstance(window, Refusal):
        return window
    if isinstance(ceiling_micro, Refusal):
        return ceiling_micro
    done = await ask_account(run, account_id, SetCeiling(window, ceiling_micro))
    if isinstance(done, Refusal):
        return done
    run.note(**{f"ceiling_{window}": "none" if ceiling_micro is None else format_amount(ceiling_micro)})
    return await run.deps.database.read(partial(shown_limits, account_id=account_id, now=run.deps.now()))


@_on_account.action(
    "/disable", "Disable an account: its sessions, keys and new work are refused; what runs is finished"
)
async def disable_account(run: ActionRun, _: ActionWithReason, account_id: str) -> AccessBody | Refusal:
    """The account's next request sees the change."""
    return await _set_access(run, account_id, is_disabled=True)


@_on_account.action("/enable", "Enable an account again; its keys are valid as before")
async def enable_account(run: ActionRun, _: ActionWithReason, account_id: str) -> AccessBody | Refusal:
    """The account's next request sees the change."""
    return await _set_access(run, account_id, is_disabled=False)


@_on_account.action(
    "/auto-top-up/disable",
    "Switch an account's automatic top-up off; a charge whose outcome is not known is finished",
)
async def disable_auto_top_up(run: ActionRun, _: ActionWithReason, account_id: str) -> AutoTopUpBody | Refusal:
    """The account's owner sees that an operator has switched it off, and may switch it on again."""
    top_up = await ask_account(run, account_id, SwitchOffTopUp())
    return top_up if isinstance(top_up, Refusal) else auto_top_up_body(top_up, run.deps.now())


class WebhooksAndAlerts(msgspec.Struct, frozen=True):
    """What is announced to an account's owner, and where."""

    webhooks: list[WebhookBody]
    """The webhooks, newest first."""
    alerts: AlertsBody
    """What is announced, and whether by mail too."""


@_on_account.read("/webhooks", "Retrieve an account's webhooks and alerts", WebhooksAndAlerts)
async def read_webhooks_and_alerts(call: Call) -> Outcome:
    """Events that are not delivered are in the list of failed events."""

    def read(rows: Connection, account_id: str) -> WebhooksAndAlerts | None:
        recipient = mail_recipient(rows, account_id)
        if recipient is None:
            return None
        webhooks = [webhook_body(each) for each in webhooks_of_account(rows, account_id)]
        return WebhooksAndAlerts(webhooks, alerts_body(recipient.alerts))

    account_id = call.path["account_id"]
    return await call.deps.find_by_id(read, account_id) or account_not_found(account_id)


@_on_account.action(
    "/allow-mail", "Send an account mail again, although it unsubscribed or its address was refused"
)
async def allow_mail(run: ActionRun, _: ActionWithReason, account_id: str) -> AlertsBody | Refusal:
    """For an address that works again. Mail that was given up meanwhile is not sent."""
    reply = await ask_account(run, account_id, AllowMail())
    return reply if isinstance(reply, Refusal) else alerts_body(reply)


@_on_account.read(
    "/usage/totals",
    "Sum an account's usage: by day, model, API key, status or end user, or by two of them",
    UsageTotals,
    parameters=(GROUP_BY, *FILTERS, TIME_ZONE, *PERIOD),
)
async def sum_usage_of_account(call: Call) -> Outcome:
    """What the account's owner reads."""
    asked = read_question(call)
    if isinstance(asked, Refusal):
        return asked
    account_id = call.path["account_id"]
    refusal = await refuse_unknown_account(call.deps, account_id)
    return refusal or await answer(asked, account_id, call.deps.database.read)


class SwitchedOffTopUpBody(msgspec.Struct, frozen=True):
    """An account whose automatic top-up was switched off."""

    account_id: AccountId
    email: str
    """The e-mail address that signs in."""
    auto_top_up: AutoTopUpBody
    """The automatic top-up, with why and when it was switched off."""


class SwitchedOffTopUpList(StoredListBody[SwitchedOffTopUpBody], frozen=True):
    """A page of automatic top-ups that were switched off; the latest first."""


@route.read(
    "/ops/api/switched-off-top-ups",
    "List the accounts whose automatic top-up was switched off; the latest first",
    SwitchedOffTopUpList,
    parameters=PAGE,
)
async def list_switched_off_top_ups(call: Call) -> Outcome:
    """Those that their owners have switched off, or on again, are not listed."""
    return await list_for_operators(call, switched_off_top_ups, partial(_top_up_body, call), _position_of_top_up)


def _top_up_body(call: Call, found: SwitchedOffTopUp) -> SwitchedOffTopUpBody:
    top_up = found.top_up
    return SwitchedOffTopUpBody(top_up.account_id, found.email, auto_top_up_body(top_up, call.deps.now()))


def _position_of_top_up(found: SwitchedOffTopUp) -> Position:
    assert found.top_up.off_at is not None
    return Position(found.top_up.off_at, found.top_up.account_id)


async def refuse_unknown_account(deps: Dependencies, account_id: str) -> Refusal | None:
    """Refuse an account that does not exist with ``account_not_found``."""
    email = await deps.find_by_id(email_of_account, account_id)
    return account_not_found(account_id) if email is None else None


async def ask_account(run: ActionRun, account_id: str, command: Command[T]) -> T | Refusal:
    """Ask an account. Refuses with ``account_not_found``; an actor could not start without rows."""
    refusal = await refuse_unknown_account(run.deps, account_id)
    return await run.ask(run.deps.accounts.ref(account_id), command) if refusal is None else refusal


def account_not_found(name: str) -> Refusal:
    """Return the refusal for an account that does not exist."""
    return Refusal(code="account_not_found", message=f"The account {shown(name)} does not exist.")


async def _set_access(run: ActionRun, account_id: str, *, is_disabled: bool) -> AccessBody | Refusal:
    done = await ask_account(run, account_id, SetAccess(is_disabled=is_disabled))
    return done if isinstance(done, Refusal) else render(AccessBody, done, account_id=done.id)


def _read_account(rows: Connection, account_id: str, *, now: datetime) -> AccountDetails | None:
    found = account_overview(rows, account_id, now=now)
    if found is None:
        return None
    stored = files_total(rows, account_id)
    top_up = top_up_of_account(rows, account_id)
    return render(
        AccountDetails,
        found,
        file_count=stored.files,
        file_bytes=stored.bytes,
        auto_top_up=None if top_up is None else auto_top_up_body(top_up, now),
        held_total=format_amount(found.held_micro),
        available_balance=format_amount(found.balance_micro - found.held_micro),
        api_keys=shown_api_keys(rows, account_id, now=now),
        key_groups=shown_key_groups(rows, account_id, now=now),
        limits=shown_limits(rows, account_id, now=now).limits,
    )


_SOUGHT: Final = replace(
    filter_by(
        "q",
        "The beginning of an e-mail address or of an API key; or the id of an operation, an event, a webhook, a "
        "payment or charge of the card provider, or of a request (`X-Request-Id`) or trace that created something.",
    ),
    required=True,
)

TRACE_OR_REQUEST_ID: Final = re.compile(r"(?:req_)?([0-9a-f]{32})", re.ASCII)


class FoundList(msgspec.Struct, frozen=True):
    """What was found, at most as many as asked for."""

    data: list[Found]
    """The accounts found."""


@route.read(
    "/ops/api/find",
    "Find accounts by the beginning of an e-mail address or API key; or what an id is about",
    FoundList,
    parameters=(_SOUGHT, LIMIT),
    errors=("missing_parameter",),
)
async def find(call: Call) -> Outcome:
    """An address is compared in lower case, as it is stored, and a key by its prefix."""
    window = read_window(call)
    if isinstance(window, Refusal):
        return window
    sought = window.filters["q"].strip()

    def read(rows: Connection) -> list[Found]:
        if trace := TRACE_OR_REQUEST_ID.fullmatch(sought):
            return made_by_request(rows, trace[1], window.limit)
        if sought.startswith(API_KEY_START):
            return accounts_of_key(rows, sought[:KEY_PREFIX_CHARS], window.limit)
        if "@" not in sought and (subject := subject_of(rows, sought)) is not None:
            return [subject]
        by_address = accounts_of_address(rows, sought.lower(), window.limit)
        return by_address or ([] if "@" in sought else newest_with(rows, sought, window.limit))

    return FoundList(await call.deps.database.read(read) if sought else [])
