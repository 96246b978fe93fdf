"""The vendor's summary metrics of one NeuronCore (AWS Neuron documentation, neuron-profile user guide), from modelled device records.

Times are unions of intervals unless the name says `instruction_time` or `transfer_time` (sums, overlaps added). An
engine that waits between the tiles of an operator is not active.
`total_time` adds up the executions, idle engines included and the host between executions excluded. What the cost
model does not know is left out, not guessed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from neurontools.compiler.engines.dma import RELOAD_OPCODE, SPILL_OPCODE, DescriptorMode, DmaQueue
from neurontools.compiler.engines.placement import COLLECTIVE_OPCODE
from neurontools.profiler.capture.format import DEVICE_TRACKS, ENGINES, Track
from neurontools.profiler.trace.intervals import active_ns, busy_ns
from neurontools.profiler.trace.trace import executions_of

if TYPE_CHECKING:
    from neurontools.profiler.capture.format import Peaks
    from neurontools.profiler.trace.intervals import Int64s, Mask
    from neurontools.profiler.trace.trace import Trace, TraceRow

SETUP_OPCODES = frozenset(
    [
        "NOP",
        "SET_ORDERING_MODE",
        "EVENT_SEMAPHORE",
        "EVENT_SEMAPHORE_RANGE_CLEAR",
        "NOTIFY",
        "COMPARE_BRANCH",
        "DRAIN",
        "WRITE",
        "TENSOR_LOAD",
        "MODIFY_POOL_CONFIG",
    ]
)


@dataclass(frozen=True, slots=True)
class ProfileMetric:
    """A number of the summary. `unit` is s, %, B, # (a count), flops, or "" for a ratio."""

    name: str
    value: int | float
    unit: str


_UNITS = {
    "percent": "%",
    "bytes": "B",
    "size": "B",
    "time": "s",
    "count": "#",
    "cycles": "#",
    "flops": "flops",
}


def stated_metric(name: str, value: float) -> ProfileMetric:
    """Return a metric that a file states; its name tells the unit."""
    unit = _UNITS.get(name.rpartition("_")[2], "")
    return ProfileMetric(name, int(value) if unit != "%" and value.is_integer() else value, unit)


@dataclass(frozen=True, slots=True)
class _Work:
    """What the events of one row add up to: events, instructions, times, operations and bytes of HBM."""

    count: int
    instructions: int
    sum_ns: int
    busy_ns: int
    flops: int
    read_bytes: int
    write_bytes: int


class _CoreTracks:
    """The device rows of one NeuronCore."""

    def __init__(self, trace: Trace, rows: tuple[TraceRow, ...]) -> None:
        self._actions = trace.actions
        self._columns = trace.columns
        self.parts = {row.track: row.events.parts() for row in rows}
        self._executions = executions_of(row for row in rows if row.track in DEVICE_TRACKS)
        self._works: dict[tuple[Track, str | None], _Work] = {}
        self._opcode = np.array([action.opcode for action in trace.actions], dtype=object)

    def work(self, track: Track, opcode: str | None = None) -> _Work:
        """Return the totals of a row, with one opcode or all."""
        if (track, opcode) not in self._works:
            wanted = None if opcode is None else self._opcode == opcode
            self._works[track, opcode] = self._sum(track, wanted)
        return self._works[track, opcode]

    def _sum(self, track: Track, wanted: Mask | None) -> _Work:
        """Return the totals of a row, of some actions or of all."""
        total: Int64s = np.zeros(7, dtype=np.int64)
        columns = self._columns
        for part in self.parts.get(track, ()):
            events = part.events if wanted is None else part.events.take(wanted[part.events.action])
            action, duration = events.action, events.duration
            worked = columns.worked_ns(action, duration)
            total += part.weight * np.array(
                [
                    len(events),
                    columns.tiles[action].sum(),
                    worked.sum(),
                    busy_ns(events.start, duration) - (duration - worked).sum(),
                    columns.flops[action].sum(),
                    columns.read_bytes[action].sum(),
                    columns.write_bytes[action].sum(),
                ],
                dtype=np.int64,
            )
        return _Work(*total.tolist())

    def transfers(self) -> list[tuple[DmaQueue, _Work]]:
        """Return the totals of the DMA row by queue."""
        present = [part.events.action for part in self.parts.get(Track.DMA, ())]
        by_queue: dict[DmaQueue, Mask] = {}
        for number in np.unique(np.concatenate(present)).tolist() if present else ():
            queue = self._actions[number].queue
            if queue is not None:
                if queue not in by_queue:
                    by_queue[queue] = np.zeros(len(self._actions), dtype=bool)
                by_queue[queue][number] = True
        return [(queue, self._sum(Track.DMA, wanted)) for queue, wanted in by_queue.items()]

    def active_ns(self) -> int:
        """Return how long any engine or DMA works."""
        return sum(
            part.weight
            * active_ns(
                part.events.start,
                part.events.duration,
                self._columns.worked_ns(part.events.action, part.events.duration),
            )
            for part in self._executions
        )

    def exec_ns(self) -> int:
        """Return the sum over executions of the time from first to last instruction, setup excluded."""
        setup = np.array([name in SETUP_OPCODES for name in self._opcode], dtype=bool)
        total = 0
        for part in self._executions:
            real = part.events.take(~setup[part.events.action])
            if len(real):
                total += part.weight * int((real.start + real.duration).max() - real.start.min())
        return total


