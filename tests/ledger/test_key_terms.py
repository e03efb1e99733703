"""What a key may give another: never more than it has, in any of its terms, and of its limit never more in sum."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.ledger.api_keys import ALL_SCOPES, INCLUDED, SCOPES, KeyTerms, has_scope, is_model_allowed
from holdfast.ledger.credit.limits import WINDOWS, Limit, most_within, window_end, window_start
from holdfast.ledger.public_types import LimitWindow

NOON: Final = datetime(2026, 11, 25, 12, tzinfo=UTC)
IDS: Final = ("studio/a", "studio/b", "studio/deep/c", "other/a", "studio-2/a")
MODELS: Final = (*IDS, "studio/*", "studio/deep/*", "other/*")

terms = st.builds(
    KeyTerms,
    name=st.just("a key"),
    scopes=st.lists(st.sampled_from(ALL_SCOPES), unique=True, min_size=1).map(tuple),
    models=st.lists(st.sampled_from(MODELS), unique=True, max_size=3).map(tuple),
    expires_at=st.none() | st.integers(-2, 2).map(lambda days: NOON + timedelta(days=days)),
    is_paused=st.booleans(),
)


def allowed(key: KeyTerms) -> set[tuple[str, str, int]]:
    """Everything that a key may do: each scope with each model on each day."""
    return {
        (scope, model, day)
        for scope in ALL_SCOPES
        if has_scope(key.scopes, scope)
        for model in IDS
        if not key.models or is_model_allowed(key.models, model)
        for day in range(-4, 4)
        if key.expires_at is None or NOON + timedelta(days=day) < key.expires_at
    }


@settings(max_examples=400, deadline=None)
@given(own=terms, wanted=terms)
def test_what_is_not_refused_is_no_more_than_the_key_has(own: KeyTerms, wanted: KeyTerms) -> None:
    if wanted.refuse_excess(own) is None:
        assert allowed(wanted) <= allowed(own)


@settings(max_examples=100, deadline=None)
@given(own=terms)
def test_a_key_may_give_all_that_it_has(own: KeyTerms) -> None:
    assert own.refuse_excess(own) is None


def test_every_term_of_a_key_is_compared_or_gives_nothing() -> None:
    own = KeyTerms("own", SCOPES, ("studio/a",), NOON, is_paused=True, max_credits_per_task_micro=5)
    more: dict[str, Any] = {
        "scopes": (*SCOPES, "keys:write"),
        "models": (),
        "expires_at": NOON + timedelta(milliseconds=1),
        "max_credits_per_task_micro": 6,
    }
    for field, value in more.items():
        refusal = replace(own, **{field: value}).refuse_excess(own)
        assert refusal is not None
        assert refusal.param == field.removesuffix("_micro")
    assert set(KeyTerms.__struct_fields__) - more.keys() == {"name", "is_paused"}
    refusal = replace(own, max_credits_per_task_micro=None).refuse_excess(own)
    assert refusal is not None
    assert replace(own, name="x", is_paused=False).refuse_excess(own) is None


@pytest.mark.parametrize(
    ("wanted", "own", "missing"),
    [
        (("files:write",), ("tasks:write",), None),
        (("orders:read",), ("account:read",), None),
        (("tasks:write",), ("files:write",), "tasks:write"),
        (("account:read",), ("orders:read",), "account:read"),
        (("keys:read",), ("keys:write",), "keys:read"),
        (("orders:read",), ("orders:write",), "orders:read"),
        (("tasks:read",), ("tasks:write",), "tasks:read"),
    ],
)
def test_a_wider_scope_includes_a_narrower(
    wanted: tuple[str, ...], own: tuple[str, ...], missing: str | None
) -> None:
    refusal = KeyTerms("new", wanted).refuse_excess(KeyTerms("own", own))
    if missing is None:
        assert refusal is None
        return
    assert refusal is not None
    assert refusal.code == "insufficient_scope"
    assert refusal.message == f"The API key does not have the scope {missing}, so it cannot give it."


def test_scopes_are_named_once_and_the_usual_ones_are_what_they_were() -> None:
    assert len(set(ALL_SCOPES)) == len(ALL_SCOPES) == 11
    assert SCOPES == ("tasks:read", "tasks:write")
    assert INCLUDED == {"files:write": "tasks:write", "orders:read": "account:read"}


@pytest.mark.parametrize("of", WINDOWS)
@pytest.mark.parametrize("within", WINDOWS)
def test_a_limit_counts_in_another_window_as_often_as_it_recurs(of: LimitWindow, within: LimitWindow) -> None:
    """Over all days of thirty years: a month may have days of six weeks, a week those of two months."""
    days = [datetime(2010, 1, 1, tzinfo=UTC) + timedelta(days=number) for number in range(30 * 365)]
    starts: dict[datetime, set[datetime]] = {}
    for day in days:
        starts.setdefault(window_start(within, day), set()).add(window_start(of, day))
    most = max(map(len, starts.values()))
    expected = None if window_end(within, days[0]) is None and of != "total" else 7 * most
    assert most_within(Limit(7, of), within) == expected
