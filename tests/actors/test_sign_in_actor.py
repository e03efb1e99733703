"""Signing in by e-mailed codes: every limit by the test's own clock, on real rows, in one process and in two."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
import trio
from sqlalchemy import Connection, TextClause, text
from tests.sweepers import sweeper_of

from holdfast.actors.runtime.faults import AccountAway
from holdfast.actors.runtime.mailbox import Mailbox
from holdfast.actors.sign_in.actor import SignInActor, SignInRules
from holdfast.actors.sign_in.messages import (
    AdmitOrigin,
    CodeIssued,
    CountWrongToken,
    OriginAdmitted,
    RequestCode,
    SignedIn,
    VerifyCode,
)
from holdfast.ledger.refusals import ACCOUNT_DISABLED, Refusal
from holdfast.ledger.sign_in_codes import WRONG_TOKENS_MAX, WRONG_TOKENS_WINDOW, CodeLimits
from holdfast.ledger.values import place_digits, place_of, utc_now
from holdfast.persistence.journal.journal import Journal
from holdfast.persistence.journal.writer import BatchWriter
from holdfast.persistence.queries.loading import load_sign_in
from holdfast.persistence.server.database import Database
from holdfast.supervision.dead_letters import DeadLetters
from holdfast.supervision.directory import KeyedDirectory
from holdfast.telemetry.reports.conditions import Conditions
from holdfast.telemetry.reports.reporter import Reporter

ADA = "email:ada@example.com"
HOME, AWAY = "192.0.2.7", "198.51.100.9"
RULES = SignInRules(
    pepper=b"pepper",
    codes=CodeLimits(
        ttl_s=600,
        tries_max=5,
        failures_day_max=20,
        resend_s=30,
        per_hour_max=5,
        per_day_max=10,
        all_origins_hour_max=20,
        all_origins_day_max=40,
    ),
    otp_per_origin_hour=30,
    session_ttl_s=86_400,
    brand_id="holdfast",
    operators=frozenset({"boss@example.com"}),
)


@dataclass
class Clock:
    at: datetime = datetime(2026, 11, 20, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.at

    def forward(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)


@dataclass
class Harness:
    """One process's sign-in harness."""

    directory: KeyedDirectory
    reporter: Reporter
    clock: Clock
    database: Database
    codes: list[CodeIssued] = field(default_factory=list)

    async def request(self, key: str = ADA, origin: str = HOME) -> CodeIssued:
        issued = await self.directory.ref(key).ask(RequestCode(origin))
        assert isinstance(issued, CodeIssued)
        self.codes.append(issued)
        return issued

    async def refused(self, command: Any, key: str = ADA) -> Refusal:
        reply = await self.directory.ref(key).ask(command)
        assert isinstance(reply, Refusal)
        return reply

    async def verify(self, otp_id: str, code: str, key: str = ADA) -> SignedIn | Refusal:
        return await self.directory.ref(key).ask(VerifyCode(otp_id, code))


OpenHarness = Callable[[], Awaitable[Harness]]


@pytest.fixture
def open_harness(database: Database, nursery: trio.Nursery) -> OpenHarness:
    clock = Clock()

    async def load(key: str) -> Any:
        return await database.read(lambda connection: load_sign_in(connection, key))

    async def probe() -> bool:
        return True

    async def open_one() -> Harness:
        journal = Journal(BatchWriter(database.keep_writer(), now=utc_now), database.gate)
        reporter = Reporter()
        conditions = Conditions(reporter)

        def factory(key: str, mailbox: Mailbox) -> SignInActor:
            return SignInActor(key, mailbox, journal, load=load, now=clock, rules=RULES, conditions=conditions)

        directory = KeyedDirectory(
            "sign-in",
            factory,
            gate=database.gate,
            probe=probe,
            reporter=reporter,
            dead_letters=DeadLetters(),
            rng=random.Random(1),
        )
        await nursery.start(lambda *, task_status: journal.run(task_status=task_status))
        await nursery.start(directory.run)
        return Harness(directory, reporter, clock, database)

    return open_one


