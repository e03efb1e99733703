"""The pages show the benchmarks' recorded results, and the benchmarks record them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from benchmarks import results
from benchmarks.__main__ import PARTS, main


def run_of(date: str, load: float, figures: dict[str, float]) -> dict[str, Any]:
    conditions = {"cores": 2, "load": load, "fdatasync_us": 140}
    return {"date": f"{date}T10:00:00+00:00", "commit": "0" * 12, "conditions": conditions, "figures": figures}


def memory_of(runs: list[dict[str, Any]]) -> str:
    page = "before\n<!-- figures: memory -->\nold\n<!-- end of figures -->\nafter\n"
    shown = results.rendered(page, {"memory": runs})
    return shown.removeprefix("before\n<!-- figures: memory -->\n").removesuffix("<!-- end of figures -->\nafter\n")


@pytest.mark.parametrize("page", results.PAGES, ids=lambda page: page.name)
def test_the_pages_show_the_recorded_results(page: Path) -> None:
    text = page.read_text("utf-8")
    assert results.BLOCK.search(text)
    assert results.rendered(text, results.recorded()) == text, "run: python -m benchmarks render"


def test_a_changed_result_changes_both_pages() -> None:
    changed = results.recorded() | {"memory": [run_of("2026-01-01", 0.5, {"an active account, KB": 77.7})]}
    for page in results.PAGES:
        assert "77.7 KB" in results.rendered(page.read_text("utf-8"), changed)


def test_a_figure_is_a_range_over_the_runs() -> None:
    one = run_of("2026-01-01", 0.5, {"an active account, KB": 8.0})
    two = run_of("2026-01-02", 0.7, {"an active account, KB": 8.4})
    assert memory_of([one]).startswith("An active account takes 8.0 KB")
    assert memory_of([one]).endswith("One run of 2026-01-01; 2 cores, load 0.5 before, fdatasync 140 µs.\n")
    assert memory_of([two, one]).startswith("An active account takes 8.0-8.4 KB")
    assert memory_of([two, one]).endswith(
        "2 runs of 2026-01-01 and 2026-01-02; 2 cores, load 0.5-0.7 before, fdatasync 140 µs.\n"
    )
    assert memory_of([one | {"copied_from": "a page"}]).endswith(
        "Copied by hand from results of 2026-01-01; 2 cores, load 0.5 before, fdatasync 140 µs.\n"
    )
    assert memory_of([run_of("2026-01-01", 0.5, {"another": 1.0})]) == ""
    assert memory_of([]) == "Not recorded yet.\n"


def test_the_tables_name_figures_that_their_benchmarks_print() -> None:
    named = re.findall(r"{(\w+)(?:\[(.+?)\])?", results.TEMPLATES.read_text("utf-8").split("\n\n", 1)[1])
    assert {name for name, _ in named} <= PARTS.keys()
    for name, figure in named:
        for run in results.recorded().get(name, []):
            assert not figure or "copied_from" in run or figure in run["figures"], (name, figure)


@pytest.mark.slow
def test_a_benchmark_records_its_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- figures: memory -->\n<!-- end of figures -->\n")
    monkeypatch.setattr(results, "FILE", tmp_path / "results.json")
    monkeypatch.setattr(results, "PAGES", (page,))
    results.FILE.write_text(json.dumps({"memory": [run_of("2026-01-01", 0.5, {"old": 1.0})], "whole": []}))

    assert main(["memory", "--record", "1", "--no-such-option"]) == 2
    assert "old" in results.FILE.read_text()

    assert main(["memory", "--record", "1", "--accounts", "10"]) == 0
    kept = results.recorded()
    assert kept["whole"] == []
    [run] = kept["memory"]
    assert run["conditions"]["options"] == {"accounts": 10}
    assert run["conditions"]["fdatasync_us"] > 0
    assert run["figures"].keys() == {"an active account, KB"}
    assert "An active account takes" in page.read_text()
