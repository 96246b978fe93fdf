"""Subjects of rules: the programs of a step with their graphs, and what the engine model says of changed graphs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec.structs import replace

from neurontools.base.units import format_ns
from neurontools.compiler.engines.lowering.families import family
from neurontools.compiler.engines.placement import split_name
from neurontools.compiler.graph import Arg, Graph, Node, Slot, View, reads
from neurontools.compiler.graph_nodes import BACKWARD
from neurontools.compiler.options import device_of
from neurontools.compiler.resizing import ChangeError, resize
from neurontools.compiler.what_if import model_graph
from neurontools.compiler.work import item_bytes, numel, written
from neurontools.machine.instances.catalogue import DeviceType, find_instance_type
from neurontools.profiler.advice.findings import WORTH, Evidence, Gain
from neurontools.profiler.analysis.host import HostWork, host_work
from neurontools.profiler.analysis.operators import layer_pattern
from neurontools.profiler.analysis.programs import executions_per_step, read_neff
from neurontools.profiler.analysis.ranks import RankReport, compare_ranks
from neurontools.profiler.analysis.steps import StepSummary, find_steps
from neurontools.profiler.capture.format import ProfileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from neurontools.compiler.engines.instructions import CustomWork
    from neurontools.compiler.neff import Neff
    from neurontools.profiler.trace.trace import Trace


Places = dict[int, tuple[int, int]]
"""Where buffers lie that become parts of others: the other one, and the first element in it."""


def merge_copies(graph: Graph, group: Sequence[int]) -> Graph:
    """Return a graph with one copy instead of several, given by their positions.

    Raises:
        ChangeError: what they copy cannot be one tensor.
    """
    nodes = graph.nodes
    targets = [written(nodes[position])[0] for position in group]
    sources = [reads(nodes[position])[-1] for position in group]
    if any(view.dtype != targets[0].dtype for view in (*targets, *sources)):
        raise ChangeError("they change the data type")
    slots, places = list(graph.slots), Places()
    made, read = (_joined(graph, views, slots, places) for views in (targets, sources))
    first = nodes[group[0]]
    args: tuple[Arg, ...] = (made, read) if family(first.op) == "copy" else (read,)
    merged = Node(first.op, args, first.kwargs, (made,), first.source)
    skipped = frozenset(group[:-1])
    kept = [
        merged if position == group[-1] else _placed(node, places)
        for position, node in enumerate(nodes)
        if position not in skipped
    ]
    return _rebuilt(graph, slots, kept, places)


def drop_copies(graph: Graph, copied: Mapping[int, int]) -> Graph:
    """Return a graph without copies of whole buffers: what reads a copy reads its origin, as if it lay in that order.

    Args:
        graph: the graph.
        copied: buffers that the copies read, by the positions of the copies.
    """
    origins = {written(graph.nodes[position])[0].slot: slot for position, slot in copied.items()}
    places: Places = {}
    for slot in origins:
        origin = slot
        while origin in origins:
            origin = origins[origin]
        places[slot] = origin, 0
    kept = [_placed(node, places) for position, node in enumerate(graph.nodes) if position not in copied]
    return _rebuilt(graph, graph.slots, kept, places)


def work_in_halves(graph: Graph, batch: int) -> Graph:
    """Return a graph that runs each call on one half of the batch and then on the other.

    Raises:
        ChangeError: the batch cannot be halved, or what the graph makes is not a result for each sample.
    """
    half = resize(graph, {batch: batch // 2}, only_batch=True)
    sizes = zip(graph.slots, half.slots, strict=True)
    per_sample = {slot for slot, (whole, part) in enumerate(sizes) if whole != part}
    if not set(graph.outputs) <= per_sample | set(graph.inputs):
        raise ChangeError("the graph sums over the batch")
    if any(view.slot in graph.inputs for node in graph.nodes for view in written(node)):
        raise ChangeError("the graph updates its inputs")
    slots, places = list(half.slots), Places()
    for slot in sorted(per_sample | {view.slot for node in half.nodes for view in written(node)}):
        places[slot] = len(slots), 0
        slots.append(half.slots[slot])
    nodes = [call for node in half.nodes for call in (node, _placed(node, places))]
    inputs, outputs = (
        (*border, *(places[slot][0] for slot in border if slot in places))
        for border in (half.inputs, half.outputs)
    )
    return Graph(tuple(slots), inputs, half.lifted, tuple(nodes), outputs, half.libraries)


def _joined(graph: Graph, views: Sequence[View], slots: list[Slot], places: Places) -> View:
    """Return one tensor of all, in a new buffer that takes theirs in."""
    dtype, total = views[0].dtype, sum(map(numel, views))
    if any(numel(view) * item_bytes(dtype) != graph.slots[view.slot].nbytes for view in views):
        raise ChangeError("they copy parts of larger tensors")
    if len({view.slot for view in views}) < len(views) or any(view.slot in places for view in views):
        raise ChangeError("some are copied more than once")
    offset = 0
    for view in views:
        places[view.slot] = len(slots), offset
        offset += numel(view)
    slots.append(Slot(total * item_bytes(dtype)))
    return View(len(slots) - 1, dtype, (total,), (1,), 0)


def _placed(node: Node, places: Places) -> Node:
    """Return a call whose buffers lie in others."""

    def moved(arg: Arg) -> Arg:
        if isinstance(arg, View):
            return _moved(arg, places)
        return tuple(map(moved, arg)) if isinstance(arg, tuple) else arg

    return replace(
        node,
        args=tuple(map(moved, node.args)),
        kwargs=tuple((name, moved(value)) for name, value in node.kwargs),
        results=tuple(None if view is None else _moved(view, places) for view in node.results),
    )


def _moved(view: View, places: Places) -> View:
    slot, first = places.get(view.slot, (view.slot, 0))
    return replace(view, slot=slot, offset=view.offset + first)


def _rebuilt(graph: Graph, slots: Sequence[Slot], nodes: Sequence[Node], places: Places) -> Graph:
    inputs, outputs = (
        tuple(dict.fromkeys(places[slot][0] if slot in places else slot for slot in border))
        for border in (graph.inputs, graph.outputs)
    )
    return Graph(tuple(slots), inputs, graph.lifted, tuple(nodes), outputs, graph.libraries)


_LINES = 3


@dataclass(frozen=True, slots=True)
class Trial:
    """What the engine model says of a change.

    Args:
        gain: of an execution, negative for a loss; None if the change is not possible.
        words: the time now and then, or why the change is not possible.
    """

    gain: Gain | None
    words: str

    @property
    def is_worth(self) -> bool:
        """Whether the change is worth an advice."""
        return self.gain is not None and self.gain.share >= WORTH

    @property
    def ns(self) -> int:
        """Time that an execution takes less; below any other where the change is not possible."""
        return -(1 << 62) if self.gain is None else self.gain.ns


class ProfiledProgram:
    """A graph that a profiled process executed.

    Args:
        neff: its NEFF.
        name: the network's name.
        per_step: executions a step.
        device: what it ran on; None for what it was compiled for.

    `trains` is whether the program's steps have a backward pass or an optimizer, in this graph or in another one.
    """

    def __init__(
        self, neff: Neff, name: str, per_step: float = 1.0, device: DeviceType | None = None
    ) -> None:
        self.neff = neff
        self.name = name
        self.per_step = per_step
        self.graph = neff.graph
        self.device = device or device_of(neff.flags)
        self.lnc = neff.header.lnc
        self.trains = any("_backward" in node.op or "_fused_" in node.op for node in neff.graph.nodes)

    @property
    def is_kernel(self) -> bool:
        """Whether it is a kernel alone, outside of a model."""
        return len(self.graph.nodes) == len(self.neff.kernel_files) == 1

    @property
    def total_ns(self) -> int:
        """Modelled time of an execution, as every other page of the profile shows it."""
        return self.neff.cost.total_ns

    @cached_property
    def _now_ns(self) -> int:
        """Time of an execution by the model of this version, which may be newer than the NEFF's."""
        cost, _ = model_graph(self.neff, self.graph, self.device, self.lnc)
        return self.total_ns if cost is None else cost.total_ns

    def trial(
        self,
        change: Callable[[], Graph] | None = None,
        *,
        flags: Sequence[str] = (),
        custom: Mapping[int, CustomWork] | None = None,
        executions: float = 1,
        is_bound: bool = False,
    ) -> Trial:
        """Return what the engine model says of a change.

        Args:
            change: makes the changed graph, None for the graph as it is; may raise ChangeError.
            flags: compiler flags besides those of the NEFF.
            custom: other work of custom operators by position.
            executions: how many of the changed graph do the work of one now.
            is_bound: whether the change brings that gain at most.
        """
        try:
            graph = self.graph if change is None else change()
        except ChangeError as error:
            return Trial(None, error.message)
        cost, problem = model_graph(self.neff, graph, self.device, self.lnc, flags, custom)
        if cost is None:
            return Trial(None, problem)
        one_ns = cost.total_ns * self.total_ns / max(1, self._now_ns)
        after_ns = round(one_ns * executions)
        words = f"{format_ns(self.total_ns)} -> {format_ns(after_ns)}"
        return Trial(Gain(self.total_ns - after_ns, self.total_ns, is_bound=is_bound), words)

    def trial_of_batch(self, now: int, new: int) -> Trial:
        """Return what the engine model says of another batch, for the same samples."""
        return self.trial(
            lambda: resize(self.graph, {now: new}, only_batch=True),
            executions=now / new,
        )

    @property
    def input_shapes(self) -> tuple[str, ...]:
        """The first view of each input, e.g. `float32[32,128]`."""
        first: dict[int, str] = {}
        for node in self.graph.nodes:
            for view in reads(node):
                first.setdefault(view.slot, f"{view.dtype}[{','.join(map(str, view.shape))}]")
        return tuple(first[slot] for slot in self.graph.inputs if slot in first)

    def share(self, positions: Iterable[int]) -> float:
        """Return the part of an execution during which operators work, given by their positions in the graph."""
        wanted = frozenset(positions)
        rows = (row for row in self.neff.cost.rows if row.operator in wanted)
        spans = sorted((row.start_ns, row.start_ns + row.duration_ns) for row in rows)
        covered, reach = 0, 0
        for first, last in spans:
            covered += max(0, last - max(first, reach))
            reach = max(reach, last)
        return covered / max(1, self.total_ns)

    def lines(self, positions: Iterable[int], text: str = "") -> tuple[Evidence, ...]:
        """Return the source lines of operators, those of the forward pass and of most time first.

        Args:
            positions: of the operators in the graph.
            text: what they are; empty for their names.
        """
        by_line: dict[str, list[int]] = {}
        for position in sorted(set(positions)):
            by_line.setdefault(self.graph.nodes[position].source, []).append(position)
        evidence = []
        for source, group in by_line.items():
            nodes = [self.graph.nodes[position] for position in group]
            names = ", ".join(dict.fromkeys(split_name(node.op)[1] for node in nodes))
            layers = {node.layer.removesuffix(BACKWARD) for node in nodes} - {""}
            share = self.share(group)
            evidence.append(
                Evidence(text or names, source, len(group), share, layer_pattern(layers), len(layers))
            )
        return tuple(
            sorted(evidence, key=lambda line: (line.source in self.backward, -(line.share or 0)))[:_LINES]
        )

    @cached_property
    def backward(self) -> frozenset[str]:
        """Lines that run a backward pass of operators whose own line is unknown."""
        return frozenset(
            node.source
            for node in self.graph.nodes
            if "_backward" in node.op and not node.layer.endswith(BACKWARD)
        )


