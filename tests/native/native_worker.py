"""A worker of torchrun with the backend `neuron`: collectives and training as DDP; writes what it saw as JSON."""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(device, *, compiled=False, data_parallel=True):
    """Return the weights after some steps; this worker's part of each batch, or without data_parallel the whole one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).to(device)
    if data_parallel:
        model = DistributedDataParallel(model)
    step = torch.compile(model, backend="neuron") if compiled else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = torch.Generator().manual_seed(1)
    for _ in range(5):
        x = torch.randn(4, 6, generator=batches)
        target = torch.randint(0, 3, (4,), generator=batches)
        if data_parallel:
            own = slice(dist.get_rank(), None, dist.get_world_size())
            x, target = x[own], target[own]
        optimizer.zero_grad()
        nn.functional.cross_entropy(step(x.to(device)), target.to(device)).backward()
        optimizer.step()
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).cpu()


expected = train("cpu", data_parallel=False)
dist.init_process_group("neuron")
rank = dist.get_rank()
value = torch.tensor([1.0 + rank], device="neuron")
dist.all_reduce(value)
parts = [torch.zeros(1, device="neuron") for _ in range(2)]
dist.all_gather(parts, torch.tensor([float(rank)], device="neuron"))
seen = {
    "backend": dist.get_backend(),
    "cores": os.environ["NEURON_RT_VISIBLE_CORES"],
    "sum": value.item(),
    "parts": [part.item() for part in parts],
    "ddp": (train("neuron") - expected).abs().max().item(),
    "compiled ddp": (train("neuron", compiled=True) - expected).abs().max().item(),
}
dist.barrier()
dist.destroy_process_group()
with open(f"{sys.argv[1]}/rank{rank}.json", "w") as file:
    json.dump(seen, file)
