"""The model of a scenario: processes with cores, times, load, memory and errors; faults; the host.

Curves are over the age of a process in seconds; percentages are 0..100, sizes bytes, rates per second and core.
Latencies have a lognormal body with a tail and are exact counts by bucket of a telemetry page: a fixed sequence of
`_BLOCK` executions is spread over the buckets by the quantiles of the distribution and then repeats. So the counts of
the first n executions are a function of n, always add up to n, and never fall.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING

from neurontools.machine.snapshot import LATENCY_BUCKETS
from neurontools.scenario.curves import NOTHING, Curve, Scaled

if TYPE_CHECKING:
    from neurontools.machine.faults.params import FaultSpec

_BLOCK_BITS = 11
_BLOCK = 1 << _BLOCK_BITS
_P99 = NormalDist().inv_cdf(0.99)


@dataclass(frozen=True)
class Latency:
    """A distribution of wall times.

    Half of the body's executions take `p50_s` or less, 99 % take `p99_s` or less. The share `tail_share` (0..1) of
    all executions takes `tail_factor` times as long.
    """

    p50_s: float
    p99_s: float
    tail_share: float = 0.0
    tail_factor: float = 1.0

    @cached_property
    def mean_s(self) -> float:
        """The mean wall time."""
        times = _times(self)
        return sum(times) / len(times)

    def counts(self, executions: int, offset: int = 0) -> tuple[int, ...]:
        """Return how many of the first executions fall into each bucket of `ProcessState.latency_counts`.

        Args:
            executions: how many.
            offset: where in the repeating sequence the first one stands, so that two processes differ.
        """
        counts = [0] * LATENCY_BUCKETS
        start = offset % _BLOCK
        rounds, rest = divmod(start + executions, _BLOCK)
        for bucket, places in _places(self):
            counts[bucket] = rounds * len(places) + bisect_left(places, rest) - bisect_left(places, start)
        return tuple(counts)


def bucket_of(seconds: float) -> int:
    """Return the bucket of a wall time: half a power of two of microseconds each."""
    wall_ns = round(seconds * 1e9)
    return min(max((wall_ns * wall_ns // 1_000_000).bit_length() - 1, 0), LATENCY_BUCKETS - 1)


@lru_cache(maxsize=256)
def _times(latency: Latency) -> tuple[float, ...]:
    # One time for each place of the block, in ascending order of body and tail.
    tail = round(latency.tail_share * _BLOCK)
    sigma = math.log(latency.p99_s / latency.p50_s) / _P99
    body = _quantiles(latency.p50_s, sigma, _BLOCK - tail)
    return (*body, *_quantiles(latency.p50_s * latency.tail_factor, sigma, tail))


def _quantiles(median_s: float, sigma: float, count: int) -> tuple[float, ...]:
    normal = NormalDist()
    return tuple(median_s * math.exp(sigma * normal.inv_cdf((place + 0.5) / count)) for place in range(count))


@lru_cache(maxsize=256)
def _places(latency: Latency) -> tuple[tuple[int, list[int]], ...]:
    # The places of each bucket in the block. Reversing the bits of a place spreads neighbours far apart.
    places: dict[int, list[int]] = {}
    times = _times(latency)
    for place in range(_BLOCK):
        rank = int(f"{place:0{_BLOCK_BITS}b}"[::-1], 2)
        places.setdefault(bucket_of(times[rank]), []).append(place)
    return tuple(sorted(places.items()))


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """A model on every core of a process: device memory, and the ages at load and unload (None: never)."""

    name: str
    code_bytes: int = 0
    constant_bytes: int = 0
    scratchpad_bytes: int = 0
    load_s: float = 0.0
    unload_s: float | None = None


@dataclass(frozen=True, slots=True)
class Restart:
    """The restart of a process that ended early: after a delay that grows by a factor, at most `times` times.

    `times` None: without limit.
    """

    delay_s: float = 1.0
    backoff: float = 1.0
    longest_s: float = 3600.0
    times: int | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a process before its stop time.

    It runs `shortest_s` to `longest_s`, depending on the seed. With a status it fails one execution with it
    `linger_s` before its end and is idle from then on.
    """

    shortest_s: float
    longest_s: float
    status: int | None = None
    linger_s: float = 2.0


@dataclass(frozen=True, slots=True)
class Work:
    """What a process does over its age.

    `utilization` is percent of wall time in which a core executes, `executions` successful ones per second and core,
    `errors` pairs of NRT status number and failed executions per second and core. `mfu` is the share (0..1) of the
    core's peak while it executes. `memory` and `host_memory` are pairs of category and bytes, per core and per
    process; models come on top. `cpu_user` and `cpu_system` are percent of one vCPU.
    """

    utilization: Curve = NOTHING
    executions: Curve = NOTHING
    errors: tuple[tuple[int, Curve], ...] = ()
    memory: tuple[tuple[str, Curve], ...] = ()
    host_memory: tuple[tuple[str, Curve], ...] = ()
    cpu_user: Curve = NOTHING
    cpu_system: Curve = NOTHING
    mfu: float = 0.0

    def seeded(self, seed: str) -> Work:
        """Return the work with the noise of a seed."""
        return Work(
            utilization=self.utilization.seeded(f"{seed}/utilization"),
            executions=self.executions.seeded(
                f"{seed}/utilization" if isinstance(self.executions, Scaled) else f"{seed}/executions"
            ),
            errors=tuple((status, curve.seeded(f"{seed}/errors/{status}")) for status, curve in self.errors),
            memory=tuple((name, curve.seeded(f"{seed}/memory/{name}")) for name, curve in self.memory),
            host_memory=tuple(
                (name, curve.seeded(f"{seed}/host_memory/{name}")) for name, curve in self.host_memory
            ),
            cpu_user=self.cpu_user.seeded(f"{seed}/cpu/user"),
            cpu_system=self.cpu_system.seeded(f"{seed}/cpu/system"),
            mfu=self.mfu,
        )


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """One process of a scenario. `rank` counts in its group, `cores` are machine-wide logical ids.

    `latencies` are pairs of an age and the distribution from then on. `stop_s` is scenario time, None: at the end.
    `has_collectives` says whether its executions exchange data with the other processes of its group.
    """

    group: str
    rank: int
    tag: str
    command: str
    uid: int | None
    runtime_version: str
    uses_device: bool
    has_collectives: bool
    cores: tuple[int, ...]
    start_s: float
    stop_s: float | None
    work: Work
    models: tuple[ModelPlan, ...]
    latencies: tuple[tuple[float, Latency], ...]
    ending: Ending | None
    restart: Restart | None
    seed: str


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """A group of processes."""

    name: str
    description: str
    processes: tuple[ProcessPlan, ...]
    phases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """A fault at a scenario time; the seconds in `spec` are scenario seconds too."""

    at_s: float
    spec: FaultSpec


@dataclass(frozen=True, slots=True)
class HostPlan:
    """The load of the host in an offline recording: percent of all vCPUs, bytes of memory."""

    cpu_user: Curve = NOTHING
    cpu_system: Curve = NOTHING
    memory: Curve = NOTHING


@dataclass(frozen=True, slots=True)
class Scenario:
    """A checked scenario; every process has its cores."""

    name: str
    description: str
    instance_type: str
    lnc: int
    duration_s: float
    seed: int
    groups: tuple[GroupPlan, ...]
    faults: tuple[FaultPlan, ...] = ()
    host: HostPlan = field(default_factory=HostPlan)

    @property
    def processes(self) -> tuple[ProcessPlan, ...]:
        """The processes of all groups."""
        return tuple(process for group in self.groups for process in group.processes)
