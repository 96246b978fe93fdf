"""The alert rules for Prometheus: a valid rule file about metrics and labels that the exporter serves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from neurontools.monitor.report import DEVICE_ERROR_KINDS, ErrorSummary, ExecutionSummary, Percentiles
from tests.monitor.test_exporter import BASE, FAMILIES

RULES = yaml.safe_load(
    (Path(__file__).parents[2] / "fixtures" / "prometheus" / "neuron.rules.yaml").read_text()
)
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]
FUNCTIONS = {
    "absent",
    "increase",
    "rate",
    "sum",
    "count",
    "max",
    "max_over_time",
    "by",
    "unless",
    "and",
    "on",
}
NAME = re.compile(r"[a-z_]+")
MATCHER = re.compile(r'([a-z_]+)(=~|!=|=)"([^"]*)"')
VALUES = {
    "event_type": set(DEVICE_ERROR_KINDS),
    "error_type": set(ErrorSummary.__slots__),
    "status_type": set(ExecutionSummary.__slots__),
    "percentile": set(Percentiles.__slots__),
}


def metrics(expression: str) -> set[str]:
    """Metric names of an expression: what is left without selectors, groupings, ranges and functions."""
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|(?:by|on) \([^)]*\)", "", expression)
    return set(NAME.findall(bare)) - FUNCTIONS


def labels(expression: str) -> set[str]:
    grouped = {
        name.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for name in group.split(",")
    }
    return grouped | {label for label, _, _ in MATCHER.findall(expression)}


def test_the_file_has_the_shape_of_a_rule_file():
    assert set(RULES) == {"groups"}
    for group in RULES["groups"]:
        assert set(group) == {"name", "rules"}
    assert len({rule["alert"] for rule in ALERTS}) == len(ALERTS) == 11


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
class TestAlert:
    def test_has_what_promtool_asks_for(self, rule):
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"[A-Za-z]+", rule["alert"])
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "1s"))
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert all(isinstance(rule["annotations"][name], str) for name in ("summary", "description"))
        assert rule["expr"].count("(") == rule["expr"].count(")")

    def test_asks_for_metrics_that_are_served(self, rule):
        families = {name.removesuffix("_total") for name in metrics(rule["expr"])}
        assert families
        assert families <= set(FAMILIES)
        known = BASE.union(*(FAMILIES[name][1] for name in families))
        assert labels(rule["expr"]) <= known
        shown = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        assert shown <= known

    def test_asks_for_label_values_that_exist(self, rule):
        for label, _, pattern in MATCHER.findall(rule["expr"]):
            assert set(pattern.split("|")) <= VALUES[label]
