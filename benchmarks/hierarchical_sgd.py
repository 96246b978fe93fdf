"""Hierarchical SGD against synchronous SGD in modelled time, on 64, 128 and 256 workers of which some straggle.

The experiment is that of Wang and Varma, "Straggler Mitigation On PyTorch DDP By Hierarchical SGD",
https://pytorch.org/blog/straggler-mitigation/: ResNet18 in 1,000 steps of about 55 ms; in a step, each worker stalls
for a second with a probability of 2 % (64 workers) or 1 %. simpy simulates the workers as processes; which group
averages in which step is asked of torch's own HierarchicalModelAverager; a collective lasts as long as the cost model
of nccom-test says.
"""

from __future__ import annotations

import random
import warnings
from collections import OrderedDict
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING

from benchmarks.report import BenchmarkRow, in_short_form
from neurontools.collectives.fabric import find_fabric
from neurontools.collectives.model import Workload, timed
from neurontools.collectives.operations import Operation

if TYPE_CHECKING:
    from collections.abc import Iterator

    import simpy

SOURCE = "https://pytorch.org/blog/straggler-mitigation/"
INSTANCE = "trn1.32xlarge"
STEPS, STEP_S, STALL_S, SEED = in_short_form(1000, 8), 0.055, 1.0, 0
MODEL_BYTES = 45_000_000
TOLERANCE = 0.25
Levels = dict[int, int]
"""Sizes of the groups that average, by the period in steps."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """A number of workers, the published schemes, and the range of their published speedups."""

    workers: int
    stall_rate: float
    schemes: tuple[Levels, ...]
    published: tuple[float, float]


EXPERIMENTS = (
    Experiment(64, 0.02, ({2: 8, 4: 32, 8: 64}, {4: 32, 8: 64}), (2.08, 2.45)),
    Experiment(128, 0.01, ({2: 8, 4: 32, 8: 128}, {4: 32, 8: 128}), (2.57, 2.68)),
    Experiment(
        256, 0.01, ({1: 4, 2: 16, 4: 64, 8: 256}, {2: 8, 4: 64, 8: 256}, {4: 16, 8: 256}), (2.63, 3.25)
    ),
)


def main() -> list[BenchmarkRow]:
    """Simulate all schemes and return the rows."""
    missing = [name for name in ("simpy", "torch") if find_spec(name) is None]
    if missing:
        return [BenchmarkRow.missing("hierarchical SGD", f"needs {' and '.join(missing)}")]
    rows, best = [_assumptions()], []
    for experiment in EXPERIMENTS:
        found, fastest = _compare(experiment)
        rows += found
        best.append((experiment.workers, fastest))
    for (few, before), (many, after) in pairwise(best):
        rows.append(
            BenchmarkRow.at_least(
                f"best hierarchical scheme, {many} / {few} workers",
                after / before,
                "x",
                1,
                "the published trend",
            )
        )
    return rows


def _assumptions() -> BenchmarkRow:
    note = (
        f"published ({SOURCE}): a step of {1e3 * STEP_S:g} ms, {MODEL_BYTES / 1e6:g} MB of parameters, stalls of "
        f"{STALL_S:g} s; assumed: all other steps alike; stalls of workers and steps independent, the same in all "
        f"schemes (random seed {SEED}); a stalled worker does nothing else; collectives not overlapped with the "
        "backward pass; gradients within a machine averaged in scheme 1-4 alone; workers on the cores of "
        f"{INSTANCE} (published: machines of 4 GPUs, 32 Gbit/s)"
    )
    return BenchmarkRow.info("simulated steps of each scheme", STEPS, "", note)


def _compare(experiment: Experiment) -> tuple[list[BenchmarkRow], float]:
    """Return the rows of an experiment and the best speedup of a hierarchical scheme."""
    workers, (low, high) = experiment.workers, experiment.published
    stalls = _stalls(workers, experiment.stall_rate)
    step_s = simulate([workers] * STEPS, stalls) / STEPS

    def speedup(levels: Levels) -> float:
        return step_s / (simulate(schedule(levels, workers), stalls) / STEPS)

    hierarchical = {_name(levels): speedup(levels) for levels in experiment.schemes}
    local = {period: speedup({period: workers}) for period in (2, 4, 8)}
    slowest, fastest = min(hierarchical.values()), max(hierarchical.values())
    distance = max(abs(slowest / low - 1), abs(fastest / high - 1))
    between = sum(local[2] <= value <= local[8] for value in hierarchical.values())
    rows = [
        BenchmarkRow.info(
            f"{workers} workers, synchronous SGD, a step", 1e3 * step_s, "ms",
            f"each worker stalls in {experiment.stall_rate:.0%} of its steps; "
            f"all-reduce {1e3 * all_reduce_s(workers):.3g} ms",
        ),
        *(BenchmarkRow.info(f"{workers} workers, local SGD every {period} steps", value, "x")
          for period, value in local.items()),
        *(BenchmarkRow.info(f"{workers} workers, {name}", value, "x", f"published: {low:g} to {high:g} x")
          for name, value in hierarchical.items()),
        BenchmarkRow.at_most(f"{workers} workers, distance from the published range's ends", 100 * distance, "%",
            100 * TOLERANCE, f"{slowest:.3g} to {fastest:.3g} x"),
        BenchmarkRow.at_least(f"{workers} workers, schemes between local SGD every 2 and every 8 steps", between, "",
            len(hierarchical), "published: these are their bounds"),
    ]  # fmt: skip
    return rows, fastest


def _name(levels: Levels) -> str:
    return "HSGD " + ",".join(f"{period}-{size}" for period, size in levels.items())


def _stalls(workers: int, rate: float) -> list[list[bool]]:
    """Return in which steps each worker stalls."""
    draws = random.Random(SEED)
    return [[draws.random() < rate for _ in range(STEPS)] for _ in range(workers)]


def schedule(levels: Levels, workers: int) -> list[int]:
    """Return the size of the group that averages after each step, 0 for none, as torch's averager decides it."""
    import torch.distributed as dist
    from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import (
        HierarchicalModelAverager,
    )
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=workers, store=FakeStore())
    try:
        with warnings.catch_warnings(action="ignore"):
            averager = HierarchicalModelAverager(OrderedDict(levels))
        sizes = []
        for averager.step in range(STEPS):
            group = averager._find_process_group()
            sizes.append(0 if group is None else dist.get_world_size(group))
        return sizes
    finally:
        dist.destroy_process_group()


