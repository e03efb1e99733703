"""Run one benchmark or all, each in its own process: ``python -m benchmarks [NAME [OPTION …]]``.

Those that take more than a few minutes run only when they are named. ``--record [RUNS]`` repeats a named one, three
times unless RUNS says otherwise, and keeps the results (:mod:`benchmarks.results`); ``python -m benchmarks render``
makes the tables of the pages again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from benchmarks import results

PARTS = {
    "holds": "durable holds a second",
    "create": "creating tasks over HTTP, beside a row-lock peer",
    "calls": "Python functions that a create calls",
    "layers": "creating tasks as the clients of other services do, beside native creates",
    "reads": "reading a task, a list and an account over HTTP, beside a row-lock peer",
    "waits": "creates beside waiting requests and streams, and how soon a client that waits has its result",
    "pages": "the account's pages: their first bytes, and creates beside open ones",
    "whole": "whole tasks beside a row-lock peer",
    "processes": "creating tasks through one and two processes",
    "cells": "creates of a cell alone, beside two others, and while one of them is killed or gives an account away",
    "readers": "creates beside slow readers of the report stream",
    "follow": "creates beside a followed task",
    "idle": "CPU, transactions and memory of an idle service",
    "memory": "memory of an active account",
    "recovery": "active accounts killed at once",
    "rolls": "rolls and kills of workers under load",
    "frozen": "processes frozen in the middle of a commit",
    "checker": "creates with the checker and without, and its speed",
    "growth": "costs with large books beside small ones",
    "soak": "memory and markers over an hour of constant load",
}
LONG = {"cells", "checker", "frozen", "growth", "rolls", "soak"}


def main(arguments: list[str]) -> int:
    """Run the named part with its options, or every short one; return the first exit code that is not 0, or 0."""
    if arguments == ["render"]:
        results.render()
        return 0
    if arguments and arguments[0] not in PARTS:
        print(f"There is no benchmark {arguments[0][:80]!r}. There are: {', '.join(PARTS)}.", file=sys.stderr)
        return 2
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--record", type=int, nargs="?", const=3, default=0)
    runs, options = parser.parse_known_args(arguments[1:])
    for name in arguments[:1] or [name for name in PARTS if name not in LONG]:
        print(f"== {PARTS[name]}", flush=True)
        if runs.record:
            return results.record(name, options, runs.record)
        done = subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *options], check=False)
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
