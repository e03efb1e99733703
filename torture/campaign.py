"""Rounds of faults under load; each is checked before the next begins."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import trio

from .clients import NotSignedIn
from .compare import Difference, Kind, compare_reads, compare_rows
from .deployment import KINDS, Deployment, DeploymentKind, NotPossible, NotRecovered, deploy, new_folder
from .faults import FAULTS, Fault, both
from .postgres import PostgresFault
from .record import ENDED, Witness
from .rows import AccountRows, read_rows

SETTLE_S_MAX = 120.0
SETTLE_PAUSE_S = 0.5
CARD_PATIENCE_S = 5.0
"""How long webhooks may take before ``holdfast reconcile`` is run."""
MIXED_SHARE = 0.3
"""The share of rounds with two faults at once, after each kind was tried alone."""

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Options:
    """The plan of a campaign. Rounds are numbered from ``first``; ``minutes`` ends it early.

    After ``settle_every`` rounds on a deployment everything settles, is compared in full, and starts again.
    """

    seed: int
    faults: Sequence[str] = ()
    kinds: Sequence[DeploymentKind] = KINDS
    rounds: int = 100
    first: int = 1
    minutes: float | None = None
    settle_every: int = 20
    blocks: int = 5
    mixed: bool = True


@dataclass
class Summary:
    """The result of a campaign. ``repeat`` is the command that repeats a failed round."""

    rounds: int = 0
    kills: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    database_faults: int = 0
    witness: Witness = field(default_factory=Witness)
    slowest_recovery_s: float = 0.0
    slowest_recovery_of: str = ""
    left_out: dict[str, str] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)
    folder: Path | None = None
    repeat: str = ""

    def count(self, kind: str) -> int:
        """Return the differences of one kind."""
        return sum(difference.kind == kind for difference in self.differences)


def leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """Return the exceptions of a group, recursively."""
    for each in group.exceptions:
        if isinstance(each, BaseExceptionGroup):
            yield from leaves(each)
        else:
            yield each


class Campaign:
    """Runs rounds until all are done, the time is over, a round failed, or ``is_stopping`` is set."""

    def __init__(self, options: Options, say: Say) -> None:
        self.options = options
        self.summary = Summary()
        self.is_stopping = False
        self._say = say
        self._witness = self.summary.witness
        chosen = options.faults or tuple(FAULTS)
        self._chosen = [FAULTS[name] for name in chosen]
        self._tried: Counter[str] = Counter()
        self._deadline = trio.current_time() + 60 * options.minutes if options.minutes else float("inf")

    async def run(self) -> Summary:
        """Run the campaign. A deployment is used for a number of rounds, then another kind follows."""
        number = self.options.first
        last = self.options.first + self.options.rounds
        while number < last and not self._is_over():
            kind = self._next_kind(number)
            if kind is None:
                break
            size = min(last - number, self.options.settle_every * self.options.blocks)
            number = await self._run_block(kind, number, number + size)
        return self.summary

    def _is_over(self) -> bool:
        has_failed = bool(self.summary.differences)
        return has_failed or self.is_stopping or trio.current_time() > self._deadline

    def _next_kind(self, number: int) -> DeploymentKind | None:
        """Choose the kind on which most untried faults can happen; then a random one."""
        kinds = [kind for kind in self.options.kinds if kind not in self.summary.left_out and self._faults_on(kind)]
        if not kinds:
            return None
        untried = {kind: sum(not self._tried[f.name] for f in self._faults_on(kind)) for kind in kinds}
        if any(untried.values()):
            return max(kinds, key=lambda kind: untried[kind])
        return random.Random(f"{self.options.seed}:{number}:kind").choice(kinds)

    def _faults_on(self, kind: DeploymentKind) -> list[Fault]:
        return [fault for fault in self._chosen if kind in fault.kinds]

    def _next_fault(self, kind: DeploymentKind, rng: random.Random) -> Fault:
        faults = self._faults_on(kind)
        untried = [fault for fault in faults if not self._tried[fault.name]]
        if untried:
            return untried[0]
        # A deployment for one kind of fault is there for that one above all.
        own = [fault for fault in faults if len(fault.kinds) == 1]
        fault = rng.choice(own if own and rng.random() < 0.5 else faults)
        # Two machines of three at once are more than a quorum survives.
        if self.options.mixed and kind != "patroni" and rng.random() < MIXED_SHARE:
            other = rng.choice(faults)
            if other is not fault and kind in both(fault, other).kinds:
                return both(fault, other)
        return fault

    async def _run_block(self, kind: DeploymentKind, number: int, end: int) -> int:
        """Run rounds ``number`` to before ``end`` on one deployment; returns the number of the next round."""
        folder = new_folder(kind)
        start_rng = random.Random(f"{self.options.seed}:{number}:deployment")
        try:
            async with deploy(kind, folder, self._witness, start_rng) as deployment:
                try:
                    while number < end and not self._is_over():
                        number = await self._run_until_settled(deployment, number, end)
                finally:
                    self.summary.kills += deployment.kills()
        except* NotPossible as reasons:
            self.summary.left_out[kind] = "; ".join(map(str, leaves(reasons)))
            self._say(f"left out: {kind}: {self.summary.left_out[kind]}")
        except* (NotRecovered, NotSignedIn, PostgresFault) as faults:
            self._note(kind, folder, number, [Difference("recovery", str(fault)) for fault in leaves(faults)])
        finally:
            if self.summary.folder != folder:
                await trio.to_thread.run_sync(lambda: shutil.rmtree(folder, ignore_errors=True))
        return number

    async def _run_until_settled(self, deployment: Deployment, number: int, end: int) -> int:
        kind, folder = deployment.kind, deployment.folder
        settles_at = min(end, number + self.options.settle_every)
        first = number
        async with deployment.clients(random.Random(f"{self.options.seed}:{number}:clients")):
            while number < settles_at and not self._is_over():
                rng = random.Random(f"{self.options.seed}:{number}")
                fault = self._next_fault(deployment.kind, rng)
                self._note(kind, folder, number, await self._run_round(deployment, number, fault, rng))
                number += 1
        if not self.summary.differences:
            self._note(kind, folder, first, await self._settle(deployment))
            if not self.summary.differences:
                await deployment.new_customers(random.Random(f"{self.options.seed}:{number}:customers"))
        return number

    async def _run_round(
        self, deployment: Deployment, number: int, fault: Fault, rng: random.Random
    ) -> list[Difference]:
        """Run load and a fault, await recovery, and compare all rows with all responses so far."""
        before = self._witness.counts()
        exits = len(deployment.exits())
        kills = deployment.kills()
        for record in self._witness.accounts:
            record.may_fail |= fault.lets_tasks_fail
        deployment.open_gates()
        await trio.sleep(rng.uniform(0.02, 0.6))
        begun = trio.current_time()
        await fault.run(deployment, rng)
        healed = trio.current_time()
        recovery_s = await deployment.first_answers(healed)
        if deployment.recovery_s is not None:
            recovery_s, deployment.recovery_s = deployment.recovery_s, None
        await trio.sleep(rng.uniform(0, 0.2))
        await deployment.close_gates()
        found = await self._compare(deployment, settled=False)
        if not fault.lets_exit:
            found += [Difference("exit", end) for end in deployment.exits()[exits:]]
        for name in fault.name.split("+"):
            self._tried[name] += 1
            self.summary.faults[name] += 1
            self.summary.database_faults += FAULTS[name].group == "database"
        self.summary.rounds += 1
        if recovery_s > self.summary.slowest_recovery_s:
            self.summary.slowest_recovery_s, self.summary.slowest_recovery_of = recovery_s, fault.name
        now = self._witness.counts()
        creates, answers, unavailable, unknown = (
            after - earlier for after, earlier in zip(now, before, strict=True)
        )
        self._say(
            f"#{number:<5} seed {self.options.seed}  {deployment.kind:<9} {fault.name:<20}"
            f" kills {deployment.kills() - kills}  creates {creates:<4} answers {answers:<5}"
            f" 503 {unavailable:<4} unknown {unknown:<4}"
            f" fault {healed - begun:5.2f} s  recovery {recovery_s:5.2f} s"
        )
        return found

    async def _compare(self, deployment: Deployment, *, settled: bool) -> list[Difference]:
        rows = await self._rows(deployment)
        found: list[Difference] = []
        for record in self._witness.accounts:
            found += compare_rows(record, rows.get(record.account_id), settled=settled)
        return found

    async def _rows(self, deployment: Deployment) -> dict[str, AccountRows]:
        ids = [record.account_id for record in self._witness.accounts]
        for _ in range(50):
            with contextlib.suppress(psycopg.Error, OSError):
                return await trio.to_thread.run_sync(read_rows, deployment.database_url(), ids)
            await trio.sleep(0.1)
        return await trio.to_thread.run_sync(read_rows, deployment.database_url(), ids)

    async def _settle(self, deployment: Deployment) -> list[Difference]:
        """Wait until everything has settled, and compare rows, reads and the service's own audit."""
        if deployment.clock_offset_s:
            deployment.move_clock(0)
        begun = trio.current_time()
        with trio.move_on_after(SETTLE_S_MAX):
            while unsettled := await self._unsettled(deployment):
                if trio.current_time() - begun > CARD_PATIENCE_S:
                    if "order" in unsettled:
                        await deployment.services[0].command("reconcile")
                    await deployment.reject_reviews()
                await trio.sleep(SETTLE_PAUSE_S)
        await self._look_at_charges(deployment)
        found = await self._compare(deployment, settled=True)
        rows = await self._rows(deployment)
        for customer in deployment.customers:
            try:
                account = await customer.read("/v2/control/account", as_session=True)
                tasks = await customer.read_all("/v2/task/list", as_session=False)
                statement = await customer.read_all("/v2/control/ledger", as_session=True)
                usage = await customer.read_all("/v2/usage/logs", as_session=True)
            except RuntimeError as fault:
                found.append(Difference("recovery", str(fault)))
                continue
            found += compare_reads(rows[customer.record.account_id], account, tasks, statement, usage)
            found += [Difference("answer", text) for text in await self._unreadable(deployment, tasks)]
        audit = await deployment.services[0].command("audit")
        if audit.returncode != 0:
            text = (audit.stdout + audit.stderr).decode("utf-8", "replace")
            lines = [line for line in text.splitlines() if not line.startswith("ok ")]
            found.append(Difference("audit", "\n".join(lines)))
        kinds = Counter(operation.kind for each in rows.values() for operation in each.operations)
        top_ups = sum(order.origin == "top_up" for each in rows.values() for order in each.orders)
        totals = Counter(task.status for each in rows.values() for task in each.tasks)
        self._say(
            f"       settled in {trio.current_time() - begun:.1f} s: {dict(sorted(totals.items()))},"
            f" {dict(sorted(kinds.items()))}, {top_ups} top-ups, audit"
            f" {'clean' if audit.returncode == 0 else 'FAILED'}"
        )
        return found

    async def _look_at_charges(self, deployment: Deployment) -> None:
        """Record what the card provider has charged."""
        charges = await deployment.card.charges()
        for record in self._witness.accounts:
            record.charges = charges

    async def _unsettled(self, deployment: Deployment) -> set[Kind]:
        """Return the kinds of differences that time may yet remove."""
        await self._look_at_charges(deployment)
        rows = await self._rows(deployment)
        found = {
            difference.kind
            for record in self._witness.accounts
            if record.account_id in rows
            for difference in compare_rows(record, rows[record.account_id], settled=True)
        } & {"order", "expiry"}
        if any(task.status not in ENDED for each in rows.values() for task in each.tasks):
            found.add("hold")
        # One that credit which expired has asked for is charged a moment later.
        orders = [order for each in rows.values() for order in each.orders]
        if any(order.origin == "top_up" and order.status == "pending" for order in orders):
            found.add("order")
        return found

    async def _unreadable(self, deployment: Deployment, tasks: Sequence[dict[str, object]]) -> list[str]:
        """Return broken links among the results of the newest succeeded tasks."""
        found = []
        newest = [task for task in tasks if task["status"] == "succeeded"][:5]
        for task in newest:
            for output in task["output"]:  # type: ignore[attr-defined] # a list of the interface's
                answer = await deployment.http.get(output["url"])
                if answer.status_code != 200:
                    found.append(f"{task['request_id']}: {output['url']} answers {answer.status_code}")
        return found

    def _note(self, kind: DeploymentKind, folder: Path, number: int, differences: list[Difference]) -> None:
        """Retain the folder of a failed round, and print how to repeat it."""
        if not differences:
            return
        self.summary.differences += differences
        self.summary.folder = folder
        names = ",".join(fault.name for fault in self._chosen)
        self.summary.repeat = (
            f"python -m torture --seed {self.options.seed} --first {number} --rounds {self.options.settle_every}"
            f" --kinds {kind} --faults {names}"
        )
        lines = [f"DIFFERENCE {difference}" for difference in differences]
        for line in lines:
            self._say(f"       {line}")
        records = [repr(record) for record in self._witness.accounts]
        text = "\n".join([*lines, f"repeat with: {self.summary.repeat}", *records])
        (folder / "differences.txt").write_text(text, "utf-8")
