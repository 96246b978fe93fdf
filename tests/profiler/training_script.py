"""A training script of four epochs of two steps, for tests of profiles: marks, a printed loss, profiled blocks."""

from __future__ import annotations

import sys

import torch
import torch_xla.core.xla_model as xm
import torch_xla.debug.profiler as xp
from torch import nn

import neurontools
from neurontools.machine.client import Client
from neurontools.machine.processes import this_process
from neurontools.profiler.live import LiveProfile


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for batch in torch.utils.data.DataLoader(torch.randn(16, 16), batch_size=8):
        with xp.Trace("forward"):
            loss = model(batch.to("xla")).square().mean()
        loss.backward()
        xm.optimizer_step(optimizer, barrier=True)
        optimizer.zero_grad()
        sys.stdout.write(f"{loss.item()}\n")


def main() -> None:
    model = MLP().to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in (1, 2):
        neurontools.mark(f"epoch {epoch}")
        train(model, optimizer)
    with neurontools.profile(sys.argv[1]):
        neurontools.mark("epoch 3")
        train(model, optimizer)
    with Client.connect() as client, LiveProfile(client, this_process()) as viewer:
        steps = None
        while steps is None or not steps.how.startswith("steps marked"):
            train(model, optimizer)
            steps = viewer.read().steps
        sys.stdout.write(f"live: {steps.how}, {steps.operators[0].name}\n")
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.PrivateUse1]
    with torch.profiler.profile(activities=activities) as profiled:
        train(model, optimizer)
    profiled.export_chrome_trace(sys.argv[2])
    with torch.profiler.profile(activities=activities[:1], record_shapes=True) as of_host:
        MLP()(torch.randn(8, 16)).sum().backward()
    of_host.export_chrome_trace(sys.argv[3])
    sys.stdout.write(profiled.key_averages().table(sort_by="self_device_time_total", row_limit=5))


if __name__ == "__main__":
    main()
