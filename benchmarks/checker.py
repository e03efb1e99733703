"""The checker of the ledger: what it costs creates, and how fast it is.

Two databases on one server hold the same books. A service on each takes creates in turn, one without the checker
and one with it; the other one is stopped meanwhile (SIGSTOP), so that its checker costs neither. Printed are the
speed of checking all accounts without a pause and the longest slices, then creates a second and CPU a create, with
the medians of their ratios.

Run: python -m benchmarks.checker [--operations 100000] [--share 0.05] [--seconds 8] [--rounds 5] [--connections 16]
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import psycopg

from benchmarks.conditions import describe, fresh_database, print_figures
from benchmarks.create import Side, drive
from benchmarks.growth import Books, write
from benchmarks.servers import CATALOG, SCHEMA, SECRET, creates, free_port
from holdfast.persistence.audit.audit import ACCOUNTS_MAX, OPERATIONS_MAX, AccountsCheck
from holdfast.persistence.audit.rules import next_accounts
from holdfast.persistence.server.connections import make_engine


def speed(books: Books) -> None:
    """Check all accounts without a pause, and print the speed and the longest slices."""
    slices_s: dict[str, list[float]] = {}
    operations = accounts = 0
    after = ""
    begun = time.perf_counter()
    engine = make_engine(books.url, pool_size=1, statement_timeout_ms=0, use="reads")
    with engine.connect() as connection:
        while found := next_accounts(connection, after, accounts_max=ACCOUNTS_MAX, operations_max=OPERATIONS_MAX):
            check = AccountsCheck(found)
            for name, slice_ in check.slices():
                slice_begun = time.perf_counter()
                slice_(connection)
                slices_s.setdefault(name, []).append(time.perf_counter() - slice_begun)
            assert not check.found, check.found
            operations, accounts, after = operations + check.operations, accounts + len(found), [*found][-1]
    took_s = time.perf_counter() - begun
    print(f"{operations:,} operations of {accounts:,} accounts in {took_s:.1f} s: {operations / took_s:,.0f}/s")
    longest_s = max(max(times) for times in slices_s.values())
    count = sum(map(len, slices_s.values()))
    median_ms = statistics.median(each for times in slices_s.values() for each in times) * 1e3
    print_figures(
        {"operations/s": operations / took_s, "slice, median ms": median_ms, "slice, longest s": longest_s}
    )
    print(f"{count:,} slices, median {median_ms:.1f} ms; the longest by name:")
    for name, times in sorted(slices_s.items(), key=lambda item: -max(item[1]))[:8]:
        print(f"  {max(times) * 1e3:8.1f} ms, {sum(times):6.2f} s in all  {name}")


def main() -> None:
    """Write both books, measure in turn, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=100_000)
    parser.add_argument("--share", type=float, default=0.05)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=16)
    options = parser.parse_args()
    with fresh_database() as (server, root), tempfile.TemporaryDirectory(prefix="holdfast-checker-") as scratch:
        folder = Path(scratch)
        print(describe(root, options), flush=True)
        catalog = folder / "catalog.toml"
        catalog.write_text(CATALOG.format(url=f"http://127.0.0.1:{free_port()}", secret=SECRET, slots=1))
        catalog.with_name("prompt.json").write_text(SCHEMA)
        sides = {
            name: write(name, server, catalog, options.operations, os.cpu_count() or 1)
            for name in ("plain", "checked")
        }
        with psycopg.connect(server, autocommit=True) as rows:
            rows.execute("checkpoint")
        speed(sides["plain"])
        ratios: list[tuple[float, float]] = []
        with ExitStack() as stack:
            services = []
            for name, books in sides.items():
                share = str(options.share if name == "checked" else 0.0)
                running = stack.enter_context(books.served(folder, HOLDFAST_CHECKER_SHARE=share))
                services.append(Side(name, books.port, running, creates([key.secret for key in books.keys])))
            for number in range(options.rounds + 1):
                runs = []
                for side in services:
                    for each in services:
                        each.process.send_signal(signal.SIGCONT if each is side else signal.SIGSTOP)
                    runs.append(drive(side, seconds=options.seconds, connections=options.connections))
                plain, checked = runs
                shown = f"plain {plain.rate:,.0f}/s, CPU {plain.cpu_us:,.0f} us | checked {checked.rate:,.0f}/s, "
                print(f"{shown}CPU {checked.cpu_us:,.0f} us" + (" (warm-up)" if number == 0 else ""), flush=True)
                if number:
                    ratios.append((checked.rate / plain.rate, checked.cpu_us / plain.cpu_us))
        rate, cpu = (statistics.median(each) for each in zip(*ratios, strict=True))
        print(f"with the checker: {rate:.3f} x the creates, {cpu:.3f} x the CPU a create (medians)")
        print_figures({"with the checker, rate": rate, "with the checker, CPU": cpu})


if __name__ == "__main__":
    main()
