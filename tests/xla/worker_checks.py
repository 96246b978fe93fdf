"""A worker of torchrun: runs every collective and prints what it saw as one JSON line per rank."""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_backend  # noqa: F401
import torch_xla.runtime as xr
from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel
from torch_xla.distributed.zero_redundancy_optimizer import ZeroRedundancyOptimizer
from torch_xla.utils.checkpoint import checkpoint

from neurontools.compiler.neff import parse
from neurontools.machine.client import Client
from neurontools.xla import api
from neurontools.xla.debugging import metrics


class Loads:
    """Keeps the models that the runtime loads."""

    def __init__(self):
        self.models = []

    def on_load(self, model, start_ns, end_ns):
        self.models.append(model)

    def on_execute(self, *event):
        pass

    on_unload = on_close = on_execute


loads = Loads()
dist.init_process_group("xla", init_method=sys.argv[1] if len(sys.argv) > 1 else None)
device = xm.xla_device()
rank, world = dist.get_rank(), dist.get_world_size()
seen = {
    "ranks": [
        xr.global_ordinal(),
        xr.local_ordinal(),
        xm.get_ordinal(),
        xr.world_size(),
        xm.xrt_world_size(),
        xr.global_device_count(),
    ],
    "master": xm.is_master_ordinal(),
    "backend": dist.get_backend(),
    "cores": list(api.runtime().cores),
    "visible": os.environ["NEURON_RT_VISIBLE_CORES"],
}


def on_device(*values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype, device=device)


x = on_device(1.0 + rank, 2.0)
pair = [on_device(rank + 1.0), on_device(5, rank, dtype=torch.int64)]
returned = xm.all_reduce(xm.REDUCE_SUM, pair, scale=0.5)
matrix = torch.arange(4.0, device=device).view(2, 2) + 10 * rank
seen["xm"] = {
    "sum": xm.all_reduce(xm.REDUCE_SUM, x).tolist(),
    "kept": x.tolist(),
    "scaled": xm.all_reduce("sum", x, scale=0.5).tolist(),
    "max": xm.all_reduce(xm.REDUCE_MAX, x).tolist(),
    "min": xm.all_reduce(xm.REDUCE_MIN, x).tolist(),
    "mul": xm.all_reduce(xm.REDUCE_MUL, x).tolist(),
    "or": xm.all_reduce(xm.REDUCE_OR, on_device(1 + rank, dtype=torch.int32)).tolist(),
    "and": xm.all_reduce(xm.REDUCE_AND, on_device(1 + 2 * rank, dtype=torch.int32)).tolist(),
    "bf16": xm.all_reduce("sum", on_device(1 + rank, dtype=torch.bfloat16)).tolist(),
    "int16": xm.all_reduce("sum", on_device(1 + rank, dtype=torch.int16)).tolist(),
    "list": [t.tolist() for t in returned],
    "same list": returned is pair,
    "alone": xm.all_reduce("sum", x, groups=[[r] for r in range(world)]).tolist(),
    "gather": xm.all_gather(matrix).tolist(),
    "gather 1": xm.all_gather(matrix, dim=1).tolist(),
    "scatter": xm.reduce_scatter("sum", matrix, 1.0, 0, world).tolist(),
    "scatter 1": xm.reduce_scatter("sum", matrix, 0.5, 1, world).tolist(),
    "all to all": xm.all_to_all(matrix, 0, 0, world).tolist(),
    "all to all 1": xm.all_to_all(matrix, 0, 1, world).tolist(),
    "permute": xm.collective_permute(x, [[r, (r + 1) % world] for r in range(world)]).tolist(),
    "one way": xm.collective_permute(x, [[0, world - 1]]).tolist(),
    "rendezvous": [part.decode() for part in xm.rendezvous("here", f"rank {rank}".encode())],
    "mesh": xm.mesh_reduce("sum", x, lambda parts: torch.stack(parts).sum(0).tolist()),
}
xm.collective_broadcast([x], root_ordinal=world - 1)
seen["xm"]["broadcast"] = x.tolist()

