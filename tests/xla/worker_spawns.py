"""Two spawned workers: the second one does not take part in a collective, then ends in the middle of another."""

import json
import os
import signal
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_backend  # noqa: F401
import torch_xla.distributed.xla_multiprocessing as xmp

from neurontools.xla.distributed import worker_group


def work(rank, home):
    dist.init_process_group("xla", timeout=timedelta(seconds=120))
    assert os.environ["OMP_NUM_THREADS"] == "1"
    x = torch.ones(2, device=xm.xla_device()) + rank
    seen = {"sum": xm.all_reduce("sum", x)[0].item()}
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # spawn sends it when the other one ends
        seen["pid of 1"] = worker_group.current().peer(1).pid
        worker_group.current().set_timeout((0, 1), timedelta(seconds=1))
        seen["hang"] = failure(x)
        store.set("named", b"1")
    else:
        store.wait(["named"], timedelta(seconds=120))
    own = worker_group.Communicator(dist.PrefixStore("again", store), rank, 2, timedelta(seconds=120))
    worker_group.replace(own)
    xm.rendezvous("again")
    if rank == 1:
        os._exit(3)
    seen["end"] = failure(x)
    with open(f"{home}/rank0.json", "w") as file:
        json.dump(seen, file)


def failure(x):
    try:
        xm.all_reduce("sum", x).cpu()
    except RuntimeError as error:
        return str(error)
    return "no error"


if __name__ == "__main__":
    try:
        xmp.spawn(work, (sys.argv[1],), nprocs=3)
    except Exception as error:
        sys.stdout.write(f"{error}\n")
    xmp.spawn(work, (sys.argv[1],))
