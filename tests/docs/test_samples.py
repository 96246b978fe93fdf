"""neurontools new sample, and the pages that use it: their commands run in an empty directory."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from neurontools import fixtures

DOCS = Path(__file__).parents[2] / "docs"
FIXTURES = Path(fixtures.__path__[0])
PROGRAMS = {path.stem for path in (FIXTURES / "samples").glob("*.py")} | {"native"}
KERNELS = {path.parent.name for path in (FIXTURES / "customops").glob("*/shape.cpp")}


@pytest.fixture
def empty(home, monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    directory = home / "empty"
    directory.mkdir()
    monkeypatch.chdir(directory)
    return directory


def run(command: str) -> str:
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def block(page: str, mark: str) -> list[str]:
    """Return the commands of the first block of a page that has a text."""
    blocks = re.findall(
        r"^```(?:sh)?\n(.*?)^```", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    lines = next(found for found in blocks if mark in found).splitlines()
    prompted = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    return prompted or lines


def test_the_list_has_every_sample(tool, empty):
    listed = [
        line.split("  ")[0].strip() for line in tool("neurontools", "new", "sample").stdout.splitlines()
    ]
    assert set(listed) == PROGRAMS | KERNELS | {"customops"}
    assert len(listed) == len(set(listed))


def test_every_sample_is_written_as_it_is_installed(tool, empty):
    written = set()
    for name in (*sorted(PROGRAMS), *sorted(KERNELS)):
        written |= set(tool("neurontools", "new", "sample", name).stdout.splitlines())
    assert {path.relative_to(empty).as_posix() for path in empty.rglob("*") if path.is_file()} == written
    for name in written:
        home = "samples" if name.endswith(".py") else "customops"
        assert (empty / name).read_bytes() == (FIXTURES / home / name).read_bytes()
    every = tool("neurontools", "new", "sample", "customops").stdout.splitlines()
    assert {"customops/operators.py", "customops/tcm_block.hpp", "customops/giou/giou.cpp"} <= set(every)
    assert not any("project/" in name or "__pycache__" in name for name in every)


@pytest.mark.parametrize(
    ("name", "file"), [("lstm", "lstm.py"), ("native", "native/train.py"), ("giou", "tcm_block.hpp")]
)
def test_nothing_is_replaced(tool, empty, name, file):
    (empty / file).parent.mkdir(exist_ok=True)
    (empty / file).write_text("mine")
    before = sorted(empty.rglob("*"))
    done = tool("neurontools", "new", "sample", name)
    assert (done.returncode, done.stderr) == (
        1,
        f"error: {file} already exists\nhint: change to another directory\n",
    )
    assert (empty / file).read_text() == "mine"
    assert sorted(empty.rglob("*")) == before


def test_unknown_samples(tool, empty):
    done = tool("neurontools", "new", "sample", "gpt5")
    assert done.returncode == 2
    assert done.stderr.startswith("error: no sample gpt5\nhint: one of ")


@pytest.mark.torch
@pytest.mark.parametrize(
    ("page", "mark"), [("how-to/slow-steps.md", "--profile slow"), ("how-to/native.md", "--mode compile")]
)
def test_the_commands_of_a_page_run_in_an_empty_directory(empty, page, mark, monkeypatch):
    monkeypatch.setenv("NEURONTOOLS_AUTOSTART", "1")
    for command in block(page, mark):
        run(command)


def test_the_commands_of_the_tutorial_run_in_an_empty_directory(empty):
    build, _ = block("tutorials/custom-operators.md", "relu_element && neuron-customop build")
    run(" && ".join((*block("tutorials/custom-operators.md", "new sample customops"), build)))
    assert (empty / "customops" / "relu_element" / "librelu_element.so").is_file()


def test_rules_and_dashboard_are_printed(tool, empty):
    rules = tool("neuron-monitor-prometheus", "--print-rules").stdout
    assert rules == (FIXTURES / "prometheus" / "neuron.rules.yaml").read_text(encoding="utf-8")
    assert yaml.safe_load(rules)["groups"]
    assert json.loads(tool("neuron-monitor-prometheus", "--print-dashboard").stdout)["panels"]
    both = tool("neuron-monitor-prometheus", "--print-rules", "--print-dashboard")
    assert both.returncode == 2
