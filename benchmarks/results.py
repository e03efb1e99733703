"""Measured results with their conditions, and the tables of the pages that show them.

``python -m benchmarks NAME --record 3`` runs a benchmark three times, keeps these runs in place of earlier ones and
renders the pages. A figure is shown as the range over the kept runs; a line with a figure of no run is left out.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.conditions import CONDITIONS, FIGURES

ROOT = Path(__file__).parent.parent
FILE = ROOT / "benchmarks" / "results.json"
TEMPLATES = ROOT / "benchmarks" / "tables.md"
PAGES = (ROOT / "README.md", ROOT / "docs" / "performance.md")
BLOCK = re.compile(r"<!-- figures: (\w+) -->\n(.*?)<!-- end of figures -->\n", re.DOTALL)
MISSING = "\0"

Run = dict[str, Any]


class Range(list[float]):
    """A figure's values in all runs, formatted as the least and the most."""

    def __format__(self, spec: str) -> str:
        ends = [format(end(self), spec) for end in (min, max)] if self else [MISSING]
        return "-".join(dict.fromkeys(ends))


class Recorded(dict[str, Range]):
    """A benchmark's figures; formatted as its conditions."""

    def __init__(self, runs: list[Run]) -> None:
        self._runs = runs
        for run in runs:
            for name, values in run["figures"].items():
                # Of runs that were not recorded by their benchmark only the ends of a range may be known.
                self.setdefault(name, Range()).extend(values if isinstance(values, list) else [values])

    def __missing__(self, name: str) -> Range:
        return Range()

    def __format__(self, _: str) -> str:
        if not self._runs:
            return MISSING
        days = " and ".join(sorted({run["date"][:10] for run in self._runs}))
        count = f"{len(self._runs)} runs" if len(self._runs) > 1 else "One run"
        by_hand = any("copied_from" in run for run in self._runs)
        found = Recorded([{"figures": run["conditions"]} for run in self._runs])
        units = {
            "cores": "{} cores",
            "load": "load {:.1f} before",
            "fdatasync_us": "fdatasync {:.0f} µs",
            "note": "{}",
        }
        shown = [form.format(found[name]) for name, form in units.items() if found[name]]
        return (
            "; ".join([f"{'Copied by hand from results' if by_hand else count} of {days}", ", ".join(shown)]) + "."
        )


def recorded() -> dict[str, list[Run]]:
    """Return the kept runs of each benchmark."""
    found: dict[str, list[Run]] = json.loads(FILE.read_text("utf-8"))
    return found


def rendered(page: str, runs: Mapping[str, list[Run]]) -> str:
    """Return ``page`` with every table made again."""
    forms = dict(BLOCK.findall(TEMPLATES.read_text("utf-8")))
    values = {
        name: Recorded(runs.get(name, [])) for name in {*runs, *re.findall(r"{(\w+)", "".join(forms.values()))}
    }

    def block(found: re.Match[str]) -> str:
        name = found[1]
        lines = [line.format(**values) for line in forms[name].splitlines(keepends=True)]
        shown = "".join(line for line in lines if MISSING not in line)
        if name in values and not values[name]:
            shown = "Not recorded yet.\n"
        return f"<!-- figures: {name} -->\n{shown}<!-- end of figures -->\n"

    return BLOCK.sub(block, page)


def render() -> None:
    """Make the tables of the pages again."""
    for page in PAGES:
        page.write_text(rendered(page.read_text("utf-8"), recorded()), "utf-8")


def commit() -> str:
    """Return the commit of the source, marked if the source differs from it."""
    head = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    changed = subprocess.run(
        ["git", "diff", "--quiet", "HEAD", "--", "src", "benchmarks/*.py"], cwd=ROOT, check=False
    )
    return head.stdout.strip() + ("-changed" if changed.returncode else "")


def record(name: str, arguments: list[str], runs: int) -> int:
    """Run the benchmark ``runs`` times, keep these runs in place of earlier ones, and render the pages.

    Returns the exit code of a run that failed, which is not kept, or 0.
    """
    version = commit()
    kept: list[Run] = []
    for _ in range(runs):
        run: Run = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "commit": version, "figures": {}}
        command = [sys.executable, "-u", "-m", f"benchmarks.{name}", *arguments]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout or ():
                print(line, end="", flush=True)
                if line.startswith(CONDITIONS):
                    run["conditions"] = json.loads(line.removeprefix(CONDITIONS))
                elif line.startswith(FIGURES):
                    run["figures"] |= json.loads(line.removeprefix(FIGURES))
        if process.returncode or not run["figures"]:
            print(f"{name}: this run is not recorded", file=sys.stderr)
            return process.returncode or 1
        kept.append(run)
        FILE.write_text(json.dumps(recorded() | {name: kept}, indent=1, sort_keys=True) + "\n", "utf-8")
        render()
    return 0