@pytest.fixture
async def harness(open_harness: OpenHarness) -> Harness:
    return await open_harness()


async def change(database: Database, statement: TextClause, **parameters: object) -> None:
    """Change rows from outside the service."""

    def run(connection: Connection) -> None:
        connection.execute(statement, parameters)

    await database.work(run)


def wrong(issued: CodeIssued) -> str:
    return f"{(int(issued.code) + 1) % 1_000_000:06d}"


async def test_a_right_code_creates_an_account_once_and_a_session(harness: Harness) -> None:
    sessions = []
    for _ in range(2):
        issued = await harness.request()
        assert issued.expires_in_s == 600
        signed_in = await harness.verify(issued.otp_id, issued.code)
        assert isinstance(signed_in, SignedIn)
        sessions.append(signed_in)
        harness.clock.forward(60)
    first, second = sessions
    assert first.account_id == second.account_id
    assert (first.email, first.role) == ("ada@example.com", "User")
    assert first.session_id != second.session_id
    assert first.session_expires_at - datetime(2026, 11, 20, 12, tzinfo=UTC) == timedelta(days=1)
    counted = text("select (select count(*) from accounts), (select count(*) from sessions)")
    assert await harness.database.read(lambda c: tuple(c.execute(counted).one())) == (1, 2)


async def test_a_disabled_account_gets_no_session(harness: Harness) -> None:
    first = await harness.request()
    signed_in = await harness.verify(first.otp_id, first.code)
    assert isinstance(signed_in, SignedIn)
    await change(harness.database, text("update accounts set disabled_at = now()"))
    harness.clock.forward(60)
    issued = await harness.request()
    assert await harness.verify(issued.otp_id, issued.code) == ACCOUNT_DISABLED
    assert await harness.refused(VerifyCode(issued.otp_id, issued.code)) != ACCOUNT_DISABLED
    await change(harness.database, text("update accounts set disabled_at = null"))
    harness.clock.forward(60)
    issued = await harness.request()
    again = await harness.verify(issued.otp_id, issued.code)
    assert isinstance(again, SignedIn)
    assert again.account_id == signed_in.account_id


async def test_an_account_that_comes_from_another_cell_is_signed_in_to(harness: Harness) -> None:
    issued = await harness.request()
    for away in (
        "account_moves values ('acct_1', 'mov_1', 'out', 'moved', 2, 7, now(), 0, 0, 0, 0, '', {})",
        "given_emails values ({}, 2, now())",
    ):
        added = away.format("sha256(convert_to('ada@example.com', 'UTF8'))")
        await change(harness.database, text(f"insert into {added}"))
        with pytest.raises(AccountAway):
            await harness.verify(issued.otp_id, issued.code)
        await change(harness.database, text(f"delete from {away.split()[0]}"))
    values = "'acct_1', 'ada@example.com', 'User', 'holdfast', now(), 0, 0, 0, 0, ''"
    columns = (
        "id, email, role, brand_id, created_at, version, operation_count, balance_micro, held_micro, chain_head"
    )
    await change(harness.database, text(f"insert into accounts ({columns}) values ({values})"))
    signed_in = await harness.verify(issued.otp_id, issued.code)
    assert isinstance(signed_in, SignedIn)
    assert signed_in.account_id == "acct_1"


async def test_an_operators_address_gets_the_operators_role(harness: Harness) -> None:
    issued = await harness.request("email:boss@example.com")
    signed_in = await harness.verify(issued.otp_id, issued.code, "email:boss@example.com")
    assert isinstance(signed_in, SignedIn)
    assert signed_in.role == "Operator"


async def test_neither_code_nor_token_is_stored(harness: Harness) -> None:
    issued = await harness.request()
    signed_in = await harness.verify(issued.otp_id, issued.code)
    assert isinstance(signed_in, SignedIn)
    rows = await harness.database.read(
        lambda c: (
            msgspec.json.encode([dict(row._mapping) for row in c.execute(text("select * from sign_ins"))]),
            str([tuple(row) for row in c.execute(text("select * from sessions"))]),
        )
    )
    assert f'"{issued.code}"'.encode() not in rows[0]
    assert signed_in.session_token.startswith("hst_" + place_digits(place_of(signed_in.account_id)))
    assert len(signed_in.session_token) == 47
    assert signed_in.session_token not in rows[1]
    assert signed_in.session_token not in repr(signed_in)
    assert issued.code not in repr(issued)


