"""What bounds a step: the host, or the engine that works most while the device executes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.profiler.analysis.steps import PARTS
from neurontools.profiler.analysis.summary import engine_totals

if TYPE_CHECKING:
    from neurontools.profiler.analysis.steps import StepSummary
    from neurontools.profiler.trace.trace import Trace

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
