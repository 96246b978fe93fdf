"""A worker whose kernels exchange data with the others, without a process group: run by test_torch_operator.py."""

# mypy: ignore-errors
import json
from pathlib import Path

import nki
import nki.collectives as nccl
import nki.isa as nisa
import nki.language as nl
import torch
import torch_xla
import torch_xla.runtime

device, rank, size = torch_xla.device(), torch_xla.runtime.global_ordinal(), torch_xla.runtime.world_size()
EVERY = [list(range(size))]


def _source(a):
    source = nl.ndarray(a.shape, a.dtype, buffer=nl.private_hbm)
    nisa.dma_copy(source, a)
    return source


@nki.jit
def all_reduce(a):
    """Return the sum of all workers."""
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    nccl.all_reduce([_source(a)], [out], replica_group=nccl.ReplicaGroup(EVERY), op=nl.add)
    return out


@nki.jit
def all_gather(a):
    """Return the columns of all workers, joined in SBUF."""
    joined = nl.ndarray((a.shape[0], a.shape[1] * size), a.dtype)
    nccl.all_gather([nl.load(a)], [joined], replica_group=nccl.ReplicaGroup(EVERY), collective_dim=1)
    out = nl.ndarray(joined.shape, a.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, joined)
    return out


@nki.jit
def reduce_scatter(a):
    """Return this worker's rows of the sum."""
    out = nl.ndarray((a.shape[0] // size, a.shape[1]), a.dtype, buffer=nl.shared_hbm)
    group = nccl.ReplicaGroup(EVERY)
    nccl.reduce_scatter([_source(a)], [out], replica_group=group, collective_dim=0, op=nl.add)
    return out


@nki.jit
def permute(a):
    """Return what the worker before has."""
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    pairs = [[source, (source + 1) % size] for source in range(size)]
    nccl.collective_permute([_source(a)], [out], source_target_pairs=pairs)
    return out


@nki.jit
def half_of_the_sum(a):
    """Return the sum of all workers, of which each core writes half."""
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    total = nl.ndarray(a.shape, a.dtype, buffer=nl.private_hbm)
    nccl.all_reduce([_source(a)], [total], replica_group=nccl.ReplicaGroup(EVERY), op=nl.add)
    rows = nl.ds(nl.program_id(0) * (a.shape[0] // 2), a.shape[0] // 2)
    nisa.dma_copy(out[rows], total[rows])
    return out


class Sum(torch.autograd.Function):
    """The sum of all workers in a model."""

    @staticmethod
    def forward(ctx, a):
        return all_reduce(a)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def train():
    """Return the losses of two steps, which are those of all workers."""
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = Sum.apply(model(torch.full((4, 8), rank + 1.0, device=device))).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


data = torch.full((4, 1), rank + 1.0, device=device)
part = reduce_scatter(data).cpu()
seen = {
    "all_reduce": all_reduce(data)[0, 0].item(),
    "all_gather": all_gather(data).cpu()[:1].tolist(),
    "reduce_scatter": [part.shape[0], part[0, 0].item()],
    "collective_permute": permute(data)[0, 0].item(),
    "two cores": half_of_the_sum[2](data).cpu()[::3, 0].tolist(),
    "losses": train(),
}
Path(f"rank{rank}.json").write_text(json.dumps(seen))
