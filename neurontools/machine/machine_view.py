"""What dashboards show of a machine, as numbers: utilization and FLOPs per core, memory by category, latency percentiles.

Pure: every number comes from the snapshots that are passed in. Rates need two snapshots; with one they are zero.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from neurontools.machine.memory_tree import MemoryMap

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from neurontools.machine.snapshot import ProcessState, Snapshot

    Rates = Mapping[int, "CoreRate"]

ProcessKey = tuple[int, int]
_SECONDS_DIGITS = 9


class CoreRate(Struct, frozen=True, gc=False):
    """One logical core over the interval between two snapshots.

    `core` is the machine-wide id, `utilization` a share of wall time (0..1), `flops_s` the cost model's FLOPs a second.
    """

    core: int
    utilization: float
    flops_s: float


class DeviceRates(Struct, frozen=True):
    """The cores of one device, in order of their ids. `lost` is set for a device that fell off the bus."""

    index: int
    cores: tuple[CoreRate, ...]
    lost: bool = False


class MachineView(Struct, frozen=True):
    """All numbers of the dashboard. The means are over the cores that count (see `machine_view`)."""

    devices: tuple[DeviceRates, ...]
    mean_utilization: float
    mean_flops_s: float
    total_flops_s: float
    memory: MemoryMap


@cache
def _idle(core: int) -> CoreRate:
    return CoreRate(core, 0.0, 0.0)


def process_key(process: ProcessState) -> ProcessKey:
    """Return what identifies a process for its whole life, also when its pid is used again."""
    return process.pid, process.start_ticks


def device_processes(snapshot: Snapshot) -> tuple[ProcessState, ...]:
    """Return the processes that use a device, oldest first; those that only read from the machine are left out."""
    users = (process for process in snapshot.processes if process.uses_device)
    return tuple(sorted(users, key=lambda process: (process.registered_ns, process.pid)))


def restrict(snapshot: Snapshot, key: ProcessKey) -> Snapshot:
    """Return the snapshot as if only one process (or none, when it is gone) were there."""
    return replace(
        snapshot, processes=tuple(process for process in snapshot.processes if process_key(process) == key)
    )


def core_rates(before: Snapshot | None, after: Snapshot) -> Rates:
    """Return the rates of every core of the machine by its machine-wide id; where nothing ran, the same object again."""
    resting = _resting(tuple([device.core_ids for device in after.devices]))
    wall_ns = after.taken_ns - before.taken_ns if before is not None else 0
    if before is None or wall_ns <= 0:
        return resting
    earlier = {(process.pid, process.start_ticks): process for process in before.processes}
    working: dict[int, CoreRate] = {}
    for process in after.processes:
        start = earlier.get((process.pid, process.start_ticks))
        if start is process:
            continue
        starts = {use.core: use for use in start.cores} if start else {}
        for use in process.cores:
            core = use.core
            old = starts.get(core)
            if old is use:
                continue
            busy_ns, flops = use.busy_ns, use.flops
            if old is not None:
                busy_ns -= old.busy_ns
                flops -= old.flops
            share = busy_ns / wall_ns
            flops_s = flops * 1e9 / wall_ns if flops > 0 else 0.0
            if core in working:
                flops_s += working[core].flops_s
            if share > 0 or flops_s > 0:
                working[core] = CoreRate(core, 0.0 if share < 0 else min(1.0, share), flops_s)
    return {**resting, **working} if working else resting


@lru_cache(maxsize=16)
def _resting(cores: tuple[tuple[int, ...], ...]) -> Rates:
    return {core: _idle(core) for of_device in cores for core in sorted(of_device)}


def machine_view(
    before: Snapshot | None,
    after: Snapshot,
    process: ProcessKey | None = None,
    rates: Mapping[int, CoreRate] | None = None,
    former: MachineView | None = None,
) -> MachineView:
    """Compute the dashboard of a machine, or of one process on it.

    Args:
        before: an earlier snapshot of the same machine, or None when there is none yet.
        after: the snapshot that is shown.
        process: restrict every number to this process. Means are then over the cores that it claims; without it
            they are over all cores of the machine.
        rates: the result of `core_rates` for the two snapshots, if the caller has it; not used for a process.
        former: an earlier view of this machine; its unchanged parts are reused.
    """
    if process is not None:
        before = None if before is None else restrict(before, process)
        after = restrict(after, process)
    if process is not None or rates is None:
        rates = core_rates(before, after)
    counted: Collection[CoreRate] = rates.values()
    if process is not None:
        own = {use.core for owner in after.processes for use in owner.cores}
        counted = [rate for rate in counted if rate.core in own]
    total_flops_s = sum([rate.flops_s for rate in counted])
    return MachineView(
        devices=_devices(after, rates, former.devices if former is not None else ()),
        mean_utilization=sum([rate.utilization for rate in counted]) / len(counted) if counted else 0.0,
        mean_flops_s=total_flops_s / len(counted) if counted else 0.0,
        total_flops_s=total_flops_s,
        memory=MemoryMap(
            after, only_used=process is not None, former=former.memory if former is not None else None
        ),
    )


def _devices(
    after: Snapshot, rates: Mapping[int, CoreRate], former: tuple[DeviceRates, ...]
) -> tuple[DeviceRates, ...]:
    # An unchanged device is the same object as before, so drawing code can skip it.
    known = {device.index: device for device in former}
    shown = []
    for device in after.devices:
        cores = tuple([rates[core] for core in sorted(device.core_ids)])
        old = known.get(device.index)
        same = old is not None and old.cores == cores and old.lost == device.lost
        shown.append(old if same and old else DeviceRates(device.index, cores, device.lost))
    return tuple(shown)


def quantile_s(counts: Sequence[int], percent: float) -> float:
    """Return the latency in seconds of a percentile of a histogram.

    Args:
        counts: as `ProcessState.latency_counts`, not all zero. Inside a bucket executions are taken as spread evenly over
            the logarithm, so a value is at most 41 % off.
        percent: 0 to 100; 0 is where the first bucket in use begins.
    """
    return quantiles_s(counts, (percent,))[0]


def quantiles_s(counts: Sequence[int], percents: Sequence[float]) -> list[float]:
    """Return `quantile_s` for several percents in ascending order; the histogram is read once."""
    whole = sum(counts)
    ranks = [whole * percent / 100 for percent in percents]
    found: list[float] = []
    seen = 0
    for bucket, count in enumerate(counts):
        if count:
            while len(found) < len(ranks) and seen + count >= ranks[len(found)]:
                position = bucket + min(1.0, (ranks[len(found)] - seen) / count)
                found.append(round(2 ** (position / 2) * 1e-6, _SECONDS_DIGITS))
            seen += count
            if len(found) == len(ranks):
                break
    return found
