"""Messages between four workers, and training in a pipeline of them, compared with one process on the CPU."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

_LAYERS = 8
_POLL_S = 0.02
_LATE_S = 0.5  # longer than a worker waits before it looks after the others


class Part(nn.Module):
    """Some layers of a model, as a stage of a pipeline."""

    def __init__(self, layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x)


def make(device="neuron"):
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(_LAYERS)]).to(device)


def batches():
    numbers = torch.Generator().manual_seed(1)
    return [(torch.randn(8, 6, generator=numbers), torch.randn(8, 6, generator=numbers)) for _ in range(2)]


def train_alone():
    model = make("cpu")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, target in batches():
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), target).backward()
        optimizer.step()
    return model


def difference(schedule_of, of_each=1):
    """Return by how much this worker's weights differ from those of one process, after training in a pipeline."""
    rank, count = dist.get_rank(), dist.get_world_size() * of_each
    numbers = range(rank, count, dist.get_world_size())
    length = _LAYERS // count
    model, alone = make(), train_alone()
    stages = [
        PipelineStage(
            Part(model[length * number : length * (number + 1)]), number, count, torch.device("neuron")
        )
        for number in numbers
    ]
    optimizer = torch.optim.SGD([weight for stage in stages for weight in stage.submod.parameters()], 0.1)
    schedule = schedule_of(stages if of_each > 1 else stages[0], 4, loss_fn=nn.functional.mse_loss)
    for x, target in batches():
        optimizer.zero_grad()
        schedule.step(
            *([x.to("neuron")] if rank == 0 else []),
            **({"target": target.to("neuron")} if rank == dist.get_world_size() - 1 else {}),
        )
        optimizer.step()
    return max(
        (mine.cpu() - expected).abs().max().item()
        for number in numbers
        for position in range(length * number, length * (number + 1))
        for mine, expected in zip(model[position].parameters(), alone[position].parameters(), strict=True)
    )


def pipelines():
    return {
        "GPipe": difference(ScheduleGPipe),
        "1F1B": difference(Schedule1F1B),
        "interleaved": difference(ScheduleInterleaved1F1B, 2),
    }


def ask(device, after, before):
    """Return whether two tensors have come: before they are sent, and when the second one has; and what came."""
    parts = [torch.empty(1, dtype=torch.int16, device=device) for _ in range(2)]
    requests = [dist.irecv(part, before) for part in parts]
    early = [request.is_completed() for request in requests]
    dist.barrier()
    for value in (100, 200):
        sent = dist.isend(torch.tensor([dist.get_rank() + value], dtype=torch.int16, device=device), after)
    while not requests[1].is_completed():
        time.sleep(_POLL_S)
    return [*early, sent.is_completed(), requests[0].is_completed(), torch.cat(parts).tolist()]


def messages():
    """Return what arrives around a ring: late, of all types, in the order of the tags and of the requests."""
    rank, world = dist.get_rank(), dist.get_world_size()
    after, before = (rank + 1) % world, (rank - 1) % world
    own, got = torch.full((2,), float(rank), device="neuron"), torch.empty(2, device="neuron")
    requests = dist.batch_isend_irecv(
        [dist.P2POp(dist.irecv, got, before), dist.P2POp(dist.isend, own, after)]
    )
    for request in requests:
        request.wait()
    ring = got.tolist()
    if rank == 0:
        time.sleep(_LATE_S)
    dist.send(own + 10, after)
    dist.recv(got, before)
    late = got.tolist()
    for tag, value in ((1, 100), (2, 200), (2, 300)):
        dist.isend(own + value, after, tag=tag)
    parts = [torch.empty(2, device="neuron") for _ in range(3)]
    second, third, first = [
        dist.irecv(part, before, tag=tag) for part, tag in zip(parts, (2, 2, 1), strict=True)
    ]
    for request in (first, third, second):
        request.wait()
    objects = [None, None]
    if rank % 2:
        dist.recv_object_list(objects, before)
    else:
        dist.send_object_list(["text", {"rank": rank}], after)
    return {
        "ring": ring,
        "late": late,
        "tags": [part.tolist() for part in parts],
        "asked": {device: ask(device, after, before) for device in ("cpu", "neuron")},
        "objects": objects,
    }


CHECKS = (messages, pipelines)
