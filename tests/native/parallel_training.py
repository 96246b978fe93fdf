"""Ways to train with four workers, compared with one process on the CPU; random numbers of DTensors."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import tensor as dt
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffload,
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

_WORLD = 4


class Block(nn.Module):
    """A transformer's block without attention."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)
        self.head = nn.Linear(8, 16)

    def forward(self, tokens):
        x = self.embedding(tokens)
        return self.head(x + self.down(torch.relu(self.up(self.norm(x)))))


def make(device="neuron"):
    torch.manual_seed(0)
    return Block().to(device)


def batches(own=slice(None)):
    numbers = torch.Generator().manual_seed(1)
    for _ in range(3):
        tokens = torch.randint(0, 16, (4, 9), generator=numbers)[own]
        yield tokens[:, :-1], tokens[:, 1:]


def loss_of(model, x, target, device="neuron"):
    return nn.functional.cross_entropy(model(x.to(device)).flatten(0, 1), target.to(device).flatten())


def weights(model):
    whole = [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters()]
    return torch.cat([weight.detach().reshape(-1).cpu() for weight in whole])


def train(model, own=slice(None), device="neuron"):
    """Train on this worker's part of each batch."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    for x, target in batches(own):
        optimizer.zero_grad()
        loss_of(model, x, target, device).backward()
        optimizer.step()
    return model


def shard(model, mesh, **options):
    for layer in (model.up, model.down, model):
        fully_shard(layer, mesh=mesh, **options)
    return model


def split(model, mesh, **of_head):
    plan = {
        "embedding": RowwiseParallel(
            input_layouts=Replicate(), output_layouts=Shard(1), use_local_output=False
        ),
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
        "head": ColwiseParallel(input_layouts=Shard(1), **(of_head or {"output_layouts": Replicate()})),
    }
    return parallelize_module(model, mesh, plan)


def train_with_a_split_loss(mesh):
    with loss_parallel():
        return train(split(make(), mesh, output_layouts=Shard(-1), use_local_output=False))


def full_parameters(model):
    with FullyShardedDataParallel.summon_full_params(model):
        return torch.cat([weight.detach().reshape(-1).cpu() for weight in model.parameters()])


def training():
    """Return by how much the weights of each way differ from those of one process."""
    rank = dist.get_rank()
    own = slice(rank, None, _WORLD)
    flat = init_device_mesh("neuron", (_WORLD,))
    square = init_device_mesh("neuron", (2, 2), mesh_dim_names=("data", "tensor"))
    pair = slice(square["data"].get_local_rank(), None, 2)
    mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    expected = weights(train(make("cpu"), device="cpu"))
    found = {
        "sharded": weights(train(shard(make(), flat), own)),
        "kept after forward": weights(train(shard(make(), flat, reshard_after_forward=False), own)),
        "offloaded": weights(train(shard(make(), flat, offload_policy=CPUOffloadPolicy()), own)),
        "flat parameters": full_parameters(
            train(FullyShardedDataParallel(make(), use_orig_params=True), own)
        ),
        "flat parameters, offloaded": full_parameters(
            train(FullyShardedDataParallel(make(), cpu_offload=CPUOffload(True), device_id=rank), own)
        ),
        "hybrid": weights(train(shard(make(), square), own)),
        "split": weights(train(split(make(), flat))),
        "split with its loss": weights(train_with_a_split_loss(flat)),
        "split and sharded": weights(train(shard(split(make(), square["tensor"]), square["data"]), pair)),
        "mixed precision": weights(train(shard(make(), flat, mp_policy=mixed), own)),
    }
    return {name: (values - expected).abs().max().item() for name, values in found.items()}


def gradients_of_shards():
    """Return the norm of clipped gradients, after two batches that are reduced together, and that of one process."""
    model = shard(make(), init_device_mesh("neuron", (_WORLD,)))
    alone = make("cpu")
    own = slice(dist.get_rank(), None, _WORLD)
    for step, ((x, target), whole) in enumerate(zip(batches(own), batches(), strict=True)):
        model.set_requires_gradient_sync(step == 2)
        loss_of(model, x, target).backward()
        loss_of(alone, *whole, device="cpu").backward()
    norms = [nn.utils.clip_grad_norm_(part.parameters(), 0.1) for part in (model, alone)]
    return [norms[0].full_tensor().item(), norms[1].item()]


def redistribution():
    mesh = init_device_mesh("neuron", (_WORLD,))
    whole = torch.arange(35.0).view(7, 5)
    placements = [Shard(0), Shard(1), Replicate()]
    for before in placements:
        for after in placements:
            moved = distribute_tensor(whole, mesh, [before]).redistribute(mesh, [after])
            assert moved.full_tensor().cpu().equal(whole), (before, after)
    ones = torch.full((8, 2), float(dist.get_rank()), device="neuron")
    partial = {name: DTensor.from_local(ones, mesh, [Partial(name)]) for name in ("sum", "avg", "max")}
    parts = {name: value.redistribute(mesh, [Shard(0)]).to_local() for name, value in partial.items()}
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    return {
        "partial": {name: value.full_tensor()[0, 0].item() for name, value in partial.items()},
        "parts": {name: [*part.shape, part[0, 0].item()] for name, part in parts.items()},
        "product": (sharded @ sharded.T).full_tensor().cpu().equal(whole @ whole.T),
    }


def random_numbers():
    """Return which random numbers the workers share, and which of them are those of one process."""
    square = init_device_mesh("neuron", (2, 2))
    torch.manual_seed(3)
    sharded = dt.rand(8, 4, device_mesh=square, placements=[Shard(0), Shard(1)]).full_tensor()
    mixed = dt.randn(8, 4, device_mesh=square, placements=[Replicate(), Shard(0)]).to_local()
    torch.manual_seed(3)
    again = dt.rand(8, 4, device_mesh=square, placements=[Shard(0), Shard(1)]).full_tensor()
    torch.manual_seed(3)
    replicated = dt.rand(8, 4, device_mesh=square, placements=[Replicate(), Replicate()]).to_local()
    ones = dt.ones(32, 4, device_mesh=square, placements=[Replicate(), Shard(0)])
    kept = nn.functional.dropout(ones).full_tensor().cpu()
    generator = torch.Generator("neuron").manual_seed(5)
    drawn = [ones.uniform_(generator=generator).full_tensor().cpu() for _ in range(2)]
    after = torch.rand(3, device="neuron").cpu()
    torch.manual_seed(3)
    alone = torch.rand(8, 4)
    gathered = [torch.empty_like(mixed) for _ in range(_WORLD)]
    dist.all_gather(gathered, mixed)
    gathered = [part.cpu() for part in gathered]
    return {
        "all differ": len(set(sharded.flatten().tolist())),
        "repeated": again.cpu().equal(sharded.cpu()),
        "replicas are equal": [gathered[0].equal(other) for other in gathered],
        "as one process": replicated.cpu().equal(alone),
        "halves of dropout differ": not kept[:16].equal(kept[16:]),
        "generator": not drawn[0].equal(drawn[1]),
        "after": after.tolist(),
    }


CHECKS = (training, gradients_of_shards, redistribution, random_numbers)
