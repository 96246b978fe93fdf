"""Workers of which each but the first ends in a way of its own while the first one waits for it.

Usage: worker_ends.py DIRECTORY WAY ... The first worker writes the errors of its calls.
"""

import json
import os
import select
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from neurontools.xla.distributed import shared_exchange
from neurontools.xla.distributed.worker_group import Communicator

directory, *ways = sys.argv[1:]
rank, size = int(os.environ["RANK"]), len(ways) + 1
store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), None, is_master=rank == 0)
own = Communicator(store, rank, size, timedelta(seconds=200))


class SlowEnd:
    """Holds up the end of the interpreter, after its exit handlers."""

    def __del__(self, sleep=time.sleep):
        sleep(2)


def end(way):
    if way == "exit slowly":
        sys.slow_end = SlowEnd()
    if way == "raise":
        raise ValueError("the end")
    if way == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if way == "exit at once":
        os._exit(3)


def send(other):
    while True:  # what is sent first may fail later
        own.messages.send(torch.zeros(1 << 16, dtype=torch.uint8), other, 0)
        time.sleep(0.02)


if rank:
    group = own.group((0, rank))
    group.barrier()
    own.messages._open()
    (exchange,) = shared_exchange._exchanges
    select.select(list(exchange.connections), [], [])  # the first worker waits; what it sent is never read
    end(ways[rank - 1])
else:
    errors = {}
    for other, way in enumerate(ways, 1):
        group = own.group((0, other))
        group.barrier()
        calls = {
            "all_reduce": lambda group=group: group.all_reduce([torch.ones(3)], "sum"),
            "broadcast": lambda group=group: group.broadcast([torch.ones(1 << 22)], 1),
            "recv": lambda other=other: own.messages.receive(torch.zeros(1, dtype=torch.uint8), other, 0),
            "send": lambda other=other: send(other),
            "first collective": lambda other=other: own.group((0, other), "host ").barrier(),
        }
        name = str(own.peer(other))
        for call, run in calls.items():
            try:
                run()
            except RuntimeError as error:
                errors[f"{way}: {call}"] = str(error).replace(name, "the other")
    with open(f"{directory}/errors.new", "w") as file:
        json.dump(errors, file)
    os.rename(f"{directory}/errors.new", f"{directory}/errors.json")
