"""Training steps of the MNIST MLP on the lazy device against plain eager CPU, in one process, blocks in turn."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.machine import running_machine
from benchmarks.report import BenchmarkRow, in_short_form

if TYPE_CHECKING:
    from collections.abc import Callable

WARM_UP, BLOCKS, STEPS = in_short_form((30, 15, 150), (1, 1, 1))
# The checkout comes last, so that the installed package is what is measured.
_CHILD = f"""
import json, sys
sys.path.append({str(Path(__file__).parents[1])!r})
from benchmarks.mlp_steps import measure
print(json.dumps(measure()))
"""


def main() -> list[BenchmarkRow]:
    """Measure in a process of its own, one torch thread, and return the rows."""
    with running_machine("trn1.2xlarge") as environ:
        result = subprocess.run(
            [sys.executable, "-P", "-c", _CHILD],
            env={**environ, "OMP_NUM_THREADS": "1", "NEURON_CC_FLAGS": "--log_level=ERROR"},
            capture_output=True,
            encoding="utf-8",
            check=True,
        )
    found = json.loads(result.stdout)
    return [
        BenchmarkRow("MLP steps/s, device / eager CPU", found["ratio"], "x", "at least 0.3 x", found["ratio"] >= 0.3,
            f"median of {BLOCKS} interleaved block pairs of {STEPS} steps; losses equal: {found['equal']}"),
        BenchmarkRow.info("MLP steps on the device", found["device_steps_s"], "1/s"),
        BenchmarkRow.info("MLP steps on eager CPU", found["cpu_steps_s"], "1/s"),
    ]  # fmt: skip


def measure() -> dict[str, Any]:
    """Return the ratio of steps per second, both rates (medians over the blocks), and whether the losses are equal."""
    import torch

    from neurontools.xla import api

    api.activate()
    torch.set_num_threads(1)
    on_cpu, on_device = _trainer("cpu"), _trainer("xla")
    for _ in range(WARM_UP):
        losses = on_cpu(), on_device()
    cpu_s, device_s = [], []
    for _ in range(BLOCKS):
        cpu_s.append(_time(on_cpu))
        device_s.append(_time(on_device))
    losses = on_cpu(), on_device()
    return {
        "ratio": median(c / d for c, d in zip(cpu_s, device_s, strict=True)),
        "cpu_steps_s": STEPS / median(cpu_s),
        "device_steps_s": STEPS / median(device_s),
        "equal": losses[0].item() == losses[1].item(),
    }


def _time(step: Callable[[], Any]) -> float:
    start = time.perf_counter()
    for _ in range(STEPS):
        step()
    return time.perf_counter() - start


def _trainer(device: str) -> Callable[[], Any]:
    import torch
    from torch import nn

    from neurontools.xla import api

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(784, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10), nn.LogSoftmax(dim=1)
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss_of = nn.NLLLoss()
    images, labels = torch.randn(32, 784), torch.randint(0, 10, (32,))

    def step() -> Any:
        optimizer.zero_grad()
        loss = loss_of(model(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        if device != "cpu":
            api.mark_step()
        return loss

    return step
