"""A worker of torchrun, one of four with the backend `neuron`: runs the checks of several files, writes what they saw."""

import json
import sys

import checkpoint_checks
import parallel_training
import pipeline_checks
import torch.distributed as dist

from neurontools.native.autoload import autoload

autoload()  # of a copy of a process that has loaded torch; elsewhere torch has done it
dist.init_process_group("neuron")
seen = {
    check.__name__: check()
    for check in (*parallel_training.CHECKS, *pipeline_checks.CHECKS, *checkpoint_checks.CHECKS)
}
dist.barrier()
with open(f"{sys.argv[1]}/rank{dist.get_rank()}.json", "w") as file:
    json.dump(seen, file)
dist.destroy_process_group()
