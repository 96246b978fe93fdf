"""One of two workers on machines of their own: a message, a collective, and a stranger who tries to send one.

Usage: worker_network.py RESULT
"""

import json
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from neurontools.base.json_reader import load_json
from neurontools.xla.distributed import greeting
from neurontools.xla.distributed.worker_group import Communicator
from neurontools.xla.distributed.worker_roster import JobKey

rank = int(os.environ["RANK"])
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), None, is_master=rank == 0)
own = Communicator(store, rank, 2, timedelta(seconds=200))
value = torch.full((1,), rank + 1, dtype=torch.uint8)
own.messages.send(value, 1 - rank, 0)
received = torch.zeros(1, dtype=torch.uint8)
own.messages.receive(received, 1 - rank, 0)
total = torch.ones(1) + rank
own.group((0, 1)).all_reduce([total], "sum")
host, port = load_json(own.store.get(f"messages/{1 - rank}"))
try:
    with greeting.connect((host, port), JobKey(b""), rank, 1 - rank) as connection:
        connection.sendall(bytes(16))
        heard = True
except ConnectionError:
    heard = False
own.group((0, 1)).barrier()  # so that the other worker is still there
with open(sys.argv[1], "w") as file:
    json.dump({"received": received.item(), "total": total.item(), "host": host, "heard": heard}, file)