@dataclass(frozen=True, slots=True)
class ProfiledRun:
    """A profiled run.

    Args:
        programs: those of a step, the one with most time first.
        rare: those that ran once, or in few steps.
        steps: measured times of typical steps; None if unknown.
        ranks: how workers differ; None for one worker.
        host: what the host did, by process.
    """

    programs: tuple[ProfiledProgram, ...]
    rare: tuple[ProfiledProgram, ...] = ()
    steps: StepSummary | None = None
    ranks: RankReport | None = None
    host: tuple[HostWork, ...] = ()

    @property
    def step_ns(self) -> int:
        """Modelled time of a step."""
        return round(sum(program.total_ns * program.per_step for program in self.programs))


_RARE = 0.1
"""Programs that run less often, per step, do not belong to the step."""


def open_subject(trace: Trace) -> ProfiledRun:
    """Return what rules look at.

    Args:
        trace: the profile, or a part of it.

    Raises:
        ProfileError: the profile has no execution, or no readable copy of a NEFF.
    """
    if trace.measured_by:
        raise ProfileError(
            f"advice needs the graphs that ran, and a trace of {trace.measured_by} has none",
            "neuron-profile steps and top show where its time goes",
        )
    processes = find_steps(trace)
    if not processes:
        raise ProfileError(
            "the profile has no executions, so there is no step to advise on",
            "capture a run that uses the device",
        )
    steps = max(processes, key=len)
    names = {model.neff_hash: model.name for model in trace.models}
    counts = Counter(names.values())
    names = {
        neff_hash: name if counts[name] == 1 else f"{name}, NEFF {neff_hash}"
        for neff_hash, name in names.items()
    }
    instance = find_instance_type(trace.processes[0].instance_type)
    device = instance.device if instance else None
    often, rare = list[ProfiledProgram](), list[ProfiledProgram]()
    for neff_hash, per_step in executions_per_step(trace, steps).items():
        if trace.programs.get(neff_hash) is not None:
            program = ProfiledProgram(read_neff(trace, neff_hash), names[neff_hash], per_step, device)
            (often if per_step >= _RARE else rare).append(program)
    if not often:
        raise ProfileError(
            "the profile has no readable copy of a NEFF: advice needs the graphs that ran",
            "capture the run again; the file neff_<hash>.neff is made beside the events",
        )
    often.sort(key=lambda program: -program.total_ns * program.per_step)
    return ProfiledRun(
        tuple(often),
        tuple(rare),
        steps.summary(),
        compare_ranks(trace) if len(processes) > 1 else None,
        host_work(trace),
    )
