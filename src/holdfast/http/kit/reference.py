"""The two references of the API, for customers and for operators: what each begins with, and its sections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from string import Template
from typing import Final

from holdfast.http.kit.errors import ERROR_TABLE
from holdfast.http.kit.routes import HEALTH_PATHS, Route, is_for_operators


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reference:
    """One OpenAPI document.

    ``text`` is Markdown, in which ``$url`` is where its operations are. ``sections`` are the tags with what they
    are about, in the order in which they are shown; others follow. ``has_events`` says whether it describes the
    requests of this service to customers' webhooks. ``credentials`` names those that most operations need.
    """

    title: str
    text: Template
    sections: Mapping[str, str]
    has_events: bool
    credentials: Sequence[str]

    def introduction(self, url: str) -> str:
        """Return what the reference begins with: its text, and all error codes."""
        return self.text.substitute(url=url.rstrip("/")) + _CODES

    def ordered(self, routes: Sequence[Route]) -> list[Route]:
        """Return routes by section; in a section the modules with the shortest paths come first."""
        ranks = {tag: rank for rank, tag in enumerate(dict.fromkeys((*self.sections, *(r.tag for r in routes))))}
        shortest: dict[tuple[str, str], int] = {}
        for route in routes:
            module = (route.tag, route.handler.__module__)
            shortest[module] = min(route.path.count("/"), shortest.get(module, 99))
        return sorted(routes, key=lambda each: (ranks[each.tag], shortest[each.tag, each.handler.__module__]))


def _error_codes() -> str:
    """Return the codes of the error table by status and type, as Markdown that is folded up."""
    lines: dict[tuple[int, str], list[str]] = {}
    for code, row in ERROR_TABLE.items():
        lines.setdefault((row.status, row.type), []).append(f"- `{code}`: {row.when}")
    groups = [f"**{status}** `{kind}`\n\n" + "\n".join(each) for (status, kind), each in sorted(lines.items())]
    return "\n\n".join(("\n<details><summary>All codes</summary>", *groups, "</details>\n"))


_CODES: Final = _error_codes()


def _text(name: str) -> Template:
    return Template((files("holdfast.http.kit") / name).read_text(encoding="utf-8"))


CUSTOMERS: Final = Reference(
    title="Holdfast API",
    text=_text("customers.md"),
    sections={
        "Sign-in": (
            "A one-time code that is sent by e-mail is exchanged for a session token, `hst_…`, which is valid for "
            "24 hours. It manages the account; tasks are created with an API key."
        ),
        "Account": "The e-mail address that signs in, the account's history, and its end.",
        "API keys": (
            "A key, `hk_…`, creates and reads tasks, and does what else its scopes say: each operation names the "
            "one that it needs. It may be bound to models, have an end and a limit of what it spends; the whole "
            "account may have limits, too. A key that makes keys gives none more than it has."
        ),
        "Credit": (
            "The account's totals, and every operation that changed them. What is `held` belongs to unfinished "
            "tasks; what is `available` can be spent."
        ),
        "Models": (
            "What can be made, with which input, and what it costs. A quote prices an input before it is run."
        ),
        "Tasks": (
            "A task runs a model on an input. Its credit is held until it ends: then its charge is captured, or "
            "the whole hold is released."
        ),
        "Files": "Files to be used as input, and the results of tasks.",
        "Webhooks": "Addresses of yours that get events, and the secret that signs these.",
        "Alerts": "What is announced about credit, by events and by mail.",
        "Usage": "What was used and charged, entry by entry and in sums.",
        "Payments": (
            "Orders to buy credit. They have five statuses that change independently; `state_history` lists each "
            "change and its cause. Credit given is `amount_breakdown.gross`; what is refunded or disputed later "
            "is reversed in the ledger, below zero if necessary. A sandbox order pays itself by its callback, "
            "whose signature comes with the order and is sent back unchanged: it covers the values of the body, "
            "not its bytes, and is valid until the order expires."
        ),
        "Cards": "Saved cards, and the automatic top-up that charges them.",
        "OpenAI": "For OpenAI's clients, with `/v1` as their base URL.",
        "Replicate": "For Replicate's clients, with `/replicate` as their base URL.",
        "Agents": "For agents: the Model Context Protocol.",
        "Events": "Requests of this service to yours, signed as Standard Webhooks says.",
        "Callbacks": (
            "For providers. Signatures are `t=<unix>,v1=<hex>`, the HMAC-SHA256 of `<t>.<raw body>`; 300 seconds "
            "of clock skew are allowed."
        ),
        "Reference": "This document.",
    },
    has_events=True,
    credentials=("api_key", "session_token"),
)
OPERATORS: Final = Reference(
    title="Holdfast operators' API",
    text=_text("operators.md"),
    sections={
        "Session": "An operator's session in a browser.",
        "Reports": "What an operator should know of.",
        "Processes": "Each process with its supervisors, samples of what it does, and requests that it refused.",
        "Cells": "Each database that serves the same address, and what it says of itself.",
        "Database": "The database server: its connections, locks, statements, tables and standbys.",
        "Actors": "The actors of accounts, tasks and sign-ins, and messages that none of them handled.",
        "Bulk actions": "Actions on all entries of a list that match a filter.",
        "Poison messages": "Messages whose handling crashed their actor.",
        "Accounts": "Any account: its state, its keys, its limits, its usage.",
        "Credit": "Adjustments, promotional credit, and the codes that owners redeem for it.",
        "Payments": "Payment orders that wait for a decision, and refunds.",
        "Reviews": "Tasks whose charge waits for a decision.",
        "Tasks": "The tasks of all accounts.",
        "Webhooks": "Events whose delivery fails.",
        "Overrides": "Slots, pauses and limits of creates, for a time in place of catalog and settings.",
        "Costs": "Who and what costs most: requests, refusals, CPU and credit.",
        "Providers": "The media providers: their state, and a check by a real job.",
        "Books": "Sums of the ledger, and how far it is verified.",
        "Time lines": "All that happened to an account or a task.",
        "Actions": "What operators did.",
        "Service": "For load balancers and Prometheus.",
        "Reference": "This document.",
    },
    has_events=False,
    credentials=("operator_token", "session_token"),
)


def reference_of(route: Route) -> Reference:
    """Return the reference that describes a route."""
    return OPERATORS if is_for_operators(route.path) or route.path in HEALTH_PATHS else CUSTOMERS
