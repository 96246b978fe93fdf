"""The chain of work that decides how long an execution takes, by program. All times are modelled.

The schedule of a program is made anew from the graph in its NEFF, as the stored one does not keep who waits for whom.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.compiler.options import CompileError
from neurontools.profiler.analysis.programs import core_of, read_neff, schedule_of
from neurontools.profiler.capture.format import ProfileError

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.compiler.engines.schedule import Schedule
    from neurontools.compiler.neff import Neff
    from neurontools.machine.instances.catalogue import DeviceType
    from neurontools.profiler.trace.trace import Trace


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
    found, problem = [], ""
    for neff_hash, count in counts.items():
        if trace.programs.get(neff_hash) is not None:
            neff = read_neff(trace, neff_hash)
            try:
                found.append(path_of_neff(neff, names[neff_hash], neff_hash, count))
            except CompileError as error:
                problem = f"{names[neff_hash]}: {error.message}"
    if not found:
        if problem:
            raise ProfileError(f"no critical path of {problem}", "compile the program again")
        raise ProfileError(
            "the profile has no executed program whose NEFF can be read, so no critical path",
            "capture a run that uses the device, with neuron-run --profile",
        )
    found.sort(key=lambda path: (-path.total_ns * path.executions, path.neff_hash))
    return tuple(found)


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
    names = [node.op for node in neff.graph.nodes]
    return CriticalPath(
        program=program or neff.header.name,
        neff_hash=neff_hash,
        executions=executions,
        launch_ns=round(core.costs.launch_ns),
        path_ns=path_ns,
        parts=tuple(parts),
        operators=_totals(
            parts, _slack(schedule, on_path, lambda at: names[schedule.groups[at].operator]), "operator"
        ),
        engines=_totals(
            parts, _slack(schedule, on_path, lambda at: str(schedule.groups[at].engine)), "engine"
        ),
    )


def _parts(neff: Neff, schedule: Schedule) -> tuple[list[PathPart], frozenset[int]]:
    """Return the parts in order of time, and the numbers of their groups."""
    path = schedule.critical_path()
    shapes = {op.operator: op.shape for op in neff.cost.ops}
    found, reached = [], 0
    for number in path:
        group = schedule.groups[number]
        node = neff.graph.nodes[group.operator]
        end = round(group.end_ns)
        # A group that only passes values on, or that another one outlasts, adds nothing.
        if end > reached:
            found.append(
                PathPart(
                    operator=node.op,
                    opcode=group.instruction.opcode,
                    engine=str(group.engine),
                    start_ns=round(group.start_ns),
                    part_ns=end - reached,
                    source=node.source,
                    layer=node.layer,
                    shape=shapes.get(group.operator, ""),
                )
            )
            reached = end
    return found, frozenset(path)


def _slack(schedule: Schedule, on_path: frozenset[int], name: Callable[[int], str]) -> dict[str, int]:
    """Return by name the least slack of the groups that are not on the path."""
    found: dict[str, int] = {}
    for number, slack_ns in enumerate(schedule.slack_ns()):
        if number not in on_path and schedule.groups[number].instruction.count:
            key, slack = name(number), max(0, round(slack_ns))
            found[key] = min(found.get(key, slack), slack)
    return found


def _totals(parts: list[PathPart], slack: dict[str, int], name: str) -> tuple[PathTotal, ...]:
    sums: dict[str, list[int]] = {key: [0, 0] for key in slack}
    for part in parts:
        group = sums.setdefault(getattr(part, name), [0, 0])
        group[0] += 1
        group[1] += part.part_ns
    whole = sum(part.part_ns for part in parts) or 1
    found = [PathTotal(key, count, ns, ns / whole, slack.get(key)) for key, (count, ns) in sums.items()]
    found.sort(key=lambda total: (-total.path_ns, total.slack_ns or 0, total.name))
    return tuple(found)