def core_metrics(trace: Trace, rows: tuple[TraceRow, ...], peaks: Peaks) -> tuple[ProfileMetric, ...]:
    """Return the metrics of one NeuronCore from its device rows of one process.

    Metrics that need an unknown peak (0) are left out.
    """
    core = _CoreTracks(trace, rows)
    total_ns = core.work(Track.MODEL).sum_ns
    return (
        *_time(core, total_ns, peaks),
        *_flops(core, total_ns, peaks),
        *_engines(core, total_ns),
        *_dma(core, total_ns),
        *_collectives(core, total_ns),
        *_memory(core, total_ns, peaks),
        ProfileMetric("event_count", sum(row.last - row.first for row in rows), "#"),
    )


def _percent(part: float, whole: float) -> float:
    return 100.0 * part / whole if whole else 0.0


def _seconds(name: str, ns: int) -> ProfileMetric:
    return ProfileMetric(name, ns / 1e9, "s")


def _time(core: _CoreTracks, total_ns: int, peaks: Peaks) -> list[ProfileMetric]:
    active_ns = core.active_ns()
    metrics = [
        _seconds("total_time", total_ns),
        _seconds("total_exec_time", core.exec_ns()),
        _seconds("total_active_time", active_ns),
        ProfileMetric("total_active_time_percent", _percent(active_ns, total_ns), "%"),
        ProfileMetric("trace_count", core.work(Track.MODEL).count, "#"),
    ]
    if peaks.clock_hz:
        metrics.append(ProfileMetric("neuroncore_cycle_count", round(total_ns * peaks.clock_hz / 1e9), "#"))
    return metrics


def _flops(core: _CoreTracks, total_ns: int, peaks: Peaks) -> list[ProfileMetric]:
    useful = core.work(Track.TENSOR).flops
    read, write = _hbm_bytes(core)
    metrics = [ProfileMetric("model_flops", useful, "flops")]
    intensity = useful / (read + write) if read + write else 0.0
    metrics.append(ProfileMetric("mm_arithmetic_intensity", intensity, ""))
    if peaks.tensor_flops_s and peaks.hbm_bytes_s:
        ridge = peaks.tensor_flops_s / peaks.hbm_bytes_s
        metrics.append(ProfileMetric("peak_flops_bandwidth_ratio", ridge, ""))
    if peaks.tensor_flops_s:
        possible = peaks.tensor_flops_s * total_ns / 1e9
        used = _percent(useful, possible)
        # What the engine could have computed while it worked: padding, transposes and passes of float32 included.
        hardware, transpose = (
            round(peaks.tensor_flops_s * core.work(Track.TENSOR, opcode).busy_ns / 1e9)
            for opcode in (None, "TRANSPOSE")
        )
        metrics += [
            ProfileMetric("hardware_flops", hardware, "flops"),
            ProfileMetric("transpose_flops", transpose, "flops"),
            ProfileMetric("mfu_estimated_percent", used, "%"),
            ProfileMetric("mfu_hlo_estimated_percent", used, "%"),
            ProfileMetric("mfu_inst_estimated_percent", used, "%"),
            ProfileMetric("hfu_estimated_percent", _percent(hardware, possible), "%"),
        ]
    if peaks.tensor_flops_s and peaks.hbm_bytes_s:
        bound = min(100.0, _percent(intensity, ridge))
        metrics.append(ProfileMetric("mfu_max_achievable_estimated_percent", bound, "%"))
    return metrics


