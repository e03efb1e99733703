"""Places: how an account's id gives its place, and how ids carry it."""

from __future__ import annotations

import re
from collections import Counter

from holdfast.ledger.values import PLACES, new_id, new_id_of_account, place_carried_by, place_digits, place_of


def test_a_place_never_changes() -> None:
    assert [place_of(key) for key in ("acct_1", "acct_2", "email:ada@example.com")] == [584, 579, 649]


def test_places_are_spread_evenly() -> None:
    counted = Counter(place_of(f"acct_{number}") for number in range(40 * PLACES))
    assert len(counted) == PLACES
    assert max(counted.values()) < 80


def test_an_id_of_an_account_carries_its_place_and_stays_a_sortable_uuid() -> None:
    ids = [new_id_of_account("task", "acct_1") for _ in range(5000)]
    assert all(re.fullmatch(r"task_[0-9a-f]{12}7[0-9a-f]{3}[89ab][0-9a-f]{15}", each) for each in ids)
    assert {place_carried_by(each) for each in ids} == {place_of("acct_1")}
    assert len(set(ids)) == len(ids)
    assert ids == sorted(ids)


def test_every_key_has_one_place() -> None:
    assert [place_carried_by(f"task_{place_digits(place)}") for place in range(PLACES)] == list(range(PLACES))
    older = new_id("task")
    assert place_carried_by(older) == int(older[-3:], 16)
    assert place_carried_by("task_\u0664\u0664\u0664") == place_of("task_\u0664\u0664\u0664")
    assert 0 <= place_carried_by("") < PLACES
