"""Device memory over time (measured), what was alive at the peak, and SBUF and PSUM over a program (modelled)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from neurontools.profiler.analysis.programs import core_of, read_neff, schedule_of
from neurontools.profiler.capture.format import Track
from neurontools.runtime.host_activity import HostEvent

if TYPE_CHECKING:
    from neurontools.profiler.trace.intervals import Int64s
    from neurontools.profiler.trace.trace import Trace, TraceRow


@dataclass(frozen=True, slots=True)
class MemoryOwner:
    """Buffers of one name and line that were alive at the peak."""

    name: str
    source: str
    buffers: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class MemoryCurve:
    """Device memory of one NeuronCore over time, measured.

    Args:
        row: its allocations.
        times: when it changed, nanoseconds since the first event, in order.
        used: bytes in use from each of them on.
        peak_bytes: most bytes in use.
        peak_ns: when that was.
        owners: what was alive then, most bytes first.
    """

    row: TraceRow
    times: Int64s
    used: Int64s
    peak_bytes: int
    peak_ns: int
    owners: tuple[MemoryOwner, ...]

    def at(self, times: Int64s) -> Int64s:
        """Return the bytes in use at times."""
        place = np.searchsorted(self.times, times, side="right") - 1
        return np.where(place < 0, 0, self.used[np.maximum(place, 0)])


@dataclass(frozen=True, slots=True)
class OnChipUse:
    """Use of SBUF and PSUM over one execution of a program, modelled.

    Args:
        program: its name.
        total_ns: how long an execution takes.
        sbuf: bytes of SBUF from each time (nanoseconds since the start) on.
        sbuf_bytes: what there is.
        psum: banks of PSUM from each time on.
        psum_banks: what there is.
    """

    program: str
    total_ns: int
    sbuf: tuple[tuple[float, int], ...]
    sbuf_bytes: int
    psum: tuple[tuple[float, int], ...]
    psum_banks: int


def core_memory(trace: Trace) -> tuple[MemoryCurve, ...]:
    """Return the memory of every NeuronCore that the profile has allocations of."""
    return tuple(_of_row(trace, row) for row in trace.rows_of(Track.MEMORY))


def on_chip_use(trace: Trace, neff_hash: str) -> OnChipUse:
    """Return the use of SBUF and PSUM of a program.

    Raises:
        ProfileError: its NEFF is gone.
        NeffError: it is damaged.
    """
    neff = read_neff(trace, neff_hash)
    core = core_of(neff)
    schedule = schedule_of(neff, core)
    return OnChipUse(
        program=neff.header.name,
        total_ns=neff.cost.total_ns,
        sbuf=tuple(schedule.sbuf_use()),
        sbuf_bytes=core.sbuf_bytes,
        psum=tuple(schedule.psum_use()),
        psum_banks=core.costs.psum_banks * core.lnc,
    )


def _of_row(trace: Trace, row: TraceRow) -> MemoryCurve:
    events = row.events.block(0, row.events.count)
    is_taken = trace.host_kinds[events.action] == HostEvent.ALLOCATION
    used = np.cumsum(np.where(is_taken, events.value, -events.value))
    # Releases of buffers that are older than a cut-off profile would lead below zero.
    used = used - min(int(used.min(initial=0)), 0)
    peak = int(np.argmax(used))
    # The last event of a buffer up to the peak says whether it is alive.
    last = peak - np.unique(events.execution[peak::-1], return_index=True)[1]
    owners: dict[tuple[str, str], list[int]] = {}
    for place in last[is_taken[last]].tolist():
        action = trace.actions[int(events.action[place])]
        sums = owners.setdefault((action.name, action.source), [0, 0])
        sums[0] += 1
        sums[1] += int(events.value[place])
    found = [MemoryOwner(*key, *sums) for key, sums in owners.items()]
    found.sort(key=lambda owner: (-owner.nbytes, owner.name, owner.source))
    return MemoryCurve(
        row=row,
        times=events.start,
        used=used,
        peak_bytes=int(used[peak]),
        peak_ns=int(events.start[peak]),
        owners=tuple(found),
    )