async def test_a_code_works_once(harness: Harness) -> None:
    issued = await harness.request()
    assert isinstance(await harness.verify(issued.otp_id, issued.code), SignedIn)
    again = await harness.refused(VerifyCode(issued.otp_id, issued.code))
    assert again.code == "invalid_otp"


async def test_a_new_code_invalidates_the_one_before(harness: Harness) -> None:
    old = await harness.request()
    harness.clock.forward(30)
    new = await harness.request()
    assert (await harness.refused(VerifyCode(old.otp_id, old.code))).code == "invalid_otp"
    assert isinstance(await harness.verify(new.otp_id, new.code), SignedIn)


@pytest.mark.parametrize(("after_s", "works"), [(599, True), (600, False)])
async def test_a_code_expires(harness: Harness, after_s: int, works: bool) -> None:
    issued = await harness.request()
    harness.clock.forward(after_s)
    reply = await harness.verify(issued.otp_id, issued.code)
    assert isinstance(reply, SignedIn) if works else isinstance(reply, Refusal) and reply.code == "otp_expired"


@pytest.mark.parametrize("otp_id", ["", "otp_unknown", "otp_\u00e9\u4f60", "\ud800", "x" * 10_000])
async def test_an_unknown_code_id_is_refused(harness: Harness, otp_id: str) -> None:
    issued = await harness.request()
    assert (await harness.refused(VerifyCode(otp_id, issued.code))).code == "invalid_otp"
    assert (await harness.refused(VerifyCode(issued.otp_id, "\u0661\u0662\ud800"))).code == "invalid_otp"
    assert isinstance(await harness.verify(issued.otp_id, issued.code), SignedIn)
    assert harness.reporter.recent() == ()


async def test_a_code_is_invalid_after_five_wrong_attempts(harness: Harness) -> None:
    issued = await harness.request()
    for _ in range(5):
        assert (await harness.refused(VerifyCode(issued.otp_id, wrong(issued)))).code == "invalid_otp"
    dead = await harness.refused(VerifyCode(issued.otp_id, issued.code))
    assert (dead.code, dead.final) == ("otp_attempts_exceeded", True)


async def test_twenty_wrong_attempts_a_day_block_their_origin_only(harness: Harness) -> None:
    begun = harness.clock.at
    for _ in range(4):
        issued = await harness.request()
        for _ in range(5):
            assert (await harness.refused(VerifyCode(issued.otp_id, wrong(issued)))).code == "invalid_otp"
        harness.clock.forward(3000)
    limited = await harness.refused(RequestCode(HOME))
    assert limited.code == "otp_attempts_exceeded"
    assert limited.retry_after_s == 86_400 - 12_000
    elsewhere = await harness.request(origin=AWAY)
    assert isinstance(await harness.verify(elsewhere.otp_id, elsewhere.code), SignedIn)
    harness.clock.at = begun + timedelta(days=1, seconds=1)
    issued = await harness.request()
    assert isinstance(await harness.verify(issued.otp_id, issued.code), SignedIn)


async def test_another_origin_cannot_invalidate_block_or_use_up_codes(harness: Harness) -> None:
    mine = await harness.request()
    for _ in range(5):
        theirs = await harness.request(origin=AWAY)
        for _ in range(5):
            await harness.refused(VerifyCode(theirs.otp_id, wrong(theirs)))
        harness.clock.forward(30)
    assert isinstance(await harness.refused(RequestCode(AWAY)), Refusal)
    assert isinstance(await harness.verify(mine.otp_id, mine.code), SignedIn)
    again = await harness.request()
    assert isinstance(await harness.verify(again.otp_id, again.code), SignedIn)


