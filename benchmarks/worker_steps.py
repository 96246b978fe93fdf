"""A worker of `benchmarks/workers.py`: trains each model in four ways in turn; rank 0 prints the times as JSON.

The ways are eager torch and the device, each alone and with the gradients of all workers: torch's
DistributedDataParallel over gloo, and `xm.optimizer_step`.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_backend  # noqa: F401
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCKS = 9
WAYS = ("eager", "device", "gloo", "workers")
Model = tuple[nn.Module, torch.Tensor, torch.Tensor, int]


class Attention(nn.Module):
    """A block of a GPT: attention and two layers, each with its norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.inputs, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        parts = self.inputs(self.norms[0](x)).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        found = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(found.transpose(1, 2).flatten(2))
        return x + self.layers(self.norms[1](x))


def mlp() -> Model:
    """Return the MLP of the MNIST tutorial, its batch, and the steps of a block."""
    layers = nn.Linear(784, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)
    return nn.Sequential(*layers), torch.randn(32, 784), torch.randint(0, 10, (32,)), 60


def cnn() -> Model:
    """Return a small convolutional network."""
    layers: list[nn.Module] = []
    for before, after in ((1, 16), (16, 32)):
        convolution = nn.Conv2d(before, after, 3, padding=1)
        layers += [convolution, nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 49, 10))
    return model, torch.randn(16, 1, 28, 28), torch.randint(0, 10, (16,)), 20


def gpt() -> Model:
    """Return a GPT of 2.5 million parameters."""
    blocks = (Attention(192, 6) for _ in range(4))
    model = nn.Sequential(nn.Embedding(2000, 192), *blocks, nn.LayerNorm(192), nn.Linear(192, 2000))
    return model, torch.randint(0, 2000, (8, 64)), torch.randint(0, 2000, (8, 64)), 4


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
    for make in (mlp, cnn, gpt):
        steps = {way: trainer(make, way) for way in WAYS}
        for _ in range(5):
            losses = {way: step().item() for way, step in steps.items()}
        blocks = [{way: measure(step, make()[3]) for way, step in steps.items()} for _ in range(BLOCKS)]
        found[make.__name__] = {"blocks": blocks, "equal": len(set(losses.values())) == 1}
    if dist.get_rank() == 0:
        json.dump(found, sys.stdout)
    dist.barrier()
