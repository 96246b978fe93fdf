"""A moment of a machine, and its form on a tape: whole, or what changed since the moment before; compressed."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neurontools.machine.changes import changed, changes
from neurontools.machine.host import CpuTimes, HostSample
from neurontools.machine.snapshot import encode, snapshot_from_json

if TYPE_CHECKING:
    from neurontools.machine.snapshot import Snapshot

_LEVEL = 1


@dataclass(frozen=True, slots=True)
class Moment:
    """The machine and the host at one moment; `cpu` is None where the machine is not on this host."""

    snapshot: Snapshot
    cpu: HostSample | None = None


def packed(moment: Moment, before: Moment | None) -> bytes:
    """Return a moment as bytes.

    Args:
        moment: the moment.
        before: the one before, of which only what changed is written; None: write it whole.
    """
    value = [moment.snapshot] if before is None else changes(before.snapshot, moment.snapshot)
    return zlib.compress(encode([value, _cpu_value(moment.cpu)]).encode(), _LEVEL)


def unpacked(data: bytes, before: Moment | None) -> Moment:
    """Return the moment of `packed`; `before` is what was given there."""
    value, cpu = json.loads(zlib.decompress(data))
    snapshot = snapshot_from_json(value[0]) if before is None else changed(before.snapshot, value)
    return Moment(snapshot, _cpu(cpu))


def _cpu_value(cpu: HostSample | None) -> list[Any] | None:
    if cpu is None:
        return None
    processes = [[*key, times.user_s, times.system_s] for key, times in cpu.processes]
    return [cpu.capacity_s, cpu.host.user_s, cpu.host.system_s, processes]


def _cpu(value: list[Any] | None) -> HostSample | None:
    if value is None:
        return None
    capacity_s, user_s, system_s, processes = value
    return HostSample(
        capacity_s,
        CpuTimes(user_s, system_s),
        tuple(((pid, ticks), CpuTimes(user, system)) for pid, ticks, user, system in processes),
    )
