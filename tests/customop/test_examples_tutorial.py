"""The tutorial of the samples: its program runs, its numbers are true, its table names every operator."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "fixtures" / "customops"
TUTORIAL = (ROOT / "docs" / "tutorials" / "custom-operators.md").read_text()


def test_the_program_runs(home: Path, torch_python: str) -> None:
    place = home / "customops"
    shutil.copytree(SAMPLES, place, ignore=shutil.ignore_patterns("__pycache__"))
    (program,) = re.findall(r"```python\n(.*?)```", TUTORIAL, re.DOTALL)
    (place / "tutorial.py").write_text(program)
    run = subprocess.run(
        [torch_python, "tutorial.py"], cwd=place, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("tensor([-0.0794, -0.3333]")


@pytest.mark.slow
def test_operators_and_kernels_have_the_times_of_the_page(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = re.findall(r"^```\n(\$ [^`]*compare_nki[^`]*)^```", TUTORIAL, re.MULTILINE)
    commands = [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]
    printed = [line for line in block.splitlines() if not line.startswith("$ ")]
    shutil.copytree(SAMPLES, home / "customops", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("NEURONTOOLS_AUTOSTART", "1")
    done = subprocess.run(
        ["bash", "-ec", "\n".join(commands)],
        cwd=home / "customops",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-len(printed) :] == printed


def test_the_modelled_times_are_those_of_the_cost_model() -> None:
    from neurontools.gpsimd import rates

    numel = 32 * 4096
    tcm_ns = rates().transfer_ns(2 * numel * 4)
    launch_ns = rates().launch_ns
    assert f"| TCM | {(launch_ns + tcm_ns) / 1e6:.3f} ms |" in TUTORIAL
    assert f"| TCM, eight cores | {(launch_ns + tcm_ns / 8) / 1e6:.3f} ms |" in TUTORIAL
    returned_ns = rates().move_latency_ns + 4 * numel * rates().move_ns_per_byte
    elements_ns = 2 * numel * rates().element_access_ns
    assert f"| element accessor | {(launch_ns + elements_ns + returned_ns) / 1e6:.1f} ms |" in TUTORIAL


def test_the_table_names_every_operator_of_every_sample() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", TUTORIAL, re.MULTILINE))
    samples = {path.parent.name: path.read_text() for path in SAMPLES.glob("*/shape.cpp")}
    samples = {name: text for name, text in samples.items() if "@" not in text}  # templates of new projects
    assert rows.keys() == samples.keys()
    for name, text in samples.items():
        operators = re.findall(r'm\.def\("(\w+)"', text)
        assert rows[name] in (", ".join(f"`{each}`" for each in operators), "the same")
