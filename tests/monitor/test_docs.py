"""The page about neuron-monitor says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from neurontools.commands import monitor, monitor_prometheus
from neurontools.monitor.config import parse_config
from neurontools.monitor.processes import KEYS
from tests.monitor.test_exporter import FAMILIES

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
