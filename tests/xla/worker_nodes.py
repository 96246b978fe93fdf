"""A worker of one of two machines: what collectives between machines and within one give, as one JSON file per rank."""

import json
import os
import sys

import torch
import torch.distributed as dist
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_backend  # noqa: F401
import torch_xla.runtime as xr

from neurontools.xla import api

dist.init_process_group("xla")
device = xm.xla_device()
rank, world = dist.get_rank(), dist.get_world_size()
x = torch.tensor([1.0 + rank, 2.0], device=device)
rows = torch.arange(4.0 * world, device=device).view(world, 4)
ring = [[source, (source + 1) % world] for source in range(world)]
copied = [torch.full((2,), float(rank), device=device), torch.full((1,), float(rank), device=device)]
xm.collective_broadcast(copied, root_ordinal=world - 1)
around = torch.zeros_like(x)
dist.send(x, dst=(rank + 1) % world)
dist.recv(around, src=(rank - 1) % world)
seen = {
    "local rank": xr.local_ordinal(),
    "cores": list(api.runtime().cores),
    "sum": xm.all_reduce("sum", x).tolist(),
    "scaled": [tensor.tolist() for tensor in xm.all_reduce("sum", [x.clone(), x.long()], 0.5)],
    "node": xm.all_reduce("sum", x, groups=[[0, 1], [2, 3]]).tolist(),
    "gather": xm.all_gather(x).tolist(),
    "scatter": xm.reduce_scatter("sum", rows, 1.0, 0, world).tolist(),
    "all to all": xm.all_to_all(torch.arange(1.0 * world, device=device) + 10 * rank, 0, 0, world).tolist(),
    "permute": xm.collective_permute(x, ring).tolist(),
    "around": around.tolist(),
    "broadcast": [tensor.tolist() for tensor in copied],
    "rendezvous": [part.decode() for part in xm.rendezvous("here", str(rank).encode())],
}
dist.barrier()
with open(os.path.join(sys.argv[1], f"rank{rank}.json"), "w") as file:
    json.dump(seen, file)
dist.destroy_process_group()
