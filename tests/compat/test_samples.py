"""The samples: they print on the device what they print on the CPU, and compile nothing new after the second step."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from neurontools import fixtures
from neurontools.machine.launch import start
from neurontools.machine.machine_config import StartOptions

pytestmark = pytest.mark.torch
SAMPLES = Path(fixtures.__path__[0]) / "samples"
NUMBER = re.compile(r"-?\d+\.\d+")
OF_CPU_PARTS = ["--backend", "aot_eager"]  # not inductor, which needs a C++ compiler and up to a minute
RUNS = {
    "bert": ["bert"],
    "bert openxla": ["bert", "--backend", "openxla"],
    "cnn": ["cnn"],
    "cnn openxla": ["cnn", "--backend", "openxla"],
    "compile_cpu": ["compile_cpu", *OF_CPU_PARTS],
    "gnn": ["gnn"],
    "gnn openxla": ["gnn", "--backend", "openxla"],
    "lstm": ["lstm"],
    "lstm openxla": ["lstm", "--backend", "openxla"],
    "nanogpt": ["nanogpt"],
    "nanogpt openxla": ["nanogpt", "--backend", "openxla"],
    "quantize": ["quantize"],
    "unet": ["unet"],
    "unet openxla": ["unet", "--backend", "openxla"],
}
ON_CPU = {
    name: [name, "--device", "cpu", *(OF_CPU_PARTS if name == "compile_cpu" else [])]
    for name in sorted({command[0] for command in RUNS.values()})
}
FALLBACKS = {"quantize": ["quantized::linear_dynamic"]}
LAST_BITS = {"lstm"}
"""Samples with layers whose biases torch adds in another order on devices (docs/explanation/xla-device.md)."""

RUN_ALL = """
import contextlib, io, json, runpy, sys, traceback
import torch_xla.debug.metrics as met

class Lines(io.StringIO):
    def __init__(self):
        super().__init__()
        self.lines, self.graphs = [], []

    def write(self, text):
        if text.strip():
            self.lines.append(text.strip())
            self.graphs.append((met.metric_data("CompileTime") or [0])[0])
        return len(text)

def run(name, *arguments):
    met.clear_all()
    out, error, sys.argv = Lines(), "", [f"{sys.path[0]}/{name}.py", *arguments]
    try:
        with contextlib.redirect_stdout(out):
            runpy.run_path(sys.argv[0], run_name="__main__")
    except Exception:
        error = traceback.format_exc()
    return {
        "lines": out.lines,
        "graphs": out.graphs,
        "executions": (met.metric_data("ExecuteTime") or [0])[0],
        "fallbacks": [name for name in met.counter_names() if "::" in name and name != "aten::_local_scalar_dense"],
        "error": error,
    }

folder, commands = sys.argv[1:]
sys.path.insert(0, folder)
json.dump([run(*command) for command in json.loads(commands)], open("done.json", "w"))
"""

_done: dict[str, Any] = {}


@pytest.fixture
def done(tool: Any, torch_python: str, home: Path) -> dict[str, Any]:
    """What each run printed: a process of its own for each would spend its time on starting torch."""
    if not _done:
        start(StartOptions(machine="default", instance_type="trn1.2xlarge"))
        (home / "run_all.py").write_text(RUN_ALL)
        commands = {**{f"{name} cpu": command for name, command in ON_CPU.items()}, **RUNS}
        listed = json.dumps(list(commands.values()))
        run = tool(
            "neuron-run", "--", torch_python, "-W", "ignore", "run_all.py", str(SAMPLES), listed, timeout=280
        )
        assert run.returncode == 0, run.stderr
        _done.update(zip(commands, json.loads((home / "done.json").read_text()), strict=True))
    return _done


@pytest.mark.parametrize("name", RUNS)
def test_a_sample_prints_on_the_device_what_it_prints_on_the_cpu(done, name):
    sample = RUNS[name][0]
    on_cpu, on_device = done[f"{sample} cpu"], done[name]
    assert on_cpu["error"] == on_device["error"] == ""
    if sample not in LAST_BITS:
        assert on_device["lines"] == on_cpu["lines"]
    for line, expected in zip(on_device["lines"], on_cpu["lines"], strict=True):
        assert NUMBER.sub("#", line) == NUMBER.sub("#", expected)
        assert [float(number) for number in NUMBER.findall(line)] == pytest.approx(
            [float(number) for number in NUMBER.findall(expected)], abs=2e-6
        )


@pytest.mark.parametrize("name", RUNS)
def test_a_sample_compiles_nothing_new_after_its_second_step(done, name):
    run = done[name]
    steps = [
        graphs for line, graphs in zip(run["lines"], run["graphs"], strict=True) if line.startswith("step")
    ]
    assert len(steps) >= 4
    assert steps[1:] == [steps[1]] * len(steps[1:])
    assert run["fallbacks"] == FALLBACKS.get(RUNS[name][0], [])


@pytest.mark.parametrize("sample", sorted({name.removesuffix(" openxla") for name in RUNS if " " in name}))
def test_graphs_of_openxla_are_executions_of_their_own(done, sample):
    # TorchDynamo leaves layers like nn.LSTM to eager torch.
    assert (done[f"{sample} openxla"]["executions"] > done[sample]["executions"]) == (sample != "lstm")


def test_every_sample_is_run():
    elsewhere = {"slow_gpt", "serve_llm"}  # tests/profiler/advice/test_session.py, tests/compat/test_nxd.py
    assert {path.stem for path in SAMPLES.glob("*.py")} - elsewhere == set(ON_CPU)