async def test_other_origins_cannot_block_an_origin_that_signed_in(harness: Harness) -> None:
    first = await harness.request()
    assert isinstance(await harness.verify(first.otp_id, first.code), SignedIn)
    for number in range(20):
        await harness.request(origin=f"203.0.113.{number}")
    limited = await harness.refused(RequestCode("203.0.113.99"))
    assert (limited.code, limited.retry_after_s) == ("otp_rate_limited", 3600)
    harness.clock.forward(30)
    again = await harness.request()
    assert isinstance(await harness.verify(again.otp_id, again.code), SignedIn)


async def test_rows_of_the_first_version_are_read(harness: Harness) -> None:
    old = {
        "requests": ["2026-11-20T11:59:00Z"],
        "failures": ["2026-11-20T11:59:30Z"],
        "code": {"otp_id": "otp_1", "mac": "00", "expires_at": "2026-11-20T12:09:00Z", "wrong_tries": 1},
    }
    write = text("insert into sign_ins (key, version, updated_at, state) values (:key, 3, now(), :state)")
    for key, state in ((ADA, old), (f"origin:{HOME}", {"requests": old["requests"]})):
        await change(harness.database, write, key=key, state=msgspec.json.encode(state).decode())
    issued = await harness.request()
    assert isinstance(await harness.verify(issued.otp_id, issued.code), SignedIn)
    for _ in range(29):
        assert await harness.directory.ref(f"origin:{HOME}").ask(AdmitOrigin()) == OriginAdmitted()
    assert (await harness.refused(AdmitOrigin(), f"origin:{HOME}")).code == "otp_rate_limited"
    assert harness.reporter.recent() == ()


async def test_counts_survive_a_restart(open_harness: OpenHarness) -> None:
    before = await open_harness()
    mine, theirs = await before.request(), await before.request(origin=AWAY)
    for _ in range(5):
        await before.refused(VerifyCode(theirs.otp_id, wrong(theirs)))
    after = await open_harness()
    assert (await after.refused(VerifyCode(theirs.otp_id, theirs.code))).code == "otp_attempts_exceeded"
    assert (await after.refused(RequestCode(AWAY))).code == "otp_rate_limited"
    assert isinstance(await after.verify(mine.otp_id, mine.code), SignedIn)


async def test_rows_without_an_account_are_swept_earlier(harness: Harness) -> None:
    count = text("select key from sign_ins order by key")
    age = text("update sign_ins set updated_at = now() - make_interval(hours => :hours)")
    sweeper = sweeper_of(harness.database)

    async def left_after(hours: int) -> list[str]:
        await change(harness.database, age, hours=hours)
        await sweeper.sweep()
        return await harness.database.read(lambda c: list(c.execute(count).scalars()))

    issued = await harness.request()
    assert isinstance(await harness.verify(issued.otp_id, issued.code), SignedIn)
    await harness.request("email:made-up@example.com")
    assert await left_after(24) == [ADA, "email:made-up@example.com"]
    assert await left_after(26) == [ADA]
    assert await left_after(24 * 31) == []


async def test_codes_are_30_seconds_apart_and_5_an_hour(harness: Harness) -> None:
    await harness.request()
    harness.clock.forward(29)
    early = await harness.refused(RequestCode(HOME))
    assert (early.code, early.retry_after_s) == ("otp_rate_limited", 1)
    harness.clock.forward(1)
    for _ in range(4):
        await harness.request()
        harness.clock.forward(30)
    limited = await harness.refused(RequestCode(HOME))
    assert (limited.code, limited.retry_after_s) == ("otp_rate_limited", 3600 - 150)
    await harness.request("email:eve@example.com")
    harness.clock.forward(3600 - 150)
    await harness.request()


