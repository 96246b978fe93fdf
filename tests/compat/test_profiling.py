"""Profiles that a program starts and stops itself."""

from __future__ import annotations

import json
import textwrap

import pytest

from neurontools.machine.launch import start
from neurontools.machine.machine_config import StartOptions

pytestmark = pytest.mark.torch

SCRIPT = """
    import torch, torch_neuronx, torch_xla
    import torch_xla.debug.profiler as xp
    from torch_neuronx.experimental import profiler

    assert torch_neuronx.utils.get_platform_target() == "trn1"
    x = torch.ones(3).to("xla")

    def step(times):
        for _ in range(times):
            y = x + 2
            torch_xla.sync()

    step(2)
    with profiler.profile(neuron_tensorboard_plugin_dir="plugin", profile_type="operator"):
        step(3)
    step(1)
    xp.start_trace("trace")
    try:
        xp.start_trace("other")
    except RuntimeError as error:
        print(error)
    y = x + 2
    xp.stop_trace()
    try:
        xp.stop_trace()
    except RuntimeError as error:
        print(error)

    from torch.profiler import ProfilerActivity, profile
    from torch_neuronx.profiling import NeuronConfig, NeuronProfiler, ProfileMode

    config = NeuronConfig(modes=[ProfileMode.DEVICE, ProfileMode.RUNTIME], profile_output_dir="config")
    activities = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
    ready = NeuronProfiler(config).export_trace
    with profile(activities=activities, experimental_config=config, on_trace_ready=ready):
        step(2)
    step(1)
"""


def test_only_what_runs_within_is_recorded(tool, torch_python, home):
    start(StartOptions(machine="default", instance_type="trn1.2xlarge"))
    (home / "train.py").write_text(textwrap.dedent(SCRIPT))
    run = tool("neuron-run", "--", torch_python, "train.py", cwd=home)
    assert run.stdout.splitlines() == [
        "Profile has already been started. Only one profile may be run at a time.",
        "No profile started",
    ]
    (of_process,) = (home / "config").iterdir()  # several workers may profile into one directory
    assert any(event.get("args", {}).get("modelled") for event in chrome_events(of_process / "trace.json"))
    for directory, runs in (("plugin", 3), ("trace", 1), ("config", 2)):
        found = json.loads(tool("neuron-profile", "summary", "--json", directory, cwd=home).stdout)
        assert [core["modelled"]["trace_count"] for core in found["cores"]] == [runs]


def chrome_events(path):
    return json.loads(path.read_text())["traceEvents"]
