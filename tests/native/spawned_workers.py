"""Workers that torch.multiprocessing starts, each with the device of its rank: `ORDER` says when they choose it."""

import json
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from neurontools.native.autoload import autoload

autoload()  # of a copy of a process that has loaded torch; elsewhere torch has done it


def train(rank, size, order, store):
    if order == "before":
        torch.accelerator.set_device_index(rank)
    dist.init_process_group("neuron", init_method=f"file://{store}", rank=rank, world_size=size)
    if order == "after":
        torch.neuron.set_device(rank)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 2).to(rank), device_ids=[rank])
    model(torch.full((3, 4), float(rank + 1)).to(rank)).sum().backward()
    gradient = model.module.weight.grad.sum().item()
    with open(f"rank{rank}.json", "w", encoding="utf-8") as file:
        json.dump({"cores": os.environ["NEURON_RT_VISIBLE_CORES"], "gradient": gradient}, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(train, args=(2, sys.argv[1], os.path.abspath("store")), nprocs=2)
