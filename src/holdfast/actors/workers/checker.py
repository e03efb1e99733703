"""The checker: runs the audit's rules on all accounts, again and again, a few accounts at a time.

One process does it for all. Each slice is one statement on a connection of its own, followed by a pause, so that
the checks take only a share of the time. A difference is reported when it is found, and again when it is gone. How
far it has come is stored after each few accounts, so another process continues there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final, Protocol

import msgspec
import structlog
import trio

from holdfast.actors.workers.passes import always, one_pass, repeat
from holdfast.ledger.values import Now
from holdfast.persistence.audit.audit import ACCOUNTS_MAX, OPERATIONS_MAX, QUERY_RULES, AccountsCheck, Slice
from holdfast.persistence.audit.progress import (
    count_differences,
    load_progress,
    load_start,
    store,
)
from holdfast.persistence.audit.rules import BrokenRule, next_accounts
from holdfast.persistence.records.rows import AuditProgress
from holdfast.persistence.server.database import Database
from holdfast.persistence.server.database_faults import DatabaseAway, QueryTimedOut
from holdfast.telemetry import metrics
from holdfast.telemetry.reports.report import Report

log = structlog.get_logger(__name__)

IDLE_S: Final = 1.0
PASS_PAUSE_S: Final = 15.0
"""The least time between two passes: a small ledger needs no checks all the time."""
REPORTS_MAX: Final = 100
"""With more accounts that differ than this, the further ones of a pass are one report: the list has them all."""
MEASURE_S: Final = 30.0
CHECK_BOUND_S: Final = 120.0
"""Longer than a statement on the connection of scans may take."""
PATH: Final = "holdfast/workers/checker"
RULE_NAMES: Final = frozenset(rule.name for rule in QUERY_RULES)


class Checker:
    """Checks every account in each pass. ``report`` receives each difference once, and again when it is gone."""

    def __init__(
        self,
        *,
        database: Database,
        report: Callable[[Report], None],
        pace: Pace,
        now: Now,
        is_ours: Callable[[], bool] = always,
        accounts_max: int = ACCOUNTS_MAX,
        operations_max: int = OPERATIONS_MAX,
    ) -> None:
        self._database = database
        self._report = report
        self._pace = pace
        self._now = now
        self._is_ours = is_ours
        self._accounts_max = accounts_max
        self._operations_max = operations_max
        self._progress: AuditProgress | None = None
        self._known: set[BrokenRule] = set()
        self._unstored: set[BrokenRule] = set()
        """The known differences that are reported and not in the rows yet."""
        self._unseen: set[BrokenRule] | None = None
        """The known differences of accounts that this pass has not come to; None in a pass that was continued."""
        self._unreported = 0
        self._check: AccountsCheck | None = None
        self._slices: Iterator[tuple[str, Slice]] = iter(())

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Check slice after slice until cancelled, while this is our work and the database answers."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._measure_forever)
            task_status.started()
            while True:
                if not self._is_ours():
                    self.forget()
                    await trio.sleep(IDLE_S)
                    continue
                await self._database.gate.wait_open()
                begun = trio.current_time()
                try:
                    with one_pass("check of a few accounts", bound_s=CHECK_BOUND_S):
                        has_passed = await self.check_next()
                except DatabaseAway as away:
                    log.info("checks postponed", reason=away.reason)
                    self.forget()
                    await trio.sleep(IDLE_S)
                    continue
                pause_s = self._pace.pause_s(trio.current_time() - begun)
                await trio.sleep(max(pause_s, PASS_PAUSE_S) if has_passed else pause_s)

    def forget(self) -> None:
        """Forget what is not stored; the next check continues from the rows."""
        self._progress = None
        self._check = None

    async def check_next(self) -> bool:
        """Check one slice, and return whether it ended a pass. Raises :class:`DatabaseAway`."""
        if self._progress is None:
            await self._load()
        elif self._check is None:
            return await self._begin_accounts(self._progress)
        else:
            following = next(self._slices, None)
            if following is None:
                await self._end_accounts(self._progress, self._check)
            else:
                await self._scan(*following, self._check)
        return False

    async def _load(self) -> None:
        progress, known, accounts_total = await self._database.scan(load_start)
        self._known = {BrokenRule(each.account_id, each.rule) for each in known} | self._unstored
        self._unseen = None
        is_first = progress is None or not progress.after
        self._progress = self._first_of_pass(progress, accounts_total) if is_first else progress

    def _first_of_pass(self, progress: AuditProgress | None, accounts_total: int) -> AuditProgress:
        """Return the state at the start of a pass."""
        now = self._now()
        self._unseen = set(self._known)
        found = AuditProgress(begun_at=now, written_at=now) if progress is None else progress
        return msgspec.structs.replace(
            found,
            begun_at=now,
            after="",
            accounts_total=accounts_total,
            accounts_done=0,
            operations_done=0,
            skipped=0,
        )

    async def _begin_accounts(self, progress: AuditProgress) -> bool:
        """Begin with the accounts that follow; with none left, end the pass and return True."""
        found = await self._database.scan(
            next_accounts,
            progress.after,
            accounts_max=self._accounts_max,
            operations_max=self._operations_max,
        )
        if not found:
            await self._end_pass(progress)
            return True
        self._check = AccountsCheck(found)
        self._slices = self._check.slices()
        return False

    async def _scan(self, name: str, slice_: Slice, check: AccountsCheck) -> None:
        try:
            await self._database.scan(slice_)
        except QueryTimedOut as late:
            self._skip(name, check)
            log.warning("check took too long", rule=name, accounts=[*check.accounts][:3], reason=late.reason)
        except DatabaseAway:
            raise
        except Exception:
            # Whatever the rows contain, the other accounts are checked, and the service runs.
            self._skip(name, check)
            log.exception("check failed", rule=name, accounts=[*check.accounts][:3])

    def _skip(self, name: str, check: AccountsCheck) -> None:
        """Leave out a check of these accounts in this pass, which then verifies nothing."""
        assert self._progress is not None
        self._progress = msgspec.structs.replace(self._progress, skipped=self._progress.skipped + 1)
        if name not in RULE_NAMES:
            # A page that cannot be read would be requested for ever.
            self._slices = check.rules()

    async def _end_accounts(self, progress: AuditProgress, check: AccountsCheck) -> None:
        """Report what is new and what is gone, and store how far the pass has come."""
        found = check.found
        gone = {broken for broken in self._known if broken.account_id in check.accounts} - found.keys()
        self._report_new(found)
        newest = max(check.last.values(), key=lambda operation: operation.at, default=None)
        is_newer = newest is not None and (
            progress.newest_operation_at is None or newest.at >= progress.newest_operation_at
        )
        now = self._now()
        operations_done = progress.operations_done + check.operations
        elapsed_s = max((now - progress.begun_at).total_seconds(), 0.001)
        progress = msgspec.structs.replace(
            progress,
            after=[*check.accounts][-1],
            accounts_done=progress.accounts_done + len(check.accounts),
            operations_done=operations_done,
            newest_operation_id=newest.operation_id if newest and is_newer else progress.newest_operation_id,
            newest_operation_at=newest.at if newest and is_newer else progress.newest_operation_at,
            operations_per_s=operations_done / elapsed_s,
            written_at=now,
        )
        await self._database.work(store, progress, found, gone)
        self._unstored.clear()
        metrics.AUDIT_OPERATIONS.inc(check.operations)
        self._report_gone(gone)
        if self._unseen is not None:
            self._unseen -= {broken for broken in self._unseen if broken.account_id in check.accounts}
        self._progress, self._check = progress, None

    async def _end_pass(self, progress: AuditProgress) -> None:
        gone = self._unseen or set()
        ended = msgspec.structs.replace(
            progress,
            after="",
            passes=progress.passes + 1,
            verified_up_to=progress.verified_up_to if progress.skipped else progress.begun_at,
            written_at=self._now(),
        )
        await self._database.work(store, ended, {}, gone)
        self._report_gone(gone)
        if self._unreported:
            differ = (
                "1 more account differs" if self._unreported == 1 else f"{self._unreported} more accounts differ"
            )
            reason = f"{differ}: GET /ops/api/ledger counts the broken rules"
            self._report(Report(kind="difference", at=self._now(), path=PATH, reason=reason))
            self._unreported = 0
        # The next pass begins when its first accounts are read.
        self._progress = None

    def _report_new(self, found: dict[BrokenRule, str]) -> None:
        """Report each account once: one wrong amount breaks several rules."""
        reported = {broken.account_id for broken in self._known}
        new = [broken for broken in found if broken not in self._known]
        self._known.update(new)
        self._unstored.update(new)
        for account_id, rules in _by_account(new).items():
            reported.add(account_id)
            if len(reported) > REPORTS_MAX:
                self._unreported += 1
                continue
            first, *others = rules
            reason = f"account {account_id}: {found[BrokenRule(account_id, first)]} (rule: {first})"
            if others:
                reason += f"; it also breaks: {'; '.join(others)}"
            self._report(Report(kind="difference", at=self._now(), path=PATH, account_id=account_id, reason=reason))

    def _report_gone(self, gone: set[BrokenRule]) -> None:
        self._known -= gone
        for account_id, rules in islice(_by_account(sorted(gone)).items(), REPORTS_MAX):
            reason = f"account {account_id} no longer breaks: {'; '.join(rules)}"
            self._report(Report(kind="recovery", at=self._now(), path=PATH, account_id=account_id, reason=reason))

    async def _measure_forever(self) -> None:
        await repeat(self._measure, every_s=MEASURE_S, name="audit metrics")

    async def _measure(self) -> None:
        """Show in every process what the checker of one has stored."""
        progress, differences = await self._database.read(
            lambda rows: (load_progress(rows), count_differences(rows))
        )
        metrics.AUDIT_DIFFERENCES.set(differences)
        if progress is not None and progress.verified_up_to is not None:
            metrics.AUDIT_VERIFIED_AGE_S.set((self._now() - progress.verified_up_to).total_seconds())


def _by_account(broken: Iterable[BrokenRule]) -> dict[str, list[str]]:
    """Return the rules that each account breaks."""
    found: dict[str, list[str]] = {}
    for account_id, rule in broken:
        found.setdefault(account_id, []).append(rule)
    return found


QUEUE_UNITS_MAX = 32
"""More units than this in the journal's queue: commits do not keep up with the decisions."""
COMMIT_RATIO_MAX = 3.0
COMMIT_S_MIN = 0.005
"""A commit this much longer than usual, and at least this long, is a slow one."""
USUAL_WEIGHT = 0.05
SLOWER_MAX = 16.0
"""How many times longer the pauses become at most."""


class Journaling(Protocol):
    """The journal's load."""

    commit_s: float

    @property
    def queued_units(self) -> int: ...


class Pace:
    """Says how long to pause after each piece of work. ``share`` is above 0 and at most 1."""

    def __init__(self, share: float, journal: Journaling) -> None:
        self._rest = 1.0 / share - 1.0
        self._journal = journal
        self._usual_s = 0.0
        self._slower = 1.0

    def pause_s(self, took_s: float) -> float:
        """Return the pause after work that took ``took_s``. Doubles while the journal is busy, and halves again."""
        if self._is_busy():
            self._slower = min(self._slower * 2, SLOWER_MAX)
        else:
            self._slower = max(self._slower / 2, 1.0)
        return took_s * self._rest * self._slower

    def _is_busy(self) -> bool:
        commit_s = self._journal.commit_s
        is_slow = self._usual_s > 0 and commit_s > max(self._usual_s * COMMIT_RATIO_MAX, COMMIT_S_MIN)
        # A slow commit moves what is usual only a little, and one that is never followed by another does in time.
        self._usual_s += (commit_s - self._usual_s) * (USUAL_WEIGHT if self._usual_s else 1.0)
        return is_slow or self._journal.queued_units > QUEUE_UNITS_MAX
