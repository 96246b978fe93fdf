"""A worker of torchrun with the backend `neuron`: collectives and parallel training; writes what it saw as JSON."""

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from neurontools.native.autoload import autoload
from neurontools.runtime.status import NrtError

autoload()  # of a copy of a process that has loaded torch; elsewhere torch has done it


def make(device):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)).to(device)


def train(model, device, own=slice(None)):
    """Return the weights after some steps on this worker's part of each batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = torch.Generator().manual_seed(1)
    for _ in range(5):
        x = torch.randn(4, 6, generator=batches)[own]
        target = torch.randint(0, 4, (4,), generator=batches)[own]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.to(device)), target.to(device)).backward()
        optimizer.step()
    weights = [
        weight.full_tensor() if isinstance(weight, DTensor) else weight for weight in model.parameters()
    ]
    return torch.cat([weight.detach().reshape(-1) for weight in weights]).cpu()


def sharded(mesh):
    model = make("neuron")
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    return model


def split(mesh):
    return parallelize_module(make("neuron"), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


expected = train(make("cpu"), "cpu")
dist.init_process_group("neuron", device_id=torch.device("neuron", int(os.environ["LOCAL_RANK"])))
rank, world = dist.get_rank(), dist.get_world_size()
torch.neuron.set_device(rank)
mesh = init_device_mesh("neuron", (world,))
half = slice(rank, None, world)
value = torch.tensor([1.0 + rank], device="neuron")
dist.all_reduce(value)
parts = [torch.zeros(1, device="neuron") for _ in range(2)]
dist.all_gather(parts, torch.tensor([float(rank)], device="neuron"))
ways = {
    "data parallel": lambda: train(DistributedDataParallel(make("neuron")), "neuron", half),
    "data parallel by local rank": lambda: train(
        DistributedDataParallel(make("neuron"), device_ids=[rank], output_device=rank), "neuron", half
    ),
    "compiled": lambda: train(torch.compile(DistributedDataParallel(make("neuron"))), "neuron", half),
    "fully sharded": lambda: train(sharded(mesh), "neuron", half),
    "tensor parallel": lambda: train(split(mesh), "neuron"),
    "tensor parallel, compiled": lambda: train(torch.compile(split(mesh)), "neuron"),
}
seen = {
    "backend": dist.get_backend(),
    "own device": [
        str(torch.ones(1, device=f"neuron:{rank}").to(f"neuron:{rank}").device),
        torch.neuron.current_device(),
    ],
    "cores": os.environ["NEURON_RT_VISIBLE_CORES"],
    "sum": value.item(),
    "parts": [part.item() for part in parts],
    "compiled": torch.compile(lambda x: functional.all_reduce(x * 2, "sum", mesh) + 1)(
        torch.ones(2, device="neuron")
    ).tolist(),
    "differences": {name: (way() - expected).abs().max().item() for name, way in ways.items()},
}
dist.barrier()
short = dist.new_group(timeout=timedelta(seconds=1))


def wait_for_all():
    dist.all_reduce(value, group=short)
    value.item()


def ask():
    request = dist.irecv(value, 1)
    while not request.is_completed():
        time.sleep(0.02)


lost = []
if rank == 0:
    for wait in (wait_for_all, lambda: dist.recv(value, 1, short), lambda: dist.recv(value, 1), ask):
        try:
            wait()
        except NrtError as error:
            lost.append(str(error))
        if len(lost) == 2:
            Path(f"{sys.argv[1]}/done").touch()
with open(f"{sys.argv[1]}/rank{rank}.json", "w") as file:
    json.dump({**seen, "pid": os.getpid(), "lost": lost}, file)
if rank == 1:
    while not Path(f"{sys.argv[1]}/done").exists():
        time.sleep(0.02)
    os._exit(0)
