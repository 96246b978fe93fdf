"""The Grafana dashboard: it can be imported, and every query in it has data on a busy machine."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from neurontools.machine import launch
from neurontools.machine.client import Client
from neurontools.machine.machine_config import StartOptions
from tests.monitor.conftest import EVERYTHING
from tests.monitor.test_exporter import FAMILIES

DASHBOARD = json.loads((Path(__file__).parents[2] / "fixtures" / "grafana" / "neuron.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
VARIABLES = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
QUERIES = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
QUERIES += [
    (name, variable["query"]["query"]) for name, variable in VARIABLES.items() if variable["type"] == "query"
]
SELECTOR = re.compile(r"([a-z_]+)\{([^}]*)\}")
MATCHER = re.compile(r'([a-z_]+)(=~|=)"([^"]*)"')
GROUPING = re.compile(r"by \(([^)]*)\)")
LEGEND = re.compile(r"\{\{(\w+)\}\}")


def selectors(query):
    """Metric names of a query with their label matchers."""
    plain = query.replace("label_values(instance_info,", "label_values(instance_info{},")
    return [(name, MATCHER.findall(matchers)) for name, matchers in SELECTOR.findall(plain)]


def matches(sample, matchers):
    for label, operator, wanted in matchers:
        if wanted.startswith("$"):
            assert wanted[1:] in VARIABLES
            if not sample.labels.get(label):
                return False
        elif not re.fullmatch(
            wanted if operator == "=~" else re.escape(wanted), sample.labels.get(label, "")
        ):
            return False
    return True


def test_every_query_has_data_on_a_busy_machine(program, worker, config):
    launch.start(StartOptions("default", "trn1.32xlarge"))
    with Client.connect() as client:
        client.inject("link-down", device=2, to=3)
    job = worker(NEURON_RT_NUM_CORES="1", NEURON_PROCESS_TAG="bert")
    path = config(period="100ms", **EVERYTHING)
    monitor = program("neuron-monitor", "-c", path, "--prometheus", "127.0.0.1:0")
    port = int(monitor.line().split()[-1])
    missing = [query for _, query in QUERIES]
    for _ in range(400):
        job.run(seconds=0.01)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            text = answer.read().decode()
        found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        missing = [
            (name, matchers)
            for _, query in QUERIES
            for name, matchers in selectors(query)
            if not any(sample.name == name and matches(sample, matchers) for sample in found)
        ]
        if not missing:
            break
    assert missing == []
    for title, query in QUERIES:
        labels = {label.strip() for group in GROUPING.findall(query) for label in group.split(",")}
        for name, _ in selectors(query):
            of_metric = {label for sample in found if sample.name == name for label in sample.labels}
            assert labels <= of_metric, title


def test_every_query_names_a_metric():
    assert all(selectors(query) for _, query in QUERIES)
    assert len(QUERIES) > 20


def test_every_metric_family_is_shown():
    shown = {name.removesuffix("_total") for _, query in QUERIES for name, _ in selectors(query)}
    left_out = {name for name in FAMILIES if not name.endswith("_created")} - shown
    assert left_out == {"system_vcpu_count"}


def test_legends_name_labels_that_the_query_keeps():
    for panel in PANELS:
        for target in panel["targets"]:
            kept = {label.strip() for group in GROUPING.findall(target["expr"]) for label in group.split(",")}
            if kept:
                assert set(LEGEND.findall(target["legendFormat"])) <= kept, panel["title"]


def test_it_can_be_imported():
    assert DASHBOARD["schemaVersion"] >= 36
    assert DASHBOARD["id"] is None
    assert list(VARIABLES) == ["datasource", "instance", "runtime_tag"]
    identifiers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(identifiers)) == len(identifiers)
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in PANELS)
    assert all(
        target["datasource"]["uid"] == "${datasource}" for panel in PANELS for target in panel["targets"]
    )


def test_no_two_panels_overlap():
    cells = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not own & cells, panel["title"]
        cells |= own
