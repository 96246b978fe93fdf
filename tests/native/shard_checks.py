"""Attention and random numbers of shards, normalisation over all workers, FSDP by local rank: beside one process."""

import os

import torch
import torch.distributed as dist
from parallel_training import full_parameters, make, train, weights
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import context_parallel_unshard, set_rotate_method
from torch.utils.checkpoint import checkpoint

_WORLD = 4


def attention(*parts, **options):
    """Look the function up at the call: context_parallel replaces it."""
    return nn.functional.scaled_dot_product_attention(*parts, **options)


def difference(found, expected):
    found = found.full_tensor() if isinstance(found, DTensor) else found
    return (found.detach().cpu() - expected.detach()).abs().max().item()


def heads():
    torch.manual_seed(0)
    return [torch.randn(4, 4, 16, 8) for _ in range(3)]


def attention_of_shards():
    """Return by how much results and gradients differ, and how the results are sharded."""
    mesh = init_device_mesh("neuron", (_WORLD,))
    mask = torch.randn(4, 1, 16, 16, generator=torch.Generator().manual_seed(1))
    found = {}
    for placement, of_mask in ((Shard(0), Shard(0)), (Shard(0), Replicate()), (Shard(1), Replicate())):
        for name, run in {"eager": attention, "compiled": torch.compile(attention)}.items():
            alone = [part.requires_grad_() for part in heads()]
            expected = attention(*alone, mask)
            expected.square().sum().backward()
            parts = [distribute_tensor(part, mesh, [placement]).requires_grad_() for part in heads()]
            result = run(*parts, distribute_tensor(mask, mesh, [of_mask]))
            result.square().sum().backward()
            pairs = [(result, expected), *zip((p.grad for p in parts), (a.grad for a in alone), strict=True)]
            found[f"{placement} {of_mask} {name}"] = [
                max(difference(*pair) for pair in pairs),
                result.placements[0] == placement,
            ]
    return found


def context():
    """Return by how much attention over shards of the sequence differs, and its gradients."""
    mesh = init_device_mesh("neuron", (_WORLD,))
    alone = [part.requires_grad_() for part in heads()]
    expected = attention(*alone, is_causal=True)
    expected.square().sum().backward()
    differences = {}
    for method in ("allgather", "alltoall"):
        set_rotate_method(method)
        parts = [part.to("neuron") for part in heads()]
        with context_parallel(mesh, buffers=parts, buffer_seq_dims=[2] * 3, no_restore_buffers=set(parts)):
            result = attention(*(part.requires_grad_() for part in parts), is_causal=True)
            result.square().sum().backward()
            whole = context_parallel_unshard(mesh, [result.detach(), *(part.grad for part in parts)], [2] * 4)
        pairs = zip(whole, [expected, *(part.grad for part in alone)], strict=True)
        differences[method] = max(difference(*pair) for pair in pairs)
    return differences


def random_numbers_in_graphs():
    """Return what compiled draws have in common with eager ones."""
    mesh = init_device_mesh("neuron", (2, 2))
    ones = distribute_tensor(torch.ones(16, 8), mesh, [Replicate(), Shard(0)])
    dropout = nn.functional.dropout
    found = {}
    for name, draw in {
        "dropout": dropout,
        "rand_like": torch.rand_like,
        "normal_": lambda x: x.clone().normal_(),
        "bernoulli": lambda x: torch.bernoulli(x / 2),
    }.items():
        drawn = []
        for run in (draw, torch.compile(draw, fullgraph=True)):
            torch.manual_seed(7)
            drawn.append([run(ones).full_tensor().cpu() for _ in range(2)])
        found[name] = [
            *(eager.equal(compiled) for eager, compiled in zip(*drawn, strict=True)),
            drawn[1][0].equal(drawn[1][1]),
            drawn[1][0][:8].equal(drawn[1][0][8:]),
        ]
    x = distribute_tensor(torch.ones(16, 8), mesh, [Replicate(), Shard(0)]).requires_grad_()
    kept = torch.compile(lambda x: dropout(x.sin()) * 2)(x)
    kept.sum().backward()
    found["backward"] = (kept.full_tensor() != 0).equal(x.grad.full_tensor() != 0)
    x.grad = None
    kept = torch.compile(lambda x: checkpoint(lambda x: dropout(x.sin()), x, use_reentrant=False))(x)
    kept.sum().backward()
    found["checkpoint"] = (kept.full_tensor() != 0).equal(x.grad.full_tensor() != 0)
    return found


def normalisation():
    """Return by how much weights and statistics differ from those of one process after some steps."""

    def build():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 4))

    alone, own = build(), slice(dist.get_rank(), None, _WORLD)
    model = nn.parallel.DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(build()).to("neuron"))
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (alone, model)]
    x = torch.randn(8, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    for _ in range(3):
        for optimizer, part, batch in zip(optimizers, (alone, model), (x, x[own].to("neuron")), strict=True):
            optimizer.zero_grad()
            part(batch).square().mean().backward()
            optimizer.step()
    norm = model.module[1]
    statistics = [
        difference(getattr(norm, name), getattr(alone[1], name)) for name in ("running_mean", "running_var")
    ]
    return [difference(weights(model), weights(alone)), *statistics]


def sharded_by_local_rank():
    expected = weights(train(make("cpu"), device="cpu"))
    own, local_rank = slice(dist.get_rank(), None, _WORLD), int(os.environ["LOCAL_RANK"])
    return [
        difference(
            full_parameters(train(FullyShardedDataParallel(make(device), device_id=name), own)), expected
        )
        for device, name in (("cpu", torch.device("neuron", local_rank)), ("neuron", local_rank))
    ]


CHECKS = (attention_of_shards, context, random_numbers_in_graphs, normalisation, sharded_by_local_rank)
