"""Accounts and sign-ins of processes on one database, by the test's own clock."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import trio
from sqlalchemy import text

from holdfast.actors.account.messages import ChangeEmail, EmailChanged, TriedCode
from holdfast.actors.runtime.mailbox import Mailbox
from holdfast.actors.sign_in.actor import SignInActor, SignInRules
from holdfast.actors.sign_in.messages import CodeIssued, RequestCode, SignedIn, VerifyCode
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.sign_in_codes import CodeLimits, code_mac, email_purpose
from holdfast.persistence.queries.loading import load_sign_in
from holdfast.persistence.server.database import Database
from holdfast.supervision.dead_letters import DeadLetters
from holdfast.supervision.directory import KeyedDirectory
from holdfast.telemetry.reports.conditions import Conditions

from .actor_system import ActorSystem, make_system

HOME = "192.0.2.7"
PEPPER = b"pepper"
RULES = SignInRules(
    pepper=PEPPER,
    codes=CodeLimits(
        ttl_s=600,
        tries_max=5,
        failures_day_max=20,
        resend_s=0,
        per_hour_max=50,
        per_day_max=100,
        all_origins_hour_max=200,
        all_origins_day_max=400,
    ),
    otp_per_origin_hour=300,
    session_ttl_s=86_400,
    brand_id="holdfast",
    operators=frozenset(),
)


@dataclass
class Clock:
    """Service time, as the test sets it."""

    at: datetime = datetime(2026, 11, 20, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.at

    def forward(self, **by: float) -> None:
        """Let time pass."""
        self.at += timedelta(**by)


@dataclass
class Member:
    """One process: its accounts and its sign-ins."""

    system: ActorSystem
    sign_ins: KeyedDirectory
    clock: Clock

    async def ask(self, account_id: str, command: Any) -> Any:
        """Ask an account."""
        return await self.system.ask(account_id, command)

    async def code(self, email: str, purpose: str = "") -> CodeIssued:
        """Request a code for an address."""
        issued = await self.sign_ins.ref(f"email:{email}").ask(RequestCode(HOME, purpose))
        assert isinstance(issued, CodeIssued), issued
        return issued

    async def verify(self, email: str, issued: CodeIssued) -> SignedIn | Refusal:
        """Sign in with a code."""
        return await self.sign_ins.ref(f"email:{email}").ask(VerifyCode(issued.otp_id, issued.code))

    async def sign_in(self, email: str) -> SignedIn:
        """Sign in with a new code."""
        signed_in = await self.verify(email, await self.code(email))
        assert isinstance(signed_in, SignedIn), signed_in
        return signed_in

    async def change(self, owner: SignedIn, email: str, **wrong: str) -> ChangeEmail:
        """Request codes for a change of address; the command with both, or ``wrong`` ones."""
        purpose = email_purpose(owner.account_id, email)
        tried = {}
        for param, address in (("current", owner.email), ("new", email)):
            issued = await self.code(address, purpose)
            digits = wrong.get(param, issued.code)
            tried[param] = TriedCode(issued.otp_id, code_mac(PEPPER, issued.otp_id, digits, purpose))
        return ChangeEmail(email, "User", owner.session_id, **tried)

    async def changed(self, owner: SignedIn, email: str) -> EmailChanged:
        """Change an account's address."""
        done = await self.ask(owner.account_id, await self.change(owner, email))
        assert isinstance(done, EmailChanged), done
        return done


async def start_member(database: Database, nursery: trio.Nursery, clock: Clock, **options: Any) -> Member:
    """Start the actors of one process."""
    system = make_system(database, now=clock, **options)

    async def load(key: str) -> Any:
        return await database.read(lambda rows: load_sign_in(rows, key))

    async def probe() -> bool:
        return True

    def create(key: str, mailbox: Mailbox) -> SignInActor:
        conditions = Conditions(system.reporter)
        return SignInActor(key, mailbox, system.journal, load=load, now=clock, rules=RULES, conditions=conditions)

    sign_ins = KeyedDirectory(
        "sign-in",
        create,
        gate=database.gate,
        probe=probe,
        reporter=system.reporter,
        dead_letters=DeadLetters(),
        rng=random.Random(1),
    )

    async def keep_gate_open() -> None:
        while True:
            await database.gate.wait_closed()
            await database.open()

    nursery.start_soon(keep_gate_open)
    await nursery.start(lambda *, task_status: system.journal.run(task_status=task_status))
    await nursery.start(system.accounts.run)
    await nursery.start(sign_ins.run)
    return Member(system, sign_ins, clock)


async def rows_of(database: Database, sql: str, **values: object) -> list[Any]:
    """Run a query of the test."""
    return await database.read(lambda rows: list(rows.execute(text(sql), values).all()))