def simulate(sizes: list[int], stalls: list[list[bool]]) -> float:
    """Return when the last worker has done all steps, in seconds.

    Args:
        sizes: the size of the group that averages after each step, 0 for none; rank 0 and its neighbours are the first.
        stalls: in which steps each worker stalls.
    """
    import simpy

    world = simpy.Environment()
    meetings: dict[tuple[int, int], Meeting] = {}
    for rank, stalled in enumerate(stalls):
        world.process(_worker(world, rank, sizes, stalled, meetings))
    world.run()
    return float(world.now)


def _worker(
    world: simpy.Environment,
    rank: int,
    sizes: list[int],
    stalled: list[bool],
    meetings: dict[tuple[int, int], Meeting],
) -> Iterator[simpy.Event]:
    for step, size in enumerate(sizes):
        yield world.timeout(STEP_S + STALL_S * stalled[step])
        if size:
            place = (step, rank // size)
            yield meetings.setdefault(place, Meeting(world, size)).join()
            meetings.pop(place, None)


class Meeting:
    """A collective of one group: it starts when the last member has come, and ends for all at once."""

    def __init__(self, world: simpy.Environment, size: int) -> None:
        self._world = world
        self._size = self._absent = size
        self._end = world.event()

    def join(self) -> simpy.Event:
        """Return the end of the collective."""
        self._absent -= 1
        if not self._absent:
            self._world.process(self._run())
        return self._end

    def _run(self) -> Iterator[simpy.Event]:
        yield self._world.timeout(all_reduce_s(self._size))
        self._end.succeed()


@cache
def all_reduce_s(size: int) -> float:
    """Return the modelled time in which all groups of a size all-reduce the model at once."""
    fabric = find_fabric(INSTANCE)
    within = min(size, fabric.core_count)
    cores = range(fabric.core_count)
    groups = tuple(tuple(cores[first : first + within]) for first in range(0, fabric.core_count, within))
    work = Workload(Operation.ALL_REDUCE, groups, fabric, nodes=size // within)
    return timed(work, MODEL_BYTES).time_s
