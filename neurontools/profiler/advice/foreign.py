"""Rules about the steps of another program's trace: what its device waits for. It has no graphs, so all is measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from neurontools.base.text import plural
from neurontools.base.units import format_ns
from neurontools.profiler.advice.findings import WORTH, Advice, Clock, Evidence, Gain, Silent
from neurontools.profiler.advice.host import HOST
from neurontools.profiler.advice.waiting import INPUT
from neurontools.profiler.analysis.annotated_steps import HOW_TO_MARK, device_events
from neurontools.profiler.analysis.steps import find_steps
from neurontools.profiler.capture.format import ProfileError, Track
from neurontools.profiler.trace.intervals import BusyIndex

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.profiler.advice.findings import Finding
    from neurontools.profiler.analysis.steps import ProcessSteps
    from neurontools.profiler.trace.intervals import Int64s
    from neurontools.profiler.trace.trace import Trace

_LOADER, _NEXT = "enumerate(DataLoader)#", ".__next__"
_WORKERS = "MultiProcessing"
_GRAPHS = "other rules"


@dataclass(frozen=True, slots=True)
class ForeignSteps:
    """The steps of one process of another program's trace; times are measured nanoseconds of the average step.

    Args:
        process: its label.
        count: number of steps.
        step_ns: length of a step.
        device_ns: how long the device works; None if the trace has no device, or its times are modelled.
        input_ns: how long the program waits for a batch while the device does nothing.
        loader: what it waits for, the name of the event.
        kernels: number of events on the device in a step.
        kernel_ns: the median of their lengths.
    """

    process: str
    count: int
    step_ns: int
    device_ns: int | None
    input_ns: int
    loader: str
    kernels: float = 0.0
    kernel_ns: int = 0


def foreign_steps(trace: Trace) -> ForeignSteps:
    """Return the steps of the process that spends most time in steps.

    Raises:
        ProfileError: the trace has no steps.
    """
    found = find_steps(trace)
    if not found:
        raise ProfileError(
            f"advice needs steps, and this trace of {trace.measured_by} has none",
            HOW_TO_MARK,
        )
    return _of_process(trace, max(found, key=lambda steps: int(steps.duration_ns.sum())))


def foreign_findings(steps: ForeignSteps, program: str) -> Iterator[Finding]:
    """Yield what a step waits for; `program` wrote the trace."""
    yield _input_stalls(steps)
    yield _host_bound(steps)
    yield Silent(
        _GRAPHS, f"need the graphs that ran, and a trace of {program} has none: neuron-run --profile has"
    )


def _input_stalls(steps: ForeignSteps) -> Finding:
    gain = Gain(steps.input_ns, steps.step_ns, Clock.MEASURED, is_bound=True)
    if gain.share < WORTH:
        return Silent(INPUT, f"a step waits {format_ns(gain.ns)} for data ({gain.clock})")
    if _WORKERS in steps.loader:
        change = (
            "give DataLoader more workers (num_workers) or a larger prefetch_factor, or do less in Dataset"
        )
    else:
        change = "give DataLoader num_workers=4 (or more) and prefetch_factor=2: now the program itself loads each batch"
    meanwhile = "" if steps.device_ns is None else " while the device does nothing"
    return Advice(
        INPUT,
        "Load data ahead: each step waits for the next batch",
        change,
        gain,
        f"the time that the average step of {steps.process} waits for a batch{meanwhile}",
        (Evidence(f"{steps.loader}, {format_ns(gain.ns)} a step (measured)"),),
    )


def _host_bound(steps: ForeignSteps) -> Finding:
    if steps.device_ns is None:
        return Silent(HOST, "the trace has no measured times of a device")
    idle_ns = steps.step_ns - steps.device_ns - steps.input_ns
    seen = f"device: {format_ns(steps.device_ns)}, idle: {format_ns(idle_ns)} without waits for data, in the average step"
    if idle_ns <= steps.device_ns:
        return Silent(HOST, seen)
    kernels = round(steps.kernels)
    return Advice(
        HOST,
        "Let the host do less in a step: the device waits for it",
        "compile the model or the whole step with torch.compile, use a larger batch and a fused optimizer (fused=True), and do"
        " logging in other threads",
        Gain(idle_ns, steps.step_ns, Clock.MEASURED, is_bound=True),
        seen,
        (
            Evidence(
                f"{plural(kernels, 'event')} on the device a step, median {format_ns(steps.kernel_ns)}",
                count=kernels,
            ),
        ),
    )


def _of_process(trace: Trace, steps: ProcessSteps) -> ForeignSteps:
    edges = np.stack((steps.start_ns, steps.start_ns + steps.duration_ns), axis=1).reshape(-1)
    start, duration, loader = _waits(trace, steps.process)
    # The clock of modelled times is not that of the host.
    is_measured = not trace.measured_by.endswith("modelled)") and bool(trace.rows_of(Track.DEVICE))
    device, kernels, kernel_ns = None, 0.0, 0
    if not is_measured:
        input_ns = BusyIndex(start, duration).between(edges)[::2]
    else:
        begins, lengths = device_events(trace, steps.process)
        device = BusyIndex(begins, lengths)
        # What is busy with either, less what is busy with the device.
        both = BusyIndex(
            np.concatenate((start, device.starts)), np.concatenate((duration, device.ends - device.starts))
        )
        input_ns = (both.between(edges) - device.between(edges))[::2]
        place = np.searchsorted(edges, begins, side="right") - 1
        inside = (place >= 0) & (place % 2 == 0)
        kernels = float(inside.sum()) / len(steps)
        kernel_ns = int(np.median(lengths[inside])) if inside.any() else 0
    return ForeignSteps(
        process=trace.processes[steps.process].label,
        count=len(steps),
        step_ns=int(steps.duration_ns.mean()),
        device_ns=None if device is None else int(device.between(edges)[::2].mean()),
        input_ns=int(input_ns.mean()),
        loader=loader,
        kernels=kernels,
        kernel_ns=kernel_ns,
    )


def _waits(trace: Trace, process: int) -> tuple[Int64s, Int64s, str]:
    """Return starts and durations of a process's waits for batches, and the name of those that take longest."""
    is_wait = np.array(
        [action.name.startswith(_LOADER) and action.name.endswith(_NEXT) for action in trace.actions],
        dtype=bool,
    )
    rows = [row for row in trace.rows_of(Track.HOST) if row.process == process]
    blocks = [row.events.at(row.events.of_actions(is_wait)) for row in rows]
    nothing: Int64s = np.zeros(0, dtype=np.int64)
    start = np.concatenate([nothing, *(block.start for block in blocks)])
    duration = np.concatenate([nothing, *(block.duration for block in blocks)])
    action = np.concatenate([nothing, *(block.action.astype(np.int64) for block in blocks)])
    if len(start) == 0:
        return start, duration, ""
    longest = int(np.argmax(np.bincount(action, duration)))
    return start, duration, trace.actions[longest].name
