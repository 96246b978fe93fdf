"""The batch of a profile's steps, from the inputs of their graphs, and how the inputs of two profiles differ."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.base.text import plural
from neurontools.compiler.neff_header import NeffError
from neurontools.compiler.resizing import data_inputs, leading_sizes
from neurontools.profiler.analysis.programs import executions_per_step, read_neff
from neurontools.profiler.analysis.steps import find_steps
from neurontools.profiler.capture.format import ProfileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from neurontools.compiler.graph import Graph, View
    from neurontools.profiler.trace.trace import Trace

_Type = tuple[str, tuple[int, ...]]
_RARE = 0.1
_SHOWN = 2


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The data that the graphs of a typical step of one worker take: their inputs without weights and state.

    Args:
        types: data type and shape of each, in the order of their use.
        batch: the first dimension that they share; None if it is not known.
        samples: batch times the number of graphs of a step that take it, such as 2 with gradients of 2 parts.
        reason: why the batch is not known.
    """

    types: tuple[_Type, ...] = ()
    batch: int | None = None
    samples: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class StepInputChange:
    """How the inputs of steps differ.

    Args:
        before: inputs of the first profile.
        after: inputs of the second one.
        texts: what differs, such as `batch 4 -> 8`.
        has_shapes: whether shapes differ by more than the batch.
    """

    before: StepInputs
    after: StepInputs
    texts: tuple[str, ...] = ()
    has_shapes: bool = False

    @property
    def samples(self) -> tuple[float, float] | None:
        """Samples of a step in both, None if they are not known or a sample is not the same in both."""
        if self.before.samples is None or self.after.samples is None or self.has_shapes:
            return None
        return self.before.samples, self.after.samples

    @property
    def changes_samples(self) -> bool:
        """Whether a step has other samples, so that times of a sample are to be compared."""
        return self.samples is not None and self.samples[0] != self.samples[1]

    @property
    def reason(self) -> str:
        """Why there is no time of a sample."""
        if self.has_shapes:
            return "; ".join(self.texts)
        return self.before.reason or self.after.reason


def step_inputs(trace: Trace) -> StepInputs:
    """Return what a typical step of a profile takes."""
    processes = () if trace.measured_by else find_steps(trace)
    if not processes:
        return StepInputs(reason="the profile has no graphs of steps")
    graphs = []
    for neff_hash, per_step in executions_per_step(trace, max(processes, key=len)).items():
        if per_step < _RARE:
            continue
        try:
            graphs.append((read_neff(trace, neff_hash).graph, per_step))
        except (ProfileError, NeffError):
            return StepInputs(reason="a NEFF of the profile cannot be read")
    return inputs_of_graphs(graphs)


def inputs_of_graphs(graphs: Sequence[tuple[Graph, float]]) -> StepInputs:
    """Return what a step takes that executes graphs, each with its number of executions in a step."""
    # What one graph of a step computes, another may take: activations, gradients.
    made = [{_type(view) for view in _results(graph)} for graph, _ in graphs]
    taken: list[tuple[list[View], float]] = []
    for number, (graph, per_step) in enumerate(graphs):
        given = set().union(*made[:number], *made[number + 1 :])
        views = [view for view in data_inputs(graph).values() if _type(view) not in given]
        if views:
            taken.append((views, per_step))
    types = tuple(dict.fromkeys(_type(view) for views, _ in taken for view in views))
    batches = {sizes for views, _ in taken if len(sizes := leading_sizes(views)) == 1}
    if len(batches) != 1:
        reason = (
            "the graphs of a step have several batches"
            if batches
            else "the inputs of a step have no common batch"
        )
        return StepInputs(types, reason=reason)
    ((batch,),) = batches
    counts: Counter[_Type] = Counter()
    for views, per_step in taken:
        for kind in {_type(view) for view in views if view.shape[0] == batch}:
            counts[kind] += round(per_step, 3)  # type: ignore[assignment]
    if len(set(counts.values())) != 1:
        return StepInputs(types, reason="the graphs of a step take its data different numbers of times")
    return StepInputs(types, batch, batch * next(iter(counts.values())))


def _results(graph: Graph) -> Iterable[View]:
    outputs = set(graph.outputs) - set(graph.inputs)
    return (
        view for node in graph.nodes for view in node.results if view is not None and view.slot in outputs
    )


def _type(view: View) -> _Type:
    return view.dtype, tuple(view.shape)


def compare_inputs(before: StepInputs, after: StepInputs) -> StepInputChange:
    """Return how the inputs of two profiles' steps differ."""
    before, after = _paired_batches(before, after)
    texts = []
    if before.batch != after.batch and before.batch is not None and after.batch is not None:
        texts.append(f"batch {before.batch} -> {after.batch}")
    if (
        before.samples != after.samples
        and before.batch == after.batch
        and None not in {before.samples, after.samples}
    ):
        texts.append(f"samples of a step {before.samples:g} -> {after.samples:g}")
    pairs = _differing(before, after)
    texts += [f"input {_text(old)} -> {_text(new)}" for old, new in pairs[:_SHOWN]]
    if len(pairs) > _SHOWN:
        texts.append(f"and {plural(len(pairs) - _SHOWN, 'more input')}")
    return StepInputChange(before, after, tuple(texts), bool(pairs))


def _paired_batches(before: StepInputs, after: StepInputs) -> tuple[StepInputs, StepInputs]:
    """Return both sides with a batch that one of them alone does not show: all inputs differ by it."""
    if (before.batch is not None and after.batch is not None) or len(before.types) != len(after.types):
        return before, after
    pairs = [(old, new) for old, new in zip(before.types, after.types, strict=True) if old != new]
    sizes = {(old[1][0], new[1][0]) for old, new in pairs if old[0] == new[0] and old[1][1:] == new[1][1:]}
    if len(sizes) != 1 or any(old[0] != new[0] or old[1][1:] != new[1][1:] for old, new in pairs):
        return before, after
    ((one, other),) = sizes
    return _with_batch(before, one), _with_batch(after, other)


def _with_batch(inputs: StepInputs, batch: int) -> StepInputs:
    return StepInputs(inputs.types, batch, float(batch), "")


def _differing(before: StepInputs, after: StepInputs) -> list[tuple[_Type | None, _Type | None]]:
    """Return pairs of inputs that differ by more than the batch; None for an input of one side only."""
    scale = (after.batch or 1, before.batch or 1)
    new = list(after.types)
    pairs: list[tuple[_Type | None, _Type | None]] = []
    left = []
    for old in before.types:
        dtype, (first, *rest) = old[0], old[1]
        scaled = (dtype, (first * scale[0] // scale[1], *rest))
        match = next((kind for kind in (scaled, old) if kind in new), None)
        if match is None:
            left.append(old)
        else:
            new.remove(match)
    while left or new:
        pairs.append((left.pop(0) if left else None, new.pop(0) if new else None))
    return pairs


def _text(kind: _Type | None) -> str:
    return "none" if kind is None else f"{kind[0]}[{','.join(map(str, kind[1]))}]"