x = on_device(1.0 + rank, 2.0)
mean, product = x.clone(), x.clone()
dist.all_reduce(mean, op=dist.ReduceOp.AVG)
dist.all_reduce(product, op=dist.ReduceOp.PRODUCT)
copied = x.clone()
dist.broadcast(copied, src=world - 1)
parts = [torch.zeros_like(x) for _ in range(world)]
dist.all_gather(parts, x)
whole, stacked = torch.zeros(2 * world, device=device), torch.zeros(world, 2, device=device)
dist.all_gather_into_tensor(whole, x)
dist.all_gather_into_tensor(stacked, x)
part, part_of_list = torch.zeros(1, 2, device=device), torch.zeros(2, device=device)
dist.reduce_scatter_tensor(part, matrix)
dist.reduce_scatter(part_of_list, [matrix[r % 2] for r in range(world)])
exchanged, exchanged_list = torch.zeros_like(matrix), [torch.zeros_like(x) for _ in range(world)]
dist.all_to_all_single(exchanged, matrix)
dist.all_to_all(exchanged_list, [x + 100 * r for r in range(world)])
gathered = [torch.zeros_like(x) for _ in range(world)] if rank == 0 else None
dist.gather(x, gathered, dst=0)
scattered = torch.zeros_like(x)
dist.scatter(scattered, [x + 10 * r for r in range(world)] if rank == 0 else None, src=0)
reduced = x.clone()
dist.reduce(reduced, dst=0)
on_cpu = torch.tensor([1.0 + rank])
dist.all_reduce(on_cpu)
objects = [None] * world
dist.all_gather_object(objects, {"rank": rank})
name = ["from 0" if rank == 0 else None]
dist.broadcast_object_list(name, src=0)
passed = torch.zeros_like(x)
if world > 1:
    if rank == 0:
        dist.send(x * 7, dst=1)
    elif rank == 1:
        dist.recv(passed, src=0)
    around = torch.zeros_like(x)
    work = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, x, (rank + 1) % world),
            dist.P2POp(dist.irecv, around, (rank - 1) % world),
        ]
    )
    for item in work:
        item.wait()
else:
    around = x
first = dist.new_group([0])
alone = x.clone()
if rank == 0:
    dist.all_reduce(alone, group=first)
dist.barrier()
seen["dist"] = {
    "mean": mean.tolist(),
    "product": product.tolist(),
    "broadcast": copied.tolist(),
    "gather list": [t.tolist() for t in parts],
    "gather": whole.tolist(),
    "stacked": stacked.tolist(),
    "scatter": part.tolist(),
    "scatter list": part_of_list.tolist(),
    "all to all": exchanged.tolist(),
    "all to all list": [t.tolist() for t in exchanged_list],
    "gather at 0": None if gathered is None else [t.tolist() for t in gathered],
    "scattered": scattered.tolist(),
    "reduced": reduced.tolist() if rank == 0 else None,
    "cpu": on_cpu.tolist(),
    "objects": objects,
    "object": name,
    "sent": passed.tolist(),
    "around": around.tolist(),
    "alone": alone.tolist(),
}


def model_of(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))


api.runtime().observers.append(loads)
generator = torch.Generator().manual_seed(1)
batches = [
    (torch.randn(8, 6, generator=generator), torch.randint(0, 3, (8,), generator=generator)) for _ in range(5)
]
share = 8 // world
compiled = []


def train(model, step, where, rows, optimizer=None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for data, target in batches:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(data[rows].to(where)), target[rows].to(where))
        loss.backward()
        step(optimizer)
        compiled.append(metrics.counter_value("UncachedCompile") or 0)
    return [parameter.detach().cpu() for parameter in model.parameters()]


def device_step(optimizer):
    optimizer.step()
    xm.mark_step()


mine = slice(rank * share, (rank + 1) * share)
alone = train(model_of(3), lambda optimizer: optimizer.step(), "cpu", slice(None))

sharded_model = model_of(3).to(device)
sharded = ZeroRedundancyOptimizer(
    sharded_model.parameters(), torch.optim.SGD, grad_clipping=False, lr=0.1, momentum=0.9
)
by_parts = train(sharded_model, device_step, device, mine, sharded)
seen["parts"] = [list(part.shape) for part in sharded.base_optimizer.param_groups[0]["params"]]

outer = model_of(3).to(device)
outer[2] = XlaFullyShardedDataParallel(outer[2])
outer = XlaFullyShardedDataParallel(outer)
compiled.clear()
train(outer, device_step, device, mine)
seen["compiled"] = {"fsdp": compiled[-1] - compiled[1]}
seen["fsdp wrapped"] = [
    len(outer.state_dict()) == len(outer[2].state_dict()) + 2,
    isinstance(outer[0], torch.nn.Linear),
    outer.append.__self__ is outer.module,
    hasattr(outer, "missing"),
    outer.all_reduce_op(xm.REDUCE_SUM, torch.ones(1, device=device)).item() == world,
]

seen["fsdp parts"] = [list(part.shape) for part in outer.parameters()]
by_cpu = model_of(3)
train(by_cpu, lambda optimizer: optimizer.step(), "cpu", slice(None))
outputs = outer(batches[0][0].to(device)).detach()
seen["fsdp"] = (outputs.cpu() - by_cpu(batches[0][0])).abs().max().item()


