"""docs/metrics.md lists the metrics as the code declares them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from prometheus_client.metrics import MetricWrapperBase

from holdfast.telemetry import metrics
from holdfast.telemetry.metrics.batched_histogram import BatchedHistogram

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text("utf-8")


class Listed(NamedTuple):
    """One row of the page."""

    name: str
    kind: str
    labels: str
    meaning: str


def declared() -> dict[str, MetricWrapperBase]:
    return {name: found for name, found in vars(metrics).items() if isinstance(found, MetricWrapperBase)}


def row_of(metric: MetricWrapperBase) -> Listed:
    name = f"{metric._name}_total" if metric._type == "counter" else metric._name
    return Listed(
        name, str(metric._type), ", ".join(f"`{label}`" for label in metric._labelnames), metric._documentation
    )


def test_the_page_lists_every_metric_as_it_is() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) ?\| (.+) \|$", PAGE, re.MULTILINE)
    listed = sorted(map(Listed._make, rows))
    assert listed == sorted(map(row_of, declared().values()))


def test_names_end_in_their_unit() -> None:
    for metric in declared().values():
        assert metric._name.startswith("holdfast_")
        if metric._type == "histogram":
            assert metric._name.endswith(("_seconds", "_units")), metric._name


def test_batched_histograms_are_flushed() -> None:
    batched = {found for found in declared().values() if isinstance(found, BatchedHistogram)}
    assert batched == set(metrics.BATCHED)
