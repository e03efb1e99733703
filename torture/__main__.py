"""Inject faults around the service for hours and check that nothing is lost; ``fuzz`` runs the fuzz tests.

Exit codes: 0 nothing differed, 1 something did, 2 the command line is wrong.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime

import structlog
import trio

from .campaign import Campaign, Options, Summary
from .deployment import KINDS
from .faults import FAULTS
from .fuzz import fuzz


def main(words: list[str] | None = None) -> int:
    """Run the command line."""
    arguments = _arguments(sys.argv[1:] if words is None else words)
    if arguments.command == "fuzz":
        return fuzz(arguments.seconds)
    seed = random.SystemRandom().randrange(1_000_000) if arguments.seed is None else arguments.seed
    options = Options(
        seed=seed,
        faults=arguments.faults,
        kinds=arguments.kinds,
        rounds=arguments.rounds if arguments.rounds is not None else 1_000_000 if arguments.minutes else 100,
        first=arguments.first,
        minutes=arguments.minutes,
        settle_every=arguments.settle_every,
        mixed=not arguments.single,
    )
    # The stand-ins in this process log every delivery that failed; here failures are the point.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    begun = time.monotonic()
    _say(f"torture: seed {seed}, {os.cpu_count()} cores, faults {', '.join(arguments.faults or FAULTS)}")
    summary = trio.run(_run, options)
    _report(summary, took_s=time.monotonic() - begun)
    return 1 if summary.differences else 0


async def _run(options: Options) -> Summary:
    """Run a campaign; INT and TERM end it after the current round, a second one at once."""
    campaign = Campaign(options, _say)
    async with trio.open_nursery() as nursery:

        async def heed_signals() -> None:
            with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                async for _ in signals:
                    if campaign.is_stopping:
                        nursery.cancel_scope.cancel()
                    _say("stopping")
                    campaign.is_stopping = True

        nursery.start_soon(heed_signals)
        await campaign.run()
        nursery.cancel_scope.cancel()
    return campaign.summary


def _say(text: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S} {text}", flush=True)


def _report(summary: Summary, *, took_s: float) -> None:
    witness = summary.witness
    _say(
        f"{summary.rounds} rounds in {took_s / 60:.1f} min: {summary.kills} kills of the service,"
        f" {summary.database_faults} database faults, {witness.creates} creates, {witness.answers} answers,"
        f" {witness.unknown} requests without an answer"
    )
    _say("faults: " + ", ".join(f"{name} {many}" for name, many in sorted(summary.faults.items())))
    for kind, reason in summary.left_out.items():
        _say(f"left out: {kind}: {reason}")
    _say(
        f"lost {summary.count('lost')}, doubled {summary.count('doubled')}, other differences"
        f" {len(summary.differences) - summary.count('lost') - summary.count('doubled')};"
        f" slowest recovery {summary.slowest_recovery_s:.1f} s ({summary.slowest_recovery_of}),"
        f" slowest answer {witness.slowest_answer_s:.1f} s"
    )
    if summary.differences:
        _say(f"files are in {summary.folder}; repeat with: {summary.repeat}")


def _arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m torture", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("command", nargs="?", choices=("run", "fuzz"), default="run")
    parser.add_argument("--seed", type=int, help="repeat the choices of an earlier run")
    parser.add_argument("--faults", type=_names(tuple(FAULTS)), default=(), help=f"some of {', '.join(FAULTS)}")
    parser.add_argument(
        "--kinds", type=_names(KINDS), default=KINDS, help=f"deployments: some of {', '.join(KINDS)}"
    )
    parser.add_argument("--rounds", type=int, help="how many rounds (100, without --minutes)")
    parser.add_argument("--minutes", type=float, help="begin no round after this time")
    parser.add_argument("--first", type=int, default=1, help="the number of the first round")
    parser.add_argument("--settle-every", type=int, default=20, help="rounds between two full comparisons")
    parser.add_argument("--single", action="store_true", help="one fault at a time, never two at once")
    parser.add_argument("--seconds", type=int, default=60, help="fuzz: how long each test searches")
    return parser.parse_args(words)


def _names(known: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    """Return the type of an option that takes comma-separated names."""

    def read(text: str) -> tuple[str, ...]:
        names = tuple(name.strip() for name in text.split(",") if name.strip())
        wrong = [name for name in names if name not in known]
        if wrong:
            raise argparse.ArgumentTypeError(f"{', '.join(wrong)}: not among {', '.join(known)}")
        return names

    return read


if __name__ == "__main__":
    sys.exit(main())
