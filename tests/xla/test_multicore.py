"""Ranks of one process: what they exchange, in the order of the ranks, and what happens when one fails."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")
collectives = pytest.importorskip("neurontools.xla.distributed.collectives")
worker_group = pytest.importorskip("neurontools.xla.distributed.worker_group")
communicator = pytest.importorskip("neurontools.xla.multicore.communicator")
meetings = pytest.importorskip("neurontools.xla.multicore.meeting")

pytestmark = pytest.mark.usefixtures("machine")


def on_ranks(function, size, delays=()):
    """Call a function as each rank, in threads that start after their delays."""
    meeting = meetings.ThreadMeeting()

    def run(rank):
        time.sleep(dict(enumerate(delays)).get(rank, 0))
        try:
            with worker_group.substitute(communicator.RankCommunicator(meeting, rank, size)):
                return function(rank)
        except BaseException:
            meeting.fail(rank)
            raise

    with ThreadPoolExecutor(size) as threads:
        runs = [threads.submit(run, rank) for rank in range(size)]
    return [each.result() for each in runs]


def all_reduced(kind, groups=None, dtype=torch.float32):
    def run(rank):
        tensor = torch.arange(3).to(dtype) + rank + 1
        collectives.all_reduce_([tensor], kind, 0.5 if kind == "sum" else 1.0, groups)
        return tensor.tolist()

    return run


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("sum", [3.0, 4.5, 6.0]),
        ("mul", [6.0, 24.0, 60.0]),
        ("min", [1.0, 2.0, 3.0]),
        ("max", [3.0, 4.0, 5.0]),
    ],
)
def test_tensors_are_reduced(kind, wanted):
    assert on_ranks(all_reduced(kind), 3) == [wanted] * 3


def test_groups_reduce_among_themselves():
    results = on_ranks(all_reduced("max", [[0, 2], [1, 3]]), 4)
    assert results == [[3.0, 4.0, 5.0], [4.0, 5.0, 6.0]] * 2


def test_the_order_of_arrival_does_not_change_a_sum():
    values = [torch.tensor([1e8]), torch.tensor([1.0]), torch.tensor([-1e8])]

    def run(rank):
        tensor = values[rank].clone()
        collectives.all_reduce_([tensor], "sum")
        return tensor.item()

    sums = {tuple(on_ranks(run, 3, delays)) for delays in ((0, 0.05, 0.1), (0.1, 0.05, 0), (0.05, 0.1, 0))}
    assert sums == {(((values[0] + values[1]) + values[2]).item(),) * 3}


def test_tensors_are_gathered_scattered_exchanged_and_sent():
    def run(rank):
        rows = torch.arange(4) + 10 * rank
        sent = rows.clone()
        collectives.broadcast_([sent], 1)
        return [
            collectives.all_gather(rows).tolist(),
            collectives.reduce_scatter(rows, "sum").tolist(),
            collectives.all_to_all(rows).tolist(),
            collectives.collective_permute(rows, [(0, 1), (1, 0)]).tolist(),
            sent.tolist(),
        ]

    zero, one = [0, 1, 2, 3], [10, 11, 12, 13]
    assert on_ranks(run, 2) == [
        [zero + one, [10, 12], [0, 1, 10, 11], one, one],
        [zero + one, [14, 16], [2, 3, 12, 13], zero, one],
    ]


def test_a_rank_that_fails_ends_the_waits_of_the_others():
    waiting = threading.Event()

    def run(rank):
        if rank == 1:
            waiting.wait()
            raise ValueError("of rank 1")
        if rank == 0:
            waiting.set()
        try:
            return all_reduced("sum")(rank)
        except meetings.RankError as error:
            return str(error)

    with pytest.raises(ValueError, match="of rank 1"):
        on_ranks(run, 3)


def test_a_recorded_rank_waits_for_nobody():
    recorded = communicator.RankCommunicator(meetings.RecordedMeeting(), 0, 8)
    with worker_group.substitute(recorded):
        assert collectives.group_size() == 8
        assert collectives.all_gather(torch.ones(2)).shape == (16,)
        assert collectives.reduce_scatter(torch.ones(16), "sum").shape == (2,)
        assert collectives.collective_permute(torch.ones(2), [(0, 1), (7, 0)]).shape == (2,)
    assert collectives.group_size() == 1
