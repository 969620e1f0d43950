"""Names of metrics are the same in the code, on the page and on the Grafana board."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from dispatch_expectations.metrics import METRICS, PREFIX, Metric
from tests.checkout import ROOT

BOARD = json.loads((ROOT / "docs" / "grafana" / "dispatch-audit.json").read_text("utf-8"))
PAGE = (ROOT / "docs" / "observe.md").read_text("utf-8")
BY_NAME = {metric.prometheus_name: metric for metric in METRICS}


def queries() -> list[str]:
    return [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]


def metrics_of(query: str) -> list[tuple[str, str]]:
    """List the metrics that a query names, each with its selector of labels."""
    return re.findall(r"\$\{prefix\}(dispatch_audit_\w+)(\{[^}]*\})?", query)


def metric_of(name: str) -> Metric | None:
    """Find a metric; a counter has the ending ``_total`` if it comes from an OpenTelemetry collector."""
    metric = BY_NAME.get(name.removesuffix("_total"))
    return metric if metric is None or metric.kind == "counter" or name in BY_NAME else None


@pytest.mark.parametrize("query", queries())
def test_the_board_asks_only_for_metrics_and_labels_that_exist(query):
    named = metrics_of(query)
    assert len(named) == query.count("dispatch_audit_"), "every name has the prefix of the source"
    assert named
    for name, selector in named:
        metric = metric_of(name)
        assert metric is not None, name
        labels = re.findall(r"(\w+)=", selector)
        grouped = re.findall(r"by \((\w+)\)", query)
        assert {*labels, *grouped} <= set(metric.labels), name


@pytest.mark.parametrize(
    "query", ["max(${prefix}dispatch_audit_verdict)", "${prefix}dispatch_audit_lag_seconds_total"]
)
def test_a_name_that_does_not_exist_is_found(query):
    assert [metric_of(name) for name, _ in metrics_of(query)] == [None]


def test_the_board_shows_every_metric():
    shown = {name.removesuffix("_total") for query in queries() for name, _ in metrics_of(query)}
    assert shown == set(BY_NAME)


def test_the_board_can_be_imported():
    panels: list[dict[str, Any]] = BOARD["panels"]
    assert {panel["datasource"]["uid"] for panel in panels} == {"${datasource}"}, "chosen at the import"
    assert {variable["name"] for variable in BOARD["templating"]["list"]} == {"datasource", "prefix"}
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for grid in (panel["gridPos"] for panel in panels)
        for x in range(grid["x"], grid["x"] + grid["w"])
        for y in range(grid["y"], grid["y"] + grid["h"])
    ]
    assert len(cells) == len(set(cells)), "panels lie on each other"
    assert max(x for x, _y in cells) < 24
    assert "id" not in BOARD, "Grafana gives it a number of its own"


def test_the_page_lists_every_metric_with_its_unit_and_labels():
    rows = {
        cells[0].strip("`"): cells[1:]
        for line in PAGE.splitlines()
        if line.startswith(f"| `{PREFIX}")
        for cells in [[cell.strip() for cell in line.strip("|").split("|")]]
    }
    assert {name: (cells[0], cells[1]) for name, cells in rows.items()} == {
        metric.full_name: (metric.unit, ", ".join(f"`{label}`" for label in metric.labels))
        for metric in METRICS
    }
    assert {name for name, cells in rows.items() if "file" in cells[2]} == {
        metric.full_name for metric in METRICS if metric.only_in_file
    }
