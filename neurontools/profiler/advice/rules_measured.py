"""Rules about measured times: what the device waits for, in runs of ours and in traces of other programs."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from neurontools.base.text import plural
from neurontools.base.units import format_ns, format_percent
from neurontools.compiler.engines.modelled_core import engine_costs
from neurontools.profiler.advice.findings import WORTH, Advice, Clock, Evidence, Gain, Silent
from neurontools.profiler.analysis.annotated_steps import HOW_TO_MARK, device_events
from neurontools.profiler.analysis.host import WARM_UP
from neurontools.profiler.analysis.ranks import NOISE_NS
from neurontools.profiler.analysis.steps import find_steps
from neurontools.profiler.capture.format import ProfileError, Track
from neurontools.profiler.trace.intervals import BusyIndex
from neurontools.runtime.host_activity import HostEvent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.profiler.advice.findings import Finding
    from neurontools.profiler.advice.subject import ProfiledRun
    from neurontools.profiler.analysis.host import HostLine
    from neurontools.profiler.analysis.steps import ProcessSteps
    from neurontools.profiler.trace.intervals import Int64s
    from neurontools.profiler.trace.trace import Trace


X = 1


HOST, CUTS = "host-bound", "graph-cuts"
_STEP_ENDS = ("mark_step", "sync", "optimizer_step", "optimizer step", "step")
_COMPILED = "torch.compile"
_READS = "read values after the step, e.g. add up loss.detach() and call .item() every hundred steps"
_ONE_FUNCTION = (
    "compile the whole step as one function: gradients from torch.func.grad_and_value of the loss, and the update of the"
    " weights after it"
)


def host_bound(subject: ProfiledRun) -> list[Finding]:
    """Advise less work on a host that takes longer between executions than the device for a step."""
    if subject.steps is None:
        return [Silent(HOST, "the profile has no steps")]
    if subject.steps.compile_ns or subject.steps.load_ns:
        # Steady steps have neither: where all steps are first executions, the host's time is mostly that.
        return [Silent(HOST, "every step compiles or loads a graph, so there is no typical time of the host")]
    step_ns = subject.steps.mean_ns
    host_ns = step_ns - subject.steps.execute_ns
    clocks = f"{format_ns(host_ns)} outside of executions (measured), device: {format_ns(subject.step_ns)} (modelled)"
    if host_ns <= subject.step_ns:
        return [Silent(HOST, f"host: {clocks}, in the average step")]
    operators = round(sum(len(program.graph.nodes) * program.per_step for program in subject.programs))
    return [
        Advice(
            HOST,
            "Let the host do less in a step: the device waits for it",
            f"the program records {operators:,} operators a step; use a larger batch, a fused optimizer (fused=True) and whole"
            " tensors instead of loops over parts, and do logging and data loading in other threads",
            Gain(host_ns, step_ns, Clock.MEASURED, is_bound=True),
            f"host: {clocks}, in the average step; the host's clock is that of this computer",
            (Evidence(f"{operators:,} operators recorded a step", count=operators),),
        )
    ]


def graph_cuts(subject: ProfiledRun) -> list[Finding]:
    """Advise on lines that end a graph within a step."""
    runs = sum(program.per_step for program in subject.programs)
    cuts = [(program, program.graph.cut) for program in subject.programs]
    inner = [program for program, cut in cuts if cut and not cut.startswith(_STEP_ENDS)]
    if runs < 1.5 or not inner:
        return [
            Silent(
                CUTS,
                "one graph a step" if runs < 1.5 else f"{runs:.1f} graphs a step, each ended by mark_step",
            )
        ]
    launch_ns = round(
        sum(engine_costs(program.device.core.name).launch_ns * program.per_step for program in inner)
    )
    gain = Gain(launch_ns, subject.step_ns)
    parts = dict.fromkeys(program.graph.cut.rpartition(" at ") for program in inner)
    lines = tuple(Evidence(what or "end of a graph", source) for what, _, source in parts)
    # Compiled functions end a graph each, other cuts read a value.
    remedies = dict.fromkeys(_ONE_FUNCTION if line.text.startswith(_COMPILED) else _READS for line in lines)
    places = ", ".join(f"{line.text} at {os.path.basename(line.source)}" for line in lines[:3])
    if gain.share < WORTH:
        return [
            Silent(
                CUTS, f"{runs:.1f} graphs a step ({places}), but their launches take {format_ns(launch_ns)}"
            )
        ]
    return [
        Advice(
            CUTS,
            f"Keep the step in one graph instead of {runs:.0f}",
            f"{places}: {'; '.join(remedies)}",
            gain,
            f"engine model, the launch of {plural(round(sum(program.per_step for program in inner)), 'execution')} a step; what"
            " the cuts store, load and wait for comes on top",
            lines[:3],
        )
    ]


COMPILES, INPUT, STRAGGLERS = "recompiles", "input-stalls", "stragglers"
_LINES = 3
_NO_STEPS = "the profile has no steps after the warm-up"


def recompiles(subject: ProfiledRun) -> list[Finding]:
    """Advise on lines at which graphs are compiled after the warm-up."""
    if not subject.host:
        return [Silent(COMPILES, _NO_STEPS)]
    work = max(subject.host, key=lambda work: work.ns_a_step(HostEvent.COMPILE))
    lines = work.of(HostEvent.COMPILE)
    count = sum(line.count for line in lines)
    gain = Gain(work.ns_a_step(HostEvent.COMPILE), work.step_ns, Clock.MEASURED)
    compiles = (
        f"{plural(count, 'compile') if count else 'no compiles'} in {work.steps} steps after the warm-up"
    )
    if count < 2 or gain.share < WORTH:
        return [Silent(COMPILES, compiles)]
    differences = _differences(subject)
    at_a_line: Counter[str] = Counter()
    for line in lines:
        at_a_line[line.source] += line.count
    if not differences and max(at_a_line.values()) <= WARM_UP:
        return [Silent(COMPILES, f"{compiles}, no more than the warm-up of another part of the program has")]
    return [
        Advice(
            COMPILES,
            f"Give all steps the same shapes: {count} graphs were compiled in {work.steps} steps after the warm-up",
            f"pad the data to one length, or to a few (buckets), and keep Python numbers that change out of the"
            f" shapes{differences}; neuron-run --explain names the difference",
            gain,
            f"the time of the compiles, {format_ns(gain.ns)} a step; the clock is that of this computer",
            _evidence(lines, work.steps, "compile"),
        )
    ]


def _differences(subject: ProfiledRun) -> str:
    """Return two shapes of the first input in which graphs of one place in the program differ, as words."""
    shapes: dict[tuple[str, int, int], dict[str, None]] = {}
    for program in (*subject.programs, *subject.rare):
        graph = program.graph
        for number, shape in enumerate(program.input_shapes):
            shapes.setdefault((graph.cut, len(graph.nodes), number), {}).setdefault(shape)
    different = next((list(seen) for seen in shapes.values() if len(seen) > 1), [])
    return f" (now {different[0]} and {different[1]})" if len(different) > 1 else ""


def input_stalls(subject: ProfiledRun) -> list[Finding]:
    """Advise on data loaders that a step waits for."""
    if not subject.host:
        return [Silent(INPUT, _NO_STEPS)]
    work = max(subject.host, key=lambda work: work.ns_a_step(HostEvent.INPUT))
    gain = Gain(work.ns_a_step(HostEvent.INPUT), work.step_ns, Clock.MEASURED, is_bound=True)
    if gain.share < WORTH:
        return [Silent(INPUT, f"a step waits {format_ns(gain.ns)} for data ({gain.clock})")]
    return [
        Advice(
            INPUT,
            "Load data while the device works: each step waits for the next batch",
            "give DataLoader num_workers=4 (or more) and prefetch_factor=2, and wrap it in"
            " torch_xla.distributed.parallel_loader.MpDeviceLoader, which also uploads ahead",
            gain,
            f"the time that steps of {work.process} wait for a batch; the clock is that of this computer",
            _evidence(work.of(HostEvent.INPUT), work.steps, "wait for a batch"),
        )
    ]


def stragglers(subject: ProfiledRun) -> list[Finding]:
    """Advise on workers that others wait for: one slow worker, or a different one in each step."""
    if subject.ranks is None or not subject.ranks.steps:
        return [Silent(STRAGGLERS, "one worker" if subject.ranks is None else _NO_STEPS)]
    ranks = sorted(subject.ranks.ranks, key=lambda rank: -rank.work_ns)
    lost_ns, step_ns = subject.ranks.lost_ns, max(rank.step_ns for rank in ranks)
    gain = Gain(lost_ns, step_ns, Clock.MEASURED, is_bound=True)
    if gain.share < WORTH or lost_ns <= NOISE_NS:
        return [
            Silent(
                STRAGGLERS,
                f"the slowest worker of a step takes {format_ns(lost_ns)} longer than others (measured)",
            )
        ]
    slow = next((rank for rank in ranks if rank.is_straggler), None)
    if slow is not None:
        title = f"Rebalance the work: the others wait for rank {slow.rank}"
        change = (
            f"give rank {slow.rank} less to do, or find out why it is slower (its data, its host): it works longest in"
            f" {format_percent(slow.slowest_share)} of the steps"
        )
    else:
        title = "Average less often: another worker is late in each step"
        change = (
            "use hierarchical SGD: HierarchicalModelAverager of torch.distributed.algorithms.model_averaging averages"
            " small groups often and all workers seldom, so that a stall delays few"
        )
    return [
        Advice(
            STRAGGLERS,
            title,
            change,
            gain,
            "the median over steps of what the slowest worker works longer than the one in the middle; the clock is that of"
            " this computer",
            tuple(
                Evidence(
                    f"rank {rank.rank} works {format_ns(rank.work_ns)} and waits {format_ns(rank.wait_ns)} a step (measured)"
                )
                for rank in (ranks[0], ranks[-1])
            ),
        )
    ]


def _evidence(lines: Sequence[HostLine], steps: int, text: str) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(
            f"{text}, {format_ns(line.total_ns // max(1, steps))} a step (measured)", line.source, line.count
        )
        for line in lines[:_LINES]
    )


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
    processes = find_steps(trace)
    if not processes:
        raise ProfileError(
            f"advice needs steps, and this trace of {trace.measured_by} has none",
            HOW_TO_MARK,
        )
    return _of_process(trace, max(processes, key=lambda steps: int(steps.duration_ns.sum())))


def foreign_findings(steps: ForeignSteps, program: str) -> list[Finding]:
    """Return what a step waits for; `program` wrote the trace."""
    reason = f"need the graphs that ran, and a trace of {program} has none: neuron-run --profile has"
    return [_foreign_input_stalls(steps), _foreign_host_bound(steps), Silent(_GRAPHS, reason)]


def _foreign_input_stalls(steps: ForeignSteps) -> Finding:
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


def _foreign_host_bound(steps: ForeignSteps) -> Finding:
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
        edge = np.searchsorted(edges, begins, side="right") - 1
        inside = (edge >= 0) & (edge % 2 == 0)
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
