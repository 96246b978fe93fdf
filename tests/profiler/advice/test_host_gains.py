"""Gains of the rules about the host, held against a run without the fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from neurontools.machine.launch import start
from neurontools.machine.machine_config import StartOptions
from neurontools.profiler.analysis.steps import find_steps
from neurontools.profiler.trace.open import load

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from neurontools.profiler.analysis.steps import StepSummary

pytestmark = [pytest.mark.torch, pytest.mark.slow]
PROGRAM = Path(__file__).with_name("host_variants.py")
LATE_NS, BUSY_NS = 16 * 20_000_000, 300_000_000


def test_what_the_host_costs_is_what_a_run_without_it_saves(
    home: Path, tool: Callable[..., subprocess.CompletedProcess[str]], torch_python: str
) -> None:
    start(StartOptions(machine="default", instance_type="trn1.2xlarge"))
    done = tool("neuron-run", "--", torch_python, str(PROGRAM))
    assert done.returncode == 0, done.stderr
    reports = {
        name: json.loads(tool("neuron-profile", "advise", name, "--json").stdout)
        for name in ("plain", "cut", "late", "busy", "shapes")
    }
    steps = {name: summary_of(home / name) for name in reports}

    def advice(name: str, rule: str) -> dict[str, Any] | None:
        return next((each for each in reports[name]["advice"] if each["rule"] == rule), None)

    def gain_ns(name: str, rule: str) -> int:
        found = advice(name, rule)
        assert found is not None
        gain: int = found["gain"]["ns"]
        return gain

    cut_ns = reports["cut"]["step_ns"] - reports["plain"]["step_ns"]
    # What the cut stores and loads comes on top of the launch.
    assert 0.7 * cut_ns < gain_ns("cut", "graph-cuts") <= cut_ns
    assert advice("plain", "graph-cuts") is None

    assert gain_ns("late", "input-stalls") >= LATE_NS
    saved_ns = steps["late"].idle_ns - steps["plain"].idle_ns
    assert gain_ns("late", "input-stalls") == pytest.approx(saved_ns, rel=0.5)

    saved_ns = steps["busy"].idle_ns - steps["plain"].idle_ns
    assert gain_ns("busy", "host-bound") >= BUSY_NS
    assert gain_ns("busy", "host-bound") == pytest.approx(saved_ns, rel=0.5)

    assert gain_ns("shapes", "recompiles") > 0
    assert advice("plain", "recompiles") is None
    assert steps["plain"].compile_ns == 0
    # Compiles are no reason to tell the host to do less.
    assert advice("shapes", "host-bound") is None


def summary_of(profile: Path) -> StepSummary:
    (steps,) = find_steps(load(str(profile)))
    return steps.summary()
