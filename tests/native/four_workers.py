"""A worker of torchrun, one of four with the backend `neuron`: runs the checks of several files, writes what they saw."""

import json
import sys

import checkpoint_checks
import collective_checks
import parallel_training
import pipeline_checks
import shard_checks
import torch
import torch.distributed as dist

from neurontools.native.autoload import autoload

autoload()  # of a copy of a process that has loaded torch; elsewhere torch has done it
dist.init_process_group("neuron")
seen = {
    check.__name__: check()
    for checks in (parallel_training, shard_checks, pipeline_checks, checkpoint_checks, collective_checks)
    for check in checks.CHECKS
}
dist.destroy_process_group()
dist.init_process_group("cpu:gloo,neuron:neuron", device_id=torch.device("neuron", 0))
dist.all_reduce(total := torch.ones(1, device="neuron"))
seen["again"] = total.item()
with open(f"{sys.argv[1]}/rank{dist.get_rank()}.json", "w") as file:
    json.dump(seen, file)
dist.destroy_process_group()
