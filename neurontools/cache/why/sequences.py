"""Causes that only several compiles of a run show together: a size or a number that takes one value after another."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.cache.why.causes import Cause, CauseName, make_cause
from neurontools.cache.why.diff_text import at_source

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from neurontools.cache.graphs.graph_facts import GraphFacts

    Names = tuple[str, ...]

_MIN_VALUES = 3
_MIN_OPERATORS = 3
_SHOWN_VALUES = 16


@dataclass(frozen=True, slots=True)
class CompiledGraph:
    """A compile of a run and its graph."""

    module: str
    graph: GraphFacts


@dataclass(frozen=True, slots=True)
class SharedCause:
    """A cause and the modules of all compiles that it explains."""

    cause: Cause
    modules: tuple[str, ...]


def find_shared_causes(
    compiles: Sequence[CompiledGraph], known: Iterable[GraphFacts] = ()
) -> tuple[SharedCause, ...]:
    """Return the causes of compiles that differ from each other in one thing only, and of cuts that moved.

    Args:
        compiles: of a run, in order of time.
        known: graphs that were in the cache before, of which a compiled graph may be a part.
    """
    groups: dict[Names, list[CompiledGraph]] = defaultdict(list)
    for item in compiles:
        groups[item.graph.names].append(item)
    found = []
    for group in groups.values():
        cause = _group_cause([item.graph for item in group])
        if cause is not None:
            found.append(SharedCause(cause, tuple(dict.fromkeys(item.module for item in group))))
    return (*found, *_split_graphs(groups, {graph.names for graph in known}))


def format_values(values: Sequence[str]) -> str:
    """Return values separated by commas, the first ones if there are many."""
    more = f", and {len(values) - _SHOWN_VALUES} more" if len(values) > _SHOWN_VALUES else ""
    return ", ".join(values[:_SHOWN_VALUES]) + more


def _group_cause(graphs: list[GraphFacts]) -> Cause | None:
    """Return what graphs of the same operators show together."""
    varying = _find_varying_size(graphs)
    if varying is None:
        return _find_varying_scalar(graphs) if len(graphs) > 1 else None
    number, axis, sizes = varying
    values = tuple(map(str, sizes))
    name = f"dimension {axis} of input {number}{_format_use(graphs[0], number)}"
    if len(sizes) >= _MIN_VALUES:
        text = f"{name} took {len(sizes)} sizes, a compile for each"
        return make_cause(CauseName.SHAPE, text, certain=True, values=values, advice=_padding_advice(sizes))
    if axis == 0 and sizes[1] < sizes[0]:
        text = f"{name} was {sizes[0]}, then {sizes[1]}: the last data of an epoch"
        return make_cause(CauseName.LAST_BATCH, text, values=values)
    return None


def _find_varying_size(graphs: list[GraphFacts]) -> tuple[int, int, list[int]] | None:
    """Return (input, axis, sizes in order) of the input whose size varies most, None if none varies."""
    best: tuple[int, int, list[int]] | None = None
    for number in range(min(len(graph.inputs) for graph in graphs)):
        shapes = [graph.inputs[number].shape for graph in graphs]
        if len({len(shape) for shape in shapes}) != 1:
            continue
        for axis in range(len(shapes[0])):
            values = list(dict.fromkeys(shape[axis] for shape in shapes))
            if len(values) > 1 and (best is None or len(values) > len(best[2])):
                best = (number, axis, values)
    return best


def _format_use(graph: GraphFacts, number: int) -> str:
    for operation in graph.operations:
        if any(operand.input_number == number for operand in operation.operands):
            return f" ({operation.name}{at_source(operation.source)})"
    return ""


def _padding_advice(sizes: list[int]) -> str:
    buckets = sorted({1 << (size - 1).bit_length() for size in sizes if size > 0})
    if 1 < len(buckets) < len(sizes):
        shown = ", ".join(map(str, buckets))
        return f"pad to {max(sizes)}, one compile; or to buckets such as {shown}, {len(buckets)} compiles"
    return f"pad to {max(sizes)}: one compile"


def _find_varying_scalar(graphs: list[GraphFacts]) -> Cause | None:
    for number, operation in enumerate(graphs[0].operations):
        constants = [graph.operations[number].constants for graph in graphs]
        if len({len(item) for item in constants}) != 1:
            continue
        for position in range(len(constants[0])):
            values = tuple(dict.fromkeys(item[position] for item in constants))
            if len(values) > 1:
                name = f"a number in {operation.name}{at_source(operation.source)}"
                text = f"{name} took {len(values)} values, a compile for each"
                return make_cause(CauseName.SCALAR, text, certain=True, values=values)
    return None


def _split_graphs(groups: dict[Names, list[CompiledGraph]], known: set[Names]) -> Iterator[SharedCause]:
    """Yield a graph that is two others in sequence: a cut between them exists only in some steps."""
    every = known | set(groups)
    for whole in every:
        for first in every:
            length = len(first)
            # Comparing the last name rejects most pairs without a copy of what may be thousands of names.
            if not 0 < length < len(whole) or whole[length - 1] != first[-1] or whole[:length] != first:
                continue
            rest = whole[length:]
            modules = [item.module for names in (whole, first, rest) for item in groups.get(names, ())]
            if rest not in every or len(whole) < _MIN_OPERATORS or not modules:
                continue
            cuts = [item.graph.cut for names in (whole, first) for item in groups.get(names, ())[:1]]
            shown = " and ".join(dict.fromkeys(cut for cut in cuts if cut))
            text = (
                f"a graph of {len(whole)} operators is two others, of {len(first)} and {len(rest)}, in sequence: "
                "a cut is there in some steps only" + (f" ({shown})" if shown else "")
            )
            yield SharedCause(make_cause(CauseName.CUT, text, certain=True), tuple(dict.fromkeys(modules)))
            return
