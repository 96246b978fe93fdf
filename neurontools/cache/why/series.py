"""Causes that only several misses of a run show together: a size or a number that takes one value after another."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.cache.why.cause import (
    CUT_ADVICE,
    DROP_LAST_ADVICE,
    SCALAR_ADVICE,
    Cause,
    CauseName,
    Confidence,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from neurontools.cache.graphs.graph_facts import GraphFacts

_FEWEST = 3
_SHORTEST_WHOLE = 3
_VALUES_SHOWN = 16


@dataclass(frozen=True, slots=True)
class Miss:
    """A compile of a run and its graph."""

    module: str
    graph: GraphFacts


@dataclass(frozen=True, slots=True)
class Series:
    """A cause and the modules of all misses that it explains."""

    cause: Cause
    modules: tuple[str, ...]


def series_of(misses: Sequence[Miss], known: Iterable[GraphFacts] = ()) -> tuple[Series, ...]:
    """Return the causes of misses that differ from each other in one thing only, and of cuts that moved.

    Args:
        misses: a run's, in order of time.
        known: graphs that were in the cache before, which may be what a miss is a part of.
    """
    groups: dict[tuple[str, ...], list[Miss]] = defaultdict(list)
    for miss in misses:
        groups[miss.graph.names].append(miss)
    found = [
        Series(cause, tuple(dict.fromkeys(miss.module for miss in group)))
        for group in groups.values()
        for cause in _of_group([miss.graph for miss in group])
    ]
    return (*found, *_joined(groups, {graph.names for graph in known}))


def _of_group(graphs: list[GraphFacts]) -> Iterable[Cause]:
    """Yield what graphs of the same operators tell."""
    sizes = _varying_size(graphs)
    if sizes is not None:
        number, axis, values = sizes
        use = _use_of(graphs[0], number)
        if len(values) >= _FEWEST:
            yield Cause(
                CauseName.SHAPE_SERIES,
                Confidence.CERTAIN,
                f"dimension {axis} of input {number}{use} took {len(values)} sizes, a compile for each",
                _pad_advice(values),
                tuple(map(str, values)),
            )
        elif axis == 0 and values[1] < values[0]:
            yield Cause(
                CauseName.LAST_BATCH,
                Confidence.LIKELY,
                f"dimension 0 of input {number}{use} was {values[0]}, then {values[1]}: the rest of the data at an epoch's end",
                DROP_LAST_ADVICE,
                tuple(map(str, values)),
            )
    elif len(graphs) > 1:
        yield from _scalars(graphs)


def _varying_size(graphs: list[GraphFacts]) -> tuple[int, int, list[int]] | None:
    """Return (input, axis, sizes in order) of the input whose size varies most, None where none does."""
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


def _use_of(graph: GraphFacts, number: int) -> str:
    for operation in graph.operations:
        if any(operand.input_number == number for operand in operation.operands):
            where = f" at {operation.source}" if operation.source else ""
            return f" ({operation.name}{where})"
    return ""


def _pad_advice(values: list[int]) -> str:
    buckets = sorted({1 << (value - 1).bit_length() for value in values if value > 0})
    shown = ", ".join(map(str, buckets))
    if 1 < len(buckets) < len(values):
        return f"pad to {max(values)}, one compile; or to buckets such as {shown}, {len(buckets)} compiles"
    return f"pad to {max(values)}: one compile"


def _scalars(graphs: list[GraphFacts]) -> Iterable[Cause]:
    for number, operation in enumerate(graphs[0].operations):
        constants = [graph.operations[number].constants for graph in graphs]
        if len({len(each) for each in constants}) != 1:
            continue
        for position in range(len(constants[0])):
            values = list(dict.fromkeys(each[position] for each in constants))
            if len(values) > 1:
                where = f" at {operation.source}" if operation.source else ""
                yield Cause(
                    CauseName.SCALAR,
                    Confidence.CERTAIN,
                    f"a number in {operation.name}{where} took {len(values)} values, a compile for each",
                    SCALAR_ADVICE,
                    tuple(values),
                )
                return


def _joined(groups: dict[tuple[str, ...], list[Miss]], known: set[tuple[str, ...]]) -> Iterable[Series]:
    """Yield the graphs that are two others one after the other: somewhere, a cut is there only sometimes."""
    every = known | set(groups)
    for whole in every:
        for first in every:
            length = len(first)
            # The last name of a part tells most pairs apart without a copy of what may be thousands of names.
            if not 0 < length < len(whole) or whole[length - 1] != first[-1] or whole[:length] != first:
                continue
            rest = whole[length:]
            if rest not in every:
                continue
            modules = [miss.module for names in (whole, first, rest) for miss in groups.get(names, ())]
            if len(whole) < _SHORTEST_WHOLE or not modules:
                continue
            text = (
                f"a graph of {len(whole)} operators is two others, of {len(first)} and {len(rest)}, in one: "
            )
            text += "a cut is there in some steps only" + _cuts_of(groups, (whole, first))
            yield Series(
                Cause(CauseName.CUT_MOVED, Confidence.CERTAIN, text, CUT_ADVICE),
                tuple(dict.fromkeys(modules)),
            )
            return


def _cuts_of(groups: dict[tuple[str, ...], list[Miss]], names: Iterable[tuple[str, ...]]) -> str:
    """Return where graphs were cut, for those whose graph tells."""
    cuts = [miss.graph.cut for each in names for miss in groups.get(each, ())[:1] if miss.graph.cut]
    return f" ({' and '.join(dict.fromkeys(cuts))})" if cuts else ""


def shown_values(values: Sequence[str]) -> str:
    """Return values with commas between, the first ones where there are many."""
    more = f", and {len(values) - _VALUES_SHOWN} more" if len(values) > _VALUES_SHOWN else ""
    return ", ".join(values[:_VALUES_SHOWN]) + more
