"""Advice on stragglers, held against a real run: a core becomes slow in the middle of the training of two workers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from neurontools.machine.client import Client
from neurontools.machine.launch import start
from neurontools.machine.machine_config import StartOptions
from neurontools.profiler.analysis.steps import find_steps
from neurontools.profiler.trace.open import load

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

pytestmark = [pytest.mark.torch, pytest.mark.slow]
WORKER = Path(__file__).with_name("worker_steps.py")
FAST, SLOW = range(4, 12), range(14, 24)


def test_the_gain_of_a_straggler_is_what_the_run_without_it_takes_less(
    home: Path, tool: Callable[..., subprocess.CompletedProcess[str]], torch_python: str
) -> None:
    start(StartOptions(machine="default", instance_type="trn1.2xlarge"))
    with Client.connect() as client:
        client.inject("slow-core", core=1, factor=10.0, after_executions=FAST.stop)
    torchrun = (torch_python, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    environ = {**os.environ, "PYTHON_EXEC": torch_python}
    done = tool("neuron-run", "--profile", "prof", "--", *torchrun, str(WORKER), env=environ)
    assert done.returncode == 0, done.stderr
    advised = tool("neuron-profile", "advise", "prof", "--steps", f"{SLOW.start}-{SLOW.stop - 1}", "--json")
    (found,) = (each for each in json.loads(advised.stdout)["advice"] if each["rule"] == "stragglers")
    assert found["title"] == "Rebalance the work: the others wait for rank 1"
    fast_ns, slow_ns = (median_step_ns(home / "prof", steps) for steps in (FAST, SLOW))
    assert found["gain"]["ns"] == pytest.approx(slow_ns - fast_ns, rel=0.5)


def median_step_ns(profile: Path, steps: range) -> float:
    """Return the time of a step of the slowest worker."""
    workers: list[Any] = find_steps(load(str(profile)))
    assert [worker.rank for worker in workers] == [0, 1]
    numbers = np.array(steps)
    return max(float(np.median(worker.duration_ns[numbers - worker.first_number])) for worker in workers)