def _engines(core: _CoreTracks, total_ns: int) -> list[ProfileMetric]:
    metrics: list[ProfileMetric] = []
    for track in ENGINES:
        work, name = core.work(track), f"{track.label.lower()}_engine"
        metrics += [
            _seconds(f"{name}_active_time", work.busy_ns),
            ProfileMetric(f"{name}_active_time_percent", _percent(work.busy_ns, total_ns), "%"),
            _seconds(f"{name}_instruction_time", work.sum_ns),
            ProfileMetric(f"{name}_instruction_count", work.instructions, "#"),
        ]
    activate = core.work(Track.SCALAR, "ACTIVATE")
    return [
        *metrics,
        ProfileMetric("matmul_instruction_count", core.work(Track.TENSOR, "MATMUL").instructions, "#"),
        _seconds("activate_instruction_time", activate.sum_ns),
        ProfileMetric("activate_instruction_count", activate.instructions, "#"),
    ]


def _dma(core: _CoreTracks, total_ns: int) -> list[ProfileMetric]:
    work = core.work(Track.DMA)
    moved = work.read_bytes + work.write_bytes
    return [
        _seconds("dma_active_time", work.busy_ns),
        ProfileMetric("dma_active_time_percent", _percent(work.busy_ns, total_ns), "%"),
        _seconds("dma_transfer_time", work.sum_ns),
        ProfileMetric("dma_transfer_count", work.count, "#"),
        ProfileMetric("dma_transfer_total_bytes", moved, "B"),
        ProfileMetric("dma_transfer_average_bytes", moved / work.count if work.count else 0.0, "B"),
        *_dma_modes(core, total_ns, moved),
    ]


def _dma_modes(core: _CoreTracks, total_ns: int, moved: int) -> list[ProfileMetric]:
    """Return time and bytes by who makes the descriptors, and the number of queues."""
    metrics: list[ProfileMetric] = []
    transfers = core.transfers()
    for mode in DescriptorMode:
        kinds = [work for queue, work in transfers if queue.mode is mode]
        busy = sum(work.busy_ns for work in kinds)
        nbytes = sum(work.read_bytes + work.write_bytes for work in kinds)
        metrics += [
            _seconds(f"{mode}_dma_active_time", busy),
            ProfileMetric(f"{mode}_dma_active_time_percent", _percent(busy, total_ns), "%"),
            ProfileMetric(f"{mode}_dma_size", nbytes, "B"),
            ProfileMetric(f"{mode}_dma_size_percent", _percent(nbytes, moved), "%"),
        ]
    return [ProfileMetric("dma_queue_count", len(transfers), "#"), *metrics]


def _collectives(core: _CoreTracks, total_ns: int) -> list[ProfileMetric]:
    work = core.work(Track.CC, COLLECTIVE_OPCODE)
    return [
        _seconds("cc_op_time", work.sum_ns),
        _seconds("cc_op_active_time", work.busy_ns),
        ProfileMetric("cc_op_active_time_percent", _percent(work.busy_ns, total_ns), "%"),
        ProfileMetric("cc_op_count", work.count, "#"),
    ]


def _memory(core: _CoreTracks, total_ns: int, peaks: Peaks) -> list[ProfileMetric]:
    read, write = _hbm_bytes(core)
    metrics = [ProfileMetric("hbm_read_bytes", read, "B"), ProfileMetric("hbm_write_bytes", write, "B")]
    if peaks.hbm_bytes_s:
        possible = peaks.hbm_bytes_s * total_ns / 1e9
        metrics.append(ProfileMetric("mbu_estimated_percent", _percent(read + write, possible), "%"))
    saved, reloaded = (core.work(Track.DMA, opcode) for opcode in (SPILL_OPCODE, RELOAD_OPCODE))
    return [
        *metrics,
        ProfileMetric("spill_save_bytes", saved.write_bytes, "B"),
        ProfileMetric("spill_reload_bytes", reloaded.read_bytes, "B"),
    ]


def _hbm_bytes(core: _CoreTracks) -> tuple[int, int]:
    works = [core.work(track) for track in DEVICE_TRACKS]
    return sum(work.read_bytes for work in works), sum(work.write_bytes for work in works)