async def test_an_origin_requests_30_codes_an_hour(harness: Harness) -> None:
    for _ in range(30):
        assert await harness.directory.ref("origin:10.0.0.1").ask(AdmitOrigin()) == OriginAdmitted()
        harness.clock.forward(10)
    limited = await harness.refused(AdmitOrigin(), "origin:10.0.0.1")
    assert (limited.code, limited.retry_after_s) == ("otp_rate_limited", 3600 - 300)
    assert await harness.directory.ref("origin:10.0.0.2").ask(AdmitOrigin()) == OriginAdmitted()
    harness.clock.forward(3600 - 300)
    assert await harness.directory.ref("origin:10.0.0.1").ask(AdmitOrigin()) == OriginAdmitted()


async def test_two_processes_count_together_and_know_each_others_codes(open_harness: OpenHarness) -> None:
    here, there = await open_harness(), await open_harness()
    first = await here.request()
    for harness in (there, here, there, here):
        assert (await harness.refused(VerifyCode(first.otp_id, wrong(first)))).code == "invalid_otp"
    here.clock.forward(30)
    second = await there.request()
    # Both are active; the one whose state has the older code must not refuse the newer one.
    signed_in = await here.verify(second.otp_id, second.code)
    assert isinstance(signed_in, SignedIn)
    assert (await there.refused(VerifyCode(second.otp_id, second.code))).code == "invalid_otp"
    here.clock.forward(30)
    for harness in (here, there, here):
        await harness.request()
        here.clock.forward(30)
    assert (await there.refused(RequestCode(HOME))).code == "otp_rate_limited"
    third = here.codes[-1]
    again = await there.verify(third.otp_id, third.code)
    assert isinstance(again, SignedIn)
    assert again.account_id == signed_in.account_id


async def test_two_processes_together_lock_an_origin_of_wrong_tokens(open_harness: OpenHarness) -> None:
    here, there = await open_harness(), await open_harness()
    key, wrong_one = f"origin:{AWAY}", CountWrongToken()
    assert await here.directory.ref(key).ask(AdmitOrigin()) == OriginAdmitted()
    for number in range(WRONG_TOKENS_MAX):
        assert await (there if number % 2 else here).directory.ref(key).ask(wrong_one) == OriginAdmitted()
    for harness in (here, there):
        locked = await harness.refused(wrong_one, key)
        assert (locked.code, locked.retry_after_s) == ("sign_in_locked", WRONG_TOKENS_WINDOW.total_seconds())
    assert await here.directory.ref(f"origin:{HOME}").ask(wrong_one) == OriginAdmitted()
    here.clock.forward(WRONG_TOKENS_WINDOW.total_seconds())
    assert await there.directory.ref(key).ask(wrong_one) == OriginAdmitted()


async def test_a_lockout_is_reported_by_account_or_origin_where_its_key_lives(harness: Harness) -> None:
    issued = await harness.request()
    signed_in = await harness.verify(issued.otp_id, issued.code)
    assert isinstance(signed_in, SignedIn)
    for key in (ADA, "email:stranger@example.com"):
        harness.clock.forward(30)
        issued = await harness.request(key)
        for _ in range(RULES.codes.tries_max + 2):
            refused = await harness.refused(VerifyCode(issued.otp_id, wrong(issued)), key)
        assert refused.code == "otp_attempts_exceeded"
    for _ in range(WRONG_TOKENS_MAX):
        await harness.directory.ref(f"origin:{AWAY}").ask(CountWrongToken())
    found = [(each.kind, each.key, each.account_id) for each in reversed(harness.reporter.recent())]
    account_id = signed_in.account_id
    assert found == [
        ("lockout", account_id, account_id),
        ("lockout", "addresses without an account", None),
        ("lockout", f"origin:{AWAY}", None),
    ]


async def test_of_parallel_attempts_with_one_code_one_signs_in(open_harness: OpenHarness) -> None:
    harnesses = [await open_harness(), await open_harness()]
    issued = await harnesses[0].request()
    replies: list[Any] = []

    async def attempt(harness: Harness) -> None:
        replies.append(await harness.verify(issued.otp_id, issued.code))

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(attempt, harnesses[number % 2])
    assert sum(isinstance(reply, SignedIn) for reply in replies) == 1
    assert sum(isinstance(reply, Refusal) and reply.code == "invalid_otp" for reply in replies) == 19
