"""Start-up is a feature: what a tool may load, and that torch is asked for only where it is needed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from neurontools import paths

HEAVY = {"torch", "numpy", "rich", "textual", "psutil", "yaml", "asyncio"}
HELP = [
    "neurond",
    "run",
    "customop",
    "cache",
    "profile",
    "top",
    "doctor",
    "completion",
    "demo",
    "link",
    "config",
]


def loaded_by(code: str) -> set[str]:
    """Return the top-level modules that are loaded after some code ran in a fresh Python."""
    report = "import sys, json; sys.stderr.write(json.dumps([*sys.modules]))"
    run = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=True
    )
    return {name.partition(".")[0] for name in json.loads(run.stderr.splitlines()[-1])}


@pytest.mark.parametrize("module", HELP)
def test_help_loads_nothing_heavy(module):
    code = (
        f"from neurontools.commands import {module} as command\n"
        "try:\n    command.main(['--help'])\nexcept SystemExit:\n    pass\n"
    )
    assert not (loaded_by(code) - loaded_by("pass")) & HEAVY


def test_the_library_root_loads_nothing():
    assert loaded_by("import neurontools, neurontools.env") - loaded_by("pass") == {"neurontools"}


@pytest.fixture
def without_torch(monkeypatch, home):
    """A Python environment in which torch cannot be imported."""
    (home / "hidden").mkdir()
    (home / "hidden" / "torch.py").write_text(
        'raise ModuleNotFoundError("No module named \'torch\'", name="torch")\n'
    )
    monkeypatch.setenv("PYTHONPATH", str(home / "hidden"))


@pytest.mark.usefixtures("without_torch")
def test_without_torch_the_machine_and_its_tools_work(tool):
    assert tool("neurond", "start").returncode == 0
    assert tool("neuron-ls").stdout.startswith("instance-type: trn1.2xlarge\n")
    assert tool("neuron-top", "--once").returncode == 0
    assert tool("neuron-cache", "stats", "--path").returncode == 0
    assert tool("neurond", "stop").returncode == 0


@pytest.mark.usefixtures("without_torch")
def test_without_torch_what_needs_it_says_how_to_get_it(tool, home):
    sample = Path(paths.fixtures_dir()) / "customops" / "relu_tcm"
    sources = ["--compute", str(sample / "relu.cpp"), "--shape", str(sample / "shape.cpp"), "-o", str(home)]
    assert tool("neuron-customop", "build", "relu", *sources).returncode == 0
    run = tool("neuron-customop", "run", str(home / "librelu.so"), "forward", "--input", "4x4:float32")
    assert run.returncode == 1
    assert "torch" in run.stderr.splitlines()[0]
    assert "pip install 'neurontools[torch]'" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.usefixtures("without_torch")
def test_without_torch_the_demo_says_how_to_get_it(tool):
    run = tool("neurontools", "demo")
    assert run.returncode == 1
    assert run.stdout == ""
    assert run.stderr.splitlines()[0] == "error: the demo needs torch: No module named 'torch'"
    assert "pip install 'neurontools[torch]'" in run.stderr


@pytest.mark.usefixtures("without_torch")
@pytest.mark.parametrize("module", ["torch_xla.core.xla_model", "torch_neuronx"])
def test_without_torch_a_script_fails_with_the_way_to_get_it(tool, module):
    run = tool("neuron-run", "--", "python", "-c", f"import {module}")
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1].startswith("ModuleNotFoundError: No module named 'torch': pip install")
