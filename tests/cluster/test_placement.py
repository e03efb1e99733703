"""Placement: even, the same everywhere, and with the fewest moves."""

from __future__ import annotations

from collections import Counter

import pytest

from holdfast.cluster.placement import owner_of_name, owners_of_places
from holdfast.ledger.values import PLACES

MEMBERS = [f"proc_{number}" for number in range(16)]


@pytest.mark.parametrize("count", [2, 3, 16])
def test_places_are_spread_evenly_over_the_members(count: int) -> None:
    counted = Counter(owners_of_places(MEMBERS[:count]))
    fair = PLACES / count
    assert len(counted) == count
    assert all(0.8 * fair < owned < 1.2 * fair for owned in counted.values())


def test_the_order_of_the_members_does_not_matter() -> None:
    assert owners_of_places(MEMBERS) == owners_of_places(reversed(MEMBERS))


def test_a_single_member_owns_everything() -> None:
    assert set(owners_of_places(["proc_1"])) == {"proc_1"}


def test_only_the_places_of_a_member_that_leaves_are_moved() -> None:
    before, after = owners_of_places(MEMBERS), owners_of_places(MEMBERS[:-1])
    moved = [place for place in range(PLACES) if before[place] != after[place]]
    assert {before[place] for place in moved} == {MEMBERS[-1]}
    assert len(moved) == before.count(MEMBERS[-1])
    assert max(Counter(after[place] for place in moved).values()) < len(moved) / 5


def test_names_have_owners_too_and_only_those_of_a_leaver_move() -> None:
    names = [f"work-{number}" for number in range(300)]
    before = {name: owner_of_name(name, MEMBERS) for name in names}
    after = {name: owner_of_name(name, MEMBERS[1:]) for name in names}
    assert {before[name] for name in names if before[name] != after[name]} == {MEMBERS[0]}
    assert len(set(before.values())) == len(MEMBERS)
