"""The files for Prometheus and Grafana: promtool accepts them, and what they name exists."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.metrics import MetricWrapperBase
from tests.tools import path_of

from holdfast.telemetry import metrics

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "prometheus"
RULES = FOLDER / "holdfast.rules.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "holdfast.json"
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
OF_PROMETHEUS = {"job", "instance", "le"}
"""Labels that Prometheus adds, or that a histogram's buckets have."""


GRID_COLUMNS = 24
UNITS = {"short", "s", "bytes", "ops", "reqps", "percentunit"}
"""The names of Grafana's units that are used."""


def promtool(*arguments: str | Path) -> None:
    """Run promtool, which `make test` puts beside the tests' Python where the system has none."""
    done = subprocess.run(
        [path_of("promtool"), *arguments], cwd=FOLDER, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def series() -> dict[str, set[str]]:
    """The labels of each series that the service has, by name."""
    declared = [found for found in vars(metrics).values() if isinstance(found, MetricWrapperBase)]
    return {
        f"{metric._name}{suffix}": set(metric._labelnames)
        for metric in declared
        for suffix in SUFFIXES[str(metric._type)]
    }


def rules(key: str) -> list[str]:
    """The names of the rules of one kind: record or alert."""
    return re.findall(rf"^ +- {key}: (\S+)$", RULES.read_text("utf-8"), re.MULTILINE)


def rule_expressions() -> list[str]:
    """The expression of each rule, folded into one line."""
    found = re.findall(r"^( +)expr: (?:\|\n((?:\1 +\S.*\n)+)|(.+)\n)", RULES.read_text("utf-8"), re.MULTILINE)
    return [" ".join((folded or single).split()) for _, folded, single in found]


def panel_expressions() -> list[str]:
    """The expression of each target of the dashboard, with Grafana's variables replaced."""

    def targets(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            if "expr" in value:
                yield value["expr"]
            for each in value.values():
                yield from targets(each)
        elif isinstance(value, list):
            for each in value:
                yield from targets(each)

    found = list(targets(json.loads(DASHBOARD.read_text("utf-8"))))
    return [
        each.replace("$__rate_interval", "5m").replace("$job", ".*").replace("$instance", ".*") for each in found
    ]


def panels() -> list[dict[str, Any]]:
    """The panels and rows of the dashboard."""
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    return found


def unknown_in(expression: str) -> list[str]:
    """What an expression names that no series has: metrics, and labels in selectors and groups."""
    known = series()
    recorded = re.findall(r"\w+:\w+:\w+", expression)
    unknown = [name for name in recorded if name not in rules("record")]
    plain = re.sub(r"\w+:\w+:\w+", "", expression)
    labels = set(OF_PROMETHEUS)
    for name, selector in re.findall(r"\b(holdfast_\w+)(\{[^}]*\})?", plain):
        if name not in known:
            unknown.append(name)
            continue
        labels |= known[name]
        matched = set(re.findall(r"(\w+) *(?:=~|!~|!=|=)", selector))
        unknown += [f"{name}{{{label}}}" for label in matched - known[name] - OF_PROMETHEUS]
    for grouped in re.findall(r"\b(?:by|on) \(([^)]*)\)", plain):
        unknown += [label for label in re.findall(r"\w+", grouped) if label not in labels]
    return unknown


def test_promtool_accepts_the_rules() -> None:
    promtool("check", "rules", RULES)


def test_promtool_accepts_the_example_of_a_configuration() -> None:
    promtool("check", "config", FOLDER / "prometheus.yml")


@pytest.mark.slow
def test_each_alert_fires_on_its_symptom_and_only_then() -> None:
    promtool("test", "rules", FOLDER / "holdfast.rules_test.yml")


def test_every_alert_has_unit_tests() -> None:
    tested = re.findall(
        r"^  - name: (\w+) (fires|stays quiet)$", (FOLDER / "holdfast.rules_test.yml").read_text(), re.M
    )
    assert sorted(tested) == sorted((alert, what) for alert in rules("alert") for what in ("fires", "stays quiet"))


def test_promtool_accepts_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    quoted = [
        f"      - {{record: 'panel:{number}', expr: {json.dumps(each)}}}"
        for number, each in enumerate(panel_expressions())
    ]
    checked = tmp_path / "panels.yml"
    checked.write_text("groups:\n  - name: panels\n    rules:\n" + "\n".join(quoted) + "\n")
    promtool("check", "rules", checked)


@pytest.mark.parametrize("expression", [*rule_expressions(), *panel_expressions()])
def test_expressions_name_metrics_and_labels_that_exist(expression: str) -> None:
    assert unknown_in(expression) == []


def test_names_that_do_not_exist_are_noticed() -> None:
    assert unknown_in("rate(holdfast_cats_total[5m])") == ["holdfast_cats_total"]
    assert unknown_in('holdfast_database_up{cat="1"} > 0') == ["holdfast_database_up{cat}"]
    assert unknown_in("sum by (cat) (holdfast_database_up)") == ["cat"]
    assert unknown_in("job:holdfast_cats:rate5m > 1") == ["job:holdfast_cats:rate5m"]


def test_all_expressions_are_found() -> None:
    assert len(rule_expressions()) == len(rules("record")) + len(rules("alert"))
    assert len(panel_expressions()) > 40


def test_every_metric_is_on_the_dashboard() -> None:
    shown = " ".join(panel_expressions())
    assert [
        name for name in {re.sub("_(bucket|sum|count)$", "", each) for each in series()} if name not in shown
    ] == []


def test_panels_do_not_overlap() -> None:
    taken = [panel["gridPos"] for panel in panels()]
    assert all(at["x"] + at["w"] <= GRID_COLUMNS for at in taken)
    cells = [
        (x, y) for at in taken for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells))


def test_panels_have_what_an_import_needs() -> None:
    found = panels()
    assert len({panel["id"] for panel in found}) == len(found)
    for panel in found:
        if panel["type"] == "row":
            continue
        parts = [panel, *panel["targets"]]
        assert all(part["datasource"] == {"type": "prometheus", "uid": "${datasource}"} for part in parts)
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]


def test_legends_name_labels_that_their_expressions_return() -> None:
    for target in (target for panel in panels() for target in panel.get("targets", ())):
        grouped = re.findall(r"\bby \(([^)]*)\)", target["expr"])
        if grouped:
            returned = {label for labels in grouped for label in re.findall(r"\w+", labels)} - {"le"}
        else:
            returned = OF_PROMETHEUS - {"le"}
        assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= returned, target["expr"]
