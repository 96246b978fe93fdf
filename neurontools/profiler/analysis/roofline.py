"""What bounds a run: a step, the executions of the device, each operator (the roofline).

Below the ridge (peak FLOP/s by peak bytes of HBM a second) memory bounds the speed, above it the Tensor engine does. Times
of steps are measured, all others modelled. The time of an operator is that in which any engine or DMA works for it: what
overlaps counts once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from neurontools.profiler.analysis.operators import UNKNOWN, By
from neurontools.profiler.analysis.steps import PARTS
from neurontools.profiler.analysis.summary import engine_totals
from neurontools.profiler.capture.format import DEVICE_TRACKS, Peaks
from neurontools.profiler.trace.intervals import union
from neurontools.profiler.trace.trace import executions_of

if TYPE_CHECKING:
    from neurontools.profiler.analysis.steps import StepSummary
    from neurontools.profiler.trace.intervals import Int64s
    from neurontools.profiler.trace.trace import Trace


COMPUTE, MEMORY = "compute", "memory"
_KINDS = (By.OPERATOR, By.LAYER, By.SOURCE)


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """One operator, layer or source line.

    Args:
        name: which one.
        total_ns: modelled time in which any engine or DMA works for it.
        share: that time by the time of the executions.
        flops: floating-point operations.
        bytes_moved: bytes read from and written to HBM.
        flops_s: operations a second of its time.
        bytes_s: bytes a second of its time.
        intensity: operations a byte; infinite without bytes.
        bound: `compute` or `memory`, "" without work or with unknown peaks.
        roof: the best possible speed at this intensity, FLOP/s; of bytes a second if there are no operations.
        roof_share: achieved speed by that roof, 0 to 1.
        gap_ns: time that it would save at the roof.
    """

    name: str
    total_ns: int
    share: float
    flops: int
    bytes_moved: int
    flops_s: float
    bytes_s: float
    intensity: float
    bound: str
    roof: float
    roof_share: float
    gap_ns: int


@dataclass(frozen=True, slots=True)
class Roofline:
    """All points, those with most time first, and the peaks of one NeuronCore.

    Args:
        points: by operator, layer or source line.
        peak_flops_s: of the Tensor engine at bfloat16; 0 if unknown.
        peak_bytes_s: of HBM; 0 if unknown.
    """

    points: tuple[RooflinePoint, ...]
    peak_flops_s: float
    peak_bytes_s: float

    @property
    def ridge(self) -> float:
        """Operations a byte at which both peaks are reached; 0 if unknown."""
        return self.peak_flops_s / self.peak_bytes_s if self.peak_bytes_s else 0.0


def roofline(trace: Trace, by: By = By.OPERATOR, limit: int | None = None) -> Roofline:
    """Return the points of a trace.

    Args:
        trace: the profile or a part of it.
        by: operator, layer or source.
        limit: most points; None for all.

    Raises:
        ValueError: other groups have no roofline.
    """
    if by not in _KINDS:
        raise ValueError(f"no roofline by {by}")
    names: dict[str, int] = {}
    groups = np.array(
        [names.setdefault(getattr(each, _FIELDS[by]) or UNKNOWN, len(names)) for each in trace.actions],
        dtype=np.int64,
    )
    size = len(names)
    nothing: Int64s = np.zeros(size, dtype=np.int64)
    active, flops, nbytes = nothing.copy(), nothing.copy(), nothing.copy()
    for part in executions_of(trace.rows_of(*DEVICE_TRACKS)):
        action = part.events.action
        group = groups[action]
        active += part.weight * _active(group, part.events.start, part.events.duration, size)
        for total, column in (
            (flops, trace.columns.flops[action]),
            (nbytes, trace.columns.read_bytes[action] + trace.columns.write_bytes[action]),
        ):
            np.add.at(total, group, part.weight * column)
    peaks = next((meta.peaks for meta in trace.processes if meta.peaks.hbm_bytes_s), Peaks())
    executed = sum(int(runs.device_ns.sum()) for runs in trace.runs) or int(active.sum()) or 1
    points = [
        _point(name, (int(active[at]), int(flops[at]), int(nbytes[at])), executed, peaks)
        for name, at in names.items()
        if active[at]
    ]
    points.sort(key=lambda point: (-point.total_ns, point.name))
    return Roofline(tuple(points[:limit]), peaks.tensor_flops_s, peaks.hbm_bytes_s)


_FIELDS = {By.OPERATOR: "name", By.LAYER: "layer", By.SOURCE: "source"}


def _active(group: Int64s, start: Int64s, duration: Int64s, size: int) -> Int64s:
    """Return the length of the union of each group's intervals."""
    begin = int(start.min(initial=0))
    span = int((start + duration).max(initial=0)) - begin + 1
    starts, ends = union(group * span + start - begin, duration)
    active: Int64s = np.zeros(size, dtype=np.int64)
    np.add.at(active, starts // span, ends - starts)
    return active


def _point(name: str, work: tuple[int, int, int], executed: int, peaks: Peaks) -> RooflinePoint:
    total_ns, flops, nbytes = work
    seconds = total_ns / 1e9
    intensity = flops / nbytes if nbytes else float("inf") if flops else 0.0
    compute_s = flops / peaks.tensor_flops_s if peaks.tensor_flops_s else 0.0
    memory_s = nbytes / peaks.hbm_bytes_s if peaks.hbm_bytes_s else 0.0
    least_s = max(compute_s, memory_s)
    bound = "" if not least_s else COMPUTE if compute_s >= memory_s else MEMORY
    return RooflinePoint(
        name=name,
        total_ns=total_ns,
        share=total_ns / executed,
        flops=flops,
        bytes_moved=nbytes,
        flops_s=flops / seconds,
        bytes_s=nbytes / seconds,
        intensity=intensity,
        bound=bound,
        roof=(flops or nbytes) / least_s if least_s else 0.0,
        roof_share=least_s / seconds,
        gap_ns=max(0, round(total_ns - least_s * 1e9)),
    )


_CLEAR = 0.5


_STEP_TEXTS = {
    "idle_ns": "limited by: the host (Python, data loading, waiting)",
    "execute_ns": "limited by: device execution",
    "compile_ns": "limited by: compiling (graphs change)",
    "load_ns": "limited by: loading of models",
    "transfer_ns": "limited by: copies to and from the device",
}


def step_bound(summary: StepSummary) -> str:
    """Return what takes most of the average step, measured, in a few words."""
    return _STEP_TEXTS[max(PARTS, key=lambda part: int(getattr(summary, part)))]


@dataclass(frozen=True, slots=True)
class EngineShare:
    """Part of the modelled time of all executions (0 to 1) in which an engine works."""

    engine: str
    share: float


@dataclass(frozen=True, slots=True)
class DeviceBound:
    """What bounds executions, modelled.

    Args:
        device_ns: all executions.
        engines: those that work, most first.
        text: the verdict in a few words.
    """

    device_ns: int
    engines: tuple[EngineShare, ...]
    text: str


def device_bound(trace: Trace) -> DeviceBound | None:
    """Return what bounds the executions of a trace, None without modelled ones."""
    device_ns = sum(int(runs.device_ns.sum()) for runs in trace.runs)
    if device_ns == 0:
        return None
    engines = [EngineShare(each.engine, each.busy_ns / device_ns) for each in engine_totals(trace)]
    engines.sort(key=lambda each: (-each.share, each.engine))
    if not engines:
        return None
    first = engines[0]
    names = {
        "Tensor": "limited by: matrix products",
        "DMA": "limited by: data movement",
        "CC-cores": "limited by: collectives",
    }
    text = names.get(first.engine, f"limited by: the {first.engine} engine")
    if first.share < _CLEAR:
        text = "no engine works half of the time: operators wait for each other"
    return DeviceBound(device_ns, tuple(engines), text)
