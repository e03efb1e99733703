"""The limits of one-time codes: guessing is bounded and a right code works, whatever other origins do."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.ledger.refusals import Refusal
from holdfast.ledger.sign_in_codes import (
    CODES_MAX,
    PROVEN_FOR,
    CodeLimits,
    CodesState,
    is_otp_id_of,
    new_otp_id,
    request_code,
    try_code,
)

LIMITS = CodeLimits(
    ttl_s=600,
    tries_max=5,
    failures_day_max=20,
    resend_s=30,
    per_hour_max=5,
    per_day_max=10,
    all_origins_hour_max=20,
    all_origins_day_max=40,
)
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
RIGHT, WRONG = "right", "wrong"


def requested(state: CodesState, origin: str, otp_id: str, at: datetime, limits: CodeLimits = LIMITS) -> CodesState:
    found = request_code(state, limits, origin=origin, otp_id=otp_id, mac=RIGHT, at=at)
    assert isinstance(found, CodesState), found
    return found


def test_the_guesses_of_any_number_of_origins_in_a_day_are_bounded() -> None:
    """Twenty tries, then one for each further code; docs/decisions.md computes with 60."""
    state, at, wrong, number = CodesState(), NOON, 0, 0
    while at < NOON + timedelta(days=1):
        for _ in range(25):
            number += 1
            code = request_code(state, LIMITS, origin=f"o{number}", otp_id=f"c{number}", mac=RIGHT, at=at)
            if isinstance(code, CodesState):
                state = code
        for code_id in [code.otp_id for code in state.codes]:
            while True:
                state, refusal = try_code(state, otp_id=code_id, mac=WRONG, at=at)
                assert refusal is not None
                if refusal.code != "invalid_otp":
                    break
                wrong += 1
        at += timedelta(minutes=15)
    assert 40 < wrong <= LIMITS.failures_day_max + LIMITS.all_origins_day_max


ORIGINS = ("home", "away", "bot1", "bot2", "bot3", "bot4", "bot5", "bot6")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["request", "request", "guess", "guess", "guess", "redeem"]),
        st.sampled_from(ORIGINS),
        st.sampled_from([0, 1, 31, 200, 900, 4000]),
    ),
    max_size=150,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_right_digits_always_work_and_counts_stay_bounded(steps: list[tuple[str, str, int]]) -> None:
    """Compare with a model of codes alone: the right digits of a live code with tries left always sign in."""
    state, at = CodesState(), NOON
    live: dict[str, tuple[str, datetime]] = {}
    spent: Counter[str] = Counter()
    guesses: list[datetime] = []
    for number, (what, origin, pause_s) in enumerate(steps):
        at += timedelta(seconds=pause_s)
        newest = next((code for code, (owner, _) in reversed(live.items()) if owner == origin), None)
        if what == "request":
            found = request_code(state, LIMITS, origin=origin, otp_id=f"c{number}", mac=RIGHT, at=at)
            if isinstance(found, Refusal):
                assert found.retry_after_s is not None
                # A request is accepted when the refusal's time has passed.
                later = at + timedelta(seconds=found.retry_after_s)
                again = request_code(state, LIMITS, origin=origin, otp_id="x", mac=RIGHT, at=later)
                assert isinstance(again, CodesState) or again.message != found.message or again != found
            else:
                state = found
                live = {code: entry for code, entry in live.items() if entry[0] != origin}
                live[f"c{number}"] = (origin, at + timedelta(seconds=600))
        elif newest is not None:
            owed = at < live[newest][1] and spent[newest] < next(
                code.tries_max for code in state.codes if code.otp_id == newest
            )
            is_proven = any(each.origin == origin for each in state.proven)
            state, refusal = try_code(state, otp_id=newest, mac=RIGHT if what == "redeem" else WRONG, at=at)
            if what == "redeem":
                assert (refusal is None) == owed
                if owed:
                    del live[newest]
            elif owed:
                spent[newest] += 1
                if not is_proven:
                    guesses.append(at)
        assert len(state.codes) <= CODES_MAX
        day = [each for each in guesses if each > at - timedelta(days=1)]
        assert len(day) <= LIMITS.failures_day_max + LIMITS.all_origins_day_max


def test_an_origin_stays_proven_for_a_month_after_its_last_code() -> None:
    state, at = requested(CodesState(), "home", "c1", NOON), NOON
    state, refusal = try_code(state, otp_id="c1", mac=RIGHT, at=at)
    assert refusal is None
    for number in range(20):
        state = requested(state, f"o{number}", f"s{number}", at + timedelta(seconds=1))
    later = at + timedelta(seconds=31)
    assert isinstance(requested(state, "home", "c2", later), CodesState)
    expired = request_code(state, LIMITS, origin="o99", otp_id="c3", mac=RIGHT, at=later)
    assert isinstance(expired, Refusal)
    forgotten = requested(state, "home", "c4", at + PROVEN_FOR)
    assert forgotten.proven == ()


def test_an_identifier_belongs_to_one_address_and_one_service() -> None:
    otp_id = new_otp_id(b"pepper", "ada@example.com")
    assert len(otp_id) == 36
    assert is_otp_id_of(b"pepper", "ada@example.com", otp_id)
    assert not is_otp_id_of(b"pepper", "eve@example.com", otp_id)
    assert not is_otp_id_of(b"other", "ada@example.com", otp_id)
    assert len({new_otp_id(b"pepper", "ada@example.com") for _ in range(1000)}) == 1000
