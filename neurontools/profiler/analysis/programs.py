"""The programs of a profile: their NEFFs, schedules, critical paths and memory.

The schedule of a program is made anew from the graph in its NEFF, as the stored one does not keep who waits for whom.
It is modelled; the use of device memory over time is measured.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from neurontools.base.files import read_input
from neurontools.compiler.engines.estimate import launch_ns, plan
from neurontools.compiler.engines.modelled_core import ModelledCore
from neurontools.compiler.neff import parse
from neurontools.compiler.options import CompileError, device_of, read_flags
from neurontools.compiler.what_if import known_work
from neurontools.profiler.analysis.steps import without_parts
from neurontools.profiler.capture.format import ProfileError, Track
from neurontools.runtime.host_activity import HostEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.compiler.engines.schedule import Schedule, Scheduled
    from neurontools.compiler.neff import Neff
    from neurontools.machine.instances.catalogue import DeviceType
    from neurontools.profiler.analysis.steps import ProcessSteps
    from neurontools.profiler.trace.intervals import Int64s
    from neurontools.profiler.trace.trace import Trace, TraceRow


def busiest_program(trace: Trace) -> str:
    """Return the hash of the NEFF whose executions take most device time, empty without any."""
    spent: dict[str, int] = {}
    for runs in trace.runs:
        for model in np.unique(runs.model).tolist():
            name = trace.models[model].neff_hash
            spent[name] = spent.get(name, 0) + int(runs.device_ns[runs.model == model].sum())
    readable = {name: ns for name, ns in spent.items() if trace.programs.get(name) is not None}
    return max(readable, key=lambda name: readable[name], default="")


def executions_per_step(trace: Trace, steps: ProcessSteps) -> dict[str, float]:
    """Return by hash of its NEFF how often a core executes each program in a typical step."""
    counts: Counter[str] = Counter()
    for run in without_parts([each for each in trace.runs if each.process == steps.process]):
        step = np.searchsorted(steps.start_ns, run.wall_start, side="right") - 1
        end_ns = int(steps.start_ns[-1] + steps.duration_ns[-1])
        inside = (step >= 0) & (run.wall_start < end_ns) & steps.steady[np.maximum(step, 0)]
        here: Counter[str] = Counter()
        for number in np.unique(run.model).tolist():
            here[trace.models[number].neff_hash] += int((run.model[inside] == number).sum())
        counts |= here  # the most of all cores of the process
    executed = {
        trace.models[number].neff_hash for run in trace.runs for number in np.unique(run.model).tolist()
    }
    return {neff_hash: counts[neff_hash] / int(steps.steady.sum()) for neff_hash in sorted(executed)}


def neff_path(trace: Trace, neff_hash: str) -> str:
    """Return the path of a profile's copy of a NEFF.

    Raises:
        ProfileError: the copy is gone.
    """
    paths = (os.path.join(directory, f"neff_{neff_hash}.neff") for directory in trace.directories)
    path = next(filter(os.path.isfile, paths), None)
    if path is None:
        raise ProfileError(f"neff_{neff_hash}.neff is gone from the profile", "capture the run again")
    return path


def read_neff(trace: Trace, neff_hash: str) -> Neff:
    """Return a program of a profile from its copy of the NEFF.

    Raises:
        ProfileError: the copy is gone, or cannot be read.
        NeffError: it is damaged.
    """
    return parse(read_input(neff_path(trace, neff_hash), ProfileError, "check its permissions"))


def core_of(neff: Neff, device: DeviceType | None = None) -> ModelledCore:
    """Return the core that a NEFF runs on; without a device that for which it was compiled."""
    device = device or device_of(neff.flags)
    return ModelledCore(device, neff.header.lnc, read_flags(neff.flags, device).matmul_dtype)


def schedule_of(neff: Neff, core: ModelledCore) -> Schedule:
    """Return the schedule of a program, made anew from its graph."""
    return plan(neff.graph, core, known_work(neff))


@dataclass(frozen=True, slots=True)
class PathPart:
    """One group of tiles on the path.

    Args:
        operator: name of the operator.
        opcode: what it does.
        engine: where it runs.
        start_ns: since the start of the execution.
        part_ns: what it adds to the path: from the end of the part before to its own end.
        source: the user's line.
        layer: path of the module that called it.
        shape: operands and results.
    """

    operator: str
    opcode: str
    engine: str
    start_ns: int
    part_ns: int
    source: str
    layer: str
    shape: str


@dataclass(frozen=True, slots=True)
class PathTotal:
    """All of one operator, or one engine, on the path.

    Args:
        name: which one.
        count: parts of the path.
        path_ns: what they add to the path.
        share: of the path, 0 to 1.
        slack_ns: how much later the rest of its work, off the path, could end without effect; None without such work.
    """

    name: str
    count: int
    path_ns: int
    share: float
    slack_ns: int | None


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """The path of one program.

    Args:
        program: name of the network.
        neff_hash: number in the name of its NEFF.
        executions: how often it was executed.
        launch_ns: before the first instruction.
        path_ns: all parts.
        parts: in order of time.
        operators: those with most time on the path first.
        engines: likewise.
    """

    program: str
    neff_hash: str
    executions: int
    launch_ns: int
    path_ns: int
    parts: tuple[PathPart, ...]
    operators: tuple[PathTotal, ...]
    engines: tuple[PathTotal, ...]

    @property
    def total_ns(self) -> int:
        """Time of an execution."""
        return self.launch_ns + self.path_ns


def critical_paths(trace: Trace) -> tuple[CriticalPath, ...]:
    """Return the paths of the executed programs, those with most time in the profile first.

    Raises:
        ProfileError: the profile has no executions of programs that can be read.
        NeffError: a NEFF is damaged.
    """
    counts: dict[str, int] = {}
    names: dict[str, str] = {}
    for runs in trace.runs:
        for number in runs.model.tolist():
            model = trace.models[number]
            counts[model.neff_hash] = counts.get(model.neff_hash, 0) + 1
            names[model.neff_hash] = model.name
    critical, problem = [], ""
    for neff_hash, count in counts.items():
        if trace.programs.get(neff_hash) is not None:
            neff = read_neff(trace, neff_hash)
            try:
                critical.append(path_of_neff(neff, names[neff_hash], neff_hash, count))
            except CompileError as error:
                problem = f"{names[neff_hash]}: {error.message}"
    if not critical:
        if problem:
            raise ProfileError(f"no critical path of {problem}", "compile the program again")
        raise ProfileError(
            "the profile has no executed program whose NEFF can be read, so no critical path",
            "capture a run that uses the device, with neuron-run --profile",
        )
    critical.sort(key=lambda path: (-path.total_ns * path.executions, path.neff_hash))
    return tuple(critical)


def path_of_neff(
    neff: Neff,
    program: str = "",
    neff_hash: str = "",
    executions: int = 1,
    device: DeviceType | None = None,
) -> CriticalPath:
    """Return the path of a program.

    Args:
        neff: its NEFF.
        program: name of the network.
        neff_hash: number in the name of the file.
        executions: how often it was executed.
        device: what it runs on; None for what it was compiled for.
    """
    core = core_of(neff, device)
    schedule = schedule_of(neff, core)
    parts, on_path = _parts(neff, schedule)
    path_ns = sum(part.part_ns for part in parts)
    return CriticalPath(
        program=program or neff.header.name,
        neff_hash=neff_hash,
        executions=executions,
        launch_ns=launch_ns(neff.graph, core),
        path_ns=path_ns,
        parts=tuple(parts),
        operators=_totals(
            parts, _slack(schedule, on_path, lambda at: _name(neff, schedule.groups[at])), "operator"
        ),
        engines=_totals(
            parts, _slack(schedule, on_path, lambda at: str(schedule.groups[at].engine)), "engine"
        ),
    )


def _parts(neff: Neff, schedule: Schedule) -> tuple[list[PathPart], frozenset[int]]:
    """Return the parts in order of time, and the numbers of their groups."""
    path = schedule.critical_path()
    shapes = {op.operator: op.shape for op in neff.cost.ops}
    parts, reached = [], 0
    for number in path:
        group = schedule.groups[number]
        node = neff.graph.nodes[group.operator]
        end = round(group.end_ns)
        # A group that only passes values on, or that another one outlasts, adds nothing.
        if end > reached:
            parts.append(
                PathPart(
                    operator=_name(neff, group),
                    opcode=group.instruction.opcode,
                    engine=str(group.engine),
                    start_ns=round(group.start_ns),
                    part_ns=end - reached,
                    source=group.instruction.source or node.source,
                    layer=node.layer,
                    shape=shapes.get(group.operator, ""),
                )
            )
            reached = end
    return parts, frozenset(path)


def _name(neff: Neff, group: Scheduled) -> str:
    """Return the operator of a group, or the instruction of a kernel with its line."""
    instruction = group.instruction
    if instruction.source:
        return f"{instruction.opcode} {os.path.basename(instruction.source)}"
    return neff.graph.nodes[group.operator].op


def _slack(schedule: Schedule, on_path: frozenset[int], name: Callable[[int], str]) -> dict[str, int]:
    """Return by name the least slack of the groups that are not on the path."""
    least: dict[str, int] = {}
    for number, slack_ns in enumerate(schedule.slack_ns()):
        if number not in on_path and schedule.groups[number].instruction.count:
            key, slack = name(number), max(0, round(slack_ns))
            least[key] = min(least.get(key, slack), slack)
    return least


def _totals(parts: list[PathPart], slack: dict[str, int], name: str) -> tuple[PathTotal, ...]:
    sums: dict[str, list[int]] = {key: [0, 0] for key in slack}
    for part in parts:
        group = sums.setdefault(getattr(part, name), [0, 0])
        group[0] += 1
        group[1] += part.part_ns
    whole = sum(part.part_ns for part in parts) or 1
    totals = [PathTotal(key, count, ns, ns / whole, slack.get(key)) for key, (count, ns) in sums.items()]
    totals.sort(key=lambda total: (-total.path_ns, total.slack_ns or 0, total.name))
    return tuple(totals)


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
        change = np.searchsorted(self.times, times, side="right") - 1
        return np.where(change < 0, 0, self.used[np.maximum(change, 0)])


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
    for event in last[is_taken[last]].tolist():
        action = trace.actions[int(events.action[event])]
        sums = owners.setdefault((action.name, action.source), [0, 0])
        sums[0] += 1
        sums[1] += int(events.value[event])
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
