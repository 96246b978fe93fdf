"""The alert rules for Prometheus: a valid rule file about metrics and labels that the exporter serves.

The page about neuron-monitor says what the code does.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from neurontools.commands import monitor, monitor_prometheus
from neurontools.monitor.config import parse_config
from neurontools.monitor.processes import KEYS
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


PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "neuron-monitor.md").read_text()


def test_the_table_of_statuses_is_the_codes():
    rows = re.findall(r"^\| (\d+) `(NRT_\w+)` \| `(\w+)` \| (?:`(\w+)`|-) \|$", PAGE, re.MULTILINE)
    assert rows == [
        (str(int(status)), status.name, str(keys.outcome), str(keys.error or ""))
        for status, keys in KEYS.items()
    ]


def test_the_configuration_on_the_page_has_no_mistakes():
    text = PAGE.partition("```json\n")[2].partition("```")[0]
    config, problems = parse_config(text, "page")
    assert problems == ()
    assert sorted(config.periods().values()) == [0.5, 1, 1, 2, 10]


def test_every_metric_family_is_on_the_page():
    for name, (kind, _) in FAMILIES.items():
        if name.endswith("_created"):
            continue
        full = f"{name}_total" if kind == "counter" else name
        assert f"`{full}`" in PAGE or f"`_{full.removeprefix('neuroncore_memory_usage_')}`" in PAGE, full


def test_every_option_is_on_the_page():
    for command in (monitor, monitor_prometheus):
        for action in command.build_parser()._actions:
            for option in action.option_strings:
                if option not in {"-h", "--help", "--config-file", "--port"}:
                    assert option in PAGE, option
