"""A worker of `benchmarks/workers.py`: trains each model in four ways in turn; rank 0 prints the times as JSON.

The ways are eager torch and the device, each alone and with the gradients of all workers: torch's
DistributedDataParallel over gloo, and `xm.optimizer_step`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_backend  # noqa: F401
from torch import nn
from torch.nn import functional

sys.path.append(str(Path(__file__).parents[1]))

from benchmarks.report import in_short_form
from benchmarks.training_models import MODELS, Model

if TYPE_CHECKING:
    from collections.abc import Callable

WARM_UP, BLOCKS = in_short_form((5, 9), (1, 1))
WAYS = ("eager", "device", "gloo", "workers")


def trainer(make: Callable[[], Model], way: str) -> Callable[[], Any]:
    """Return a function that does one step of training."""
    torch.manual_seed(0)
    model, inputs, targets, _ = make()
    device = "cpu" if way in {"eager", "gloo"} else "xla"
    model = model.to(device)
    if way == "gloo":
        model = nn.parallel.DistributedDataParallel(model, process_group=gloo)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        scores = model(inputs.to(device))
        loss = functional.cross_entropy(scores.flatten(0, -2), targets.to(device).flatten())
        loss.backward()
        if way == "workers":
            xm.optimizer_step(optimizer)
        else:
            optimizer.step()
        if device == "xla":
            xm.mark_step()
        return loss

    return step


def measure(step: Callable[[], Any], count: int) -> tuple[float, float]:
    """Return the CPU time and the wall time of a step, in seconds."""
    dist.barrier()
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    for _ in range(count):
        step()
    return (time.process_time() - cpu_s) / count, (time.perf_counter() - wall_s) / count


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("xla")
    gloo = dist.new_group(backend="gloo")
    found: dict[str, Any] = {}
    for make in MODELS.values():
        steps = {way: trainer(make, way) for way in WAYS}
        for _ in range(WARM_UP):
            losses = {way: step().item() for way, step in steps.items()}
        blocks = [{way: measure(step, make()[3]) for way, step in steps.items()} for _ in range(BLOCKS)]
        found[make.__name__] = {"blocks": blocks, "equal": len(set(losses.values())) == 1}
    if dist.get_rank() == 0:
        json.dump(found, sys.stdout)
    dist.barrier()