class Recomputed(torch.nn.Sequential):
    def forward(self, x):
        for layer in self:
            x = checkpoint(layer, x, use_reentrant=False)
        return x


by_layer = XlaFullyShardedDataParallel(
    Recomputed(*model_of(3)).to(device),
    auto_wrap_policy=lambda module, recurse, unwrapped_params: recurse or isinstance(module, torch.nn.Linear),
)
seen["fsdp layers"] = [type(by_layer[place]).__name__ for place in (0, 1)]
train(by_layer, device_step, device, mine)
seen["fsdp recomputed"] = (by_layer(batches[0][0].to(device)).cpu() - outputs.cpu()).abs().max().item()

model = model_of(3 + rank).to(device)
xm.broadcast_master_param(model)
compiled.clear()
by_hand = train(model, lambda optimizer: xm.optimizer_step(optimizer, barrier=True), device, mine)
model_of_step = loads.models[-1]
(collective,) = [op for op in parse(model_of_step.neff).cost.ops if op.name.startswith("neurontools.")]
seen["graph"] = [
    collective.name,
    collective.opcode,
    collective.duration_ns,
    model_of_step.collective,
]
seen["compiled"]["optimizer_step"] = compiled[-1] - compiled[1]

wrapped = torch.nn.parallel.DistributedDataParallel(
    model_of(3 + rank).to(device), gradient_as_bucket_view=True
)
compiled.clear()
by_ddp = train(wrapped, device_step, device, mine)
seen["compiled"]["ddp"] = compiled[-1] - compiled[2]


class Copied(torch.autograd.Function):
    """The input of a layer that is divided by columns: its gradient is the sum over the workers."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        return xm.all_reduce(xm.REDUCE_SUM, gradient)


class Summed(torch.autograd.Function):
    """The output of a layer that is divided by rows."""

    @staticmethod
    def forward(ctx, x):
        return xm.all_reduce(xm.REDUCE_SUM, x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class TensorParallel(torch.nn.Module):
    """`model_of` with its first layer divided by columns and its second one by rows."""

    def __init__(self, whole):
        super().__init__()
        first, second = whole[0], whole[2]
        self.first = torch.nn.Parameter(first.weight.data.chunk(world)[rank].clone())
        self.first_bias = torch.nn.Parameter(first.bias.data.chunk(world)[rank].clone())
        self.second = torch.nn.Parameter(second.weight.data.chunk(world, 1)[rank].clone())
        self.second_bias = torch.nn.Parameter(second.bias.data.clone())

    def forward(self, x):
        hidden = torch.nn.functional.linear(Copied.apply(x), self.first, self.first_bias).relu()
        return Summed.apply(torch.nn.functional.linear(hidden, self.second)) + self.second_bias


divided = TensorParallel(model_of(3)).to(device)
compiled.clear()
train(divided, device_step, device, slice(None))
seen["compiled"]["tensor parallel"] = compiled[-1] - compiled[1]
by_layers = [
    xm.all_gather(divided.first.data),
    xm.all_gather(divided.first_bias.data),
    xm.all_gather(divided.second.data, dim=1),
    divided.second_bias.data,
]


def same_everywhere(weights):
    flat = torch.cat([weight.reshape(-1) for weight in weights])
    others = [torch.zeros_like(flat) for _ in range(world)]
    dist.all_gather(others, flat)
    return all(torch.equal(flat, other) for other in others)


def difference(weights):
    return max((one - other).abs().max().item() for one, other in zip(weights, alone, strict=True))


by_layers = [weight.cpu() for weight in by_layers]
trained = {"optimizer_step": by_hand, "ddp": by_ddp, "zero": by_parts, "tensor parallel": by_layers}
seen["train"] = {name: [same_everywhere(weights), difference(weights)] for name, weights in trained.items()}
with Client.connect() as client:
    seen["shown"] = sorted([use.core for use in process.cores] for process in client.snapshot().processes)
path = os.environ["CHECKS_PATH"]
xm.save({"model": model.state_dict()}, f"{path}/{'all' if world > 1 else 'one'}.pt")
xm.rendezvous("saved")
seen["saved"] = sorted(os.listdir(path))
with open(f"{path}/rank{rank}.json", "w") as file:
    json.dump(seen, file)
last = torch.zeros(1000, device=device)
if rank == 0:
    dist.send(last + 5, dst=1)
    xm.mark_step()
else:
    time.sleep(0.3)
    dist.recv(last, src=0)
    assert last[999].item() == 5
dist.destroy_process_group()
