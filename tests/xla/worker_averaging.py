"""A worker of hierarchical SGD: trains on the device and, with gloo, on the CPU; writes what both gave as JSON."""

import json
import os
import sys
from collections import OrderedDict

import torch
import torch.distributed as dist
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_backend  # noqa: F401
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import HierarchicalModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer

WARMUP, STEPS = 2, 8


def train(device, *, gradients_in_pairs):
    """Return the weights of all workers after each step."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    layers = torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers).to(device))
    pair, _ = dist.new_subgroups(group_size=2)
    state = PostLocalSGDState(None, pair, WARMUP, post_local_gradient_allreduce=gradients_in_pairs)
    model.register_comm_hook(state, post_localSGD_hook)
    averager = HierarchicalModelAverager(OrderedDict([(2, 2), (4, world)]), warmup_steps=WARMUP)
    optimizer = PostLocalSGDOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), averager)
    batches = torch.Generator().manual_seed(rank)
    seen = []
    for _ in range(STEPS):
        data = torch.randn(4, 6, generator=batches)
        target = torch.randint(0, 3, (4,), generator=batches)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(data.to(device)), target.to(device)).backward()
        optimizer.step()
        if device == "xla":
            xm.mark_step()
        flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
        everyone = [torch.zeros_like(flat) for _ in range(world)]
        dist.all_gather(everyone, flat)
        seen.append([weights.cpu() for weights in everyone])
    return seen


def sharing(everyone):
    """Return for each worker the first one with the same weights."""
    return [next(i for i, other in enumerate(everyone) if torch.equal(other, own)) for own in everyone]


MODES = {"gradients in pairs": True, "local gradients": False}
results = {}
for backend, device in (("gloo", "cpu"), ("xla", "xla")):
    dist.init_process_group(backend)
    results[backend] = {name: train(device, gradients_in_pairs=pairs) for name, pairs in MODES.items()}
    dist.barrier()
    dist.destroy_process_group()
found = {}
for name in MODES:
    expected, got = results["gloo"][name], results["xla"][name]
    found[name] = {
        "difference": max(
            (one - other).abs().max().item()
            for step, same in zip(got, expected, strict=True)
            for one, other in zip(step, same, strict=True)
        ),
        "sharing": [sharing(everyone) for everyone in got],
        "gloo": [sharing(everyone) for everyone in expected],
    }
with open(os.path.join(sys.argv[1], f"rank{os.environ['RANK']}.json"), "w") as file:
    json.dump(found, file)
