"""The workflow of the CI page works: its commands are run in order, with the test file that the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.pytest.conftest import UNUSED

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "ci.md").read_text()
BIN = str(Path(sys.executable).parent)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def commands(block: str) -> list[str]:
    steps = yaml.safe_load(block)
    if isinstance(steps, dict):
        steps = steps["jobs"]["test"]["steps"]
    return [step["run"] for step in steps if "run" in step]


def run(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=600)


@pytest.fixture(autouse=True)
def path(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Find our commands, without an installation: everything is there already."""
    monkeypatch.setenv("PATH", BIN + os.pathsep + os.environ["PATH"])
    (home / "train.py").write_text("print('trained')\n")


def test_the_workflow(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in yaml.safe_load(blocks("yaml")[0])["jobs"]["test"]["env"].items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTEST_ADDOPTS", " ".join(f"-p no:{name}" for name in UNUSED))
    (home / "tests").mkdir()
    (home / "tests" / "test_exporter.py").write_text(blocks("python")[0])
    for command in commands(blocks("yaml")[0]):
        if command.startswith("pip install"):
            continue
        done = run(command)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        if command.startswith("pytest"):
            assert "2 passed" in done.stdout
    assert '"neuron_hardware_info"' in (home / "report.json").read_text()


@pytest.mark.parametrize("index", [1, 2, 3])
def test_the_other_steps(index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURONTOOLS_AUTOSTART", "1")
    for command in commands(blocks("yaml")[index]):
        if not command.startswith("pip install"):
            done = run(command.replace("--duration 60s", "--duration 2s"))
            assert done.returncode == 0, (command, done.stdout, done.stderr)


def test_every_step_is_run() -> None:
    assert [len(commands(block)) for block in blocks("yaml")] == [7, 2, 1, 1]
