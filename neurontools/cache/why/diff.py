"""What differs between two graphs, operator by operator, like a unified diff: aligned, with equal parts left out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from neurontools.cache.why.align import align
from neurontools.cache.why.partners import InputChange, Partners

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.cache.graphs.graph_facts import GraphFacts, Operation

_NUMBER = re.compile(r"(?<![A-Za-z0-9_.])-?\d+(?![.\d])")


class Aspect(StrEnum):
    """In what two aligned operators differ."""

    SHAPE = "shape"
    DTYPE = "dtype"
    CONSTANT = "constant"
    WIRING = "wiring"
    LAYOUT = "layout"


@dataclass(frozen=True, slots=True)
class Step:
    """One position of the diff: `old` and `new` are operator numbers, -1 for none.

    `aspects` are empty for an operator that is the same in both. `follows` says that all of its difference is what the
    inputs' new sizes bring about.
    """

    old: int
    new: int
    aspects: frozenset[Aspect] = frozenset()
    follows: bool = False

    @property
    def is_equal(self) -> bool:
        """Whether the operator is in both graphs and the same."""
        return self.old >= 0 and self.new >= 0 and not self.aspects


@dataclass(frozen=True, slots=True)
class GraphDiff:
    """The difference of two graphs.

    Args:
        old: the first graph.
        new: the second graph.
        steps: every operator of both, in an order that keeps that of each graph.
        inputs: inputs that differ, were added or are gone.
        outputs: what is an output of the new graph alone, and of the old graph alone, as text.
        sizes: (old, new) sizes of dimensions that changed in the inputs.
    """

    old: GraphFacts
    new: GraphFacts
    steps: tuple[Step, ...]
    inputs: tuple[InputChange, ...]
    outputs: tuple[tuple[str, ...], tuple[str, ...]]
    sizes: tuple[tuple[int, int], ...]

    def added(self) -> tuple[Operation, ...]:
        """Return the operators that only the new graph has."""
        return tuple(self.new.operations[step.new] for step in self.steps if step.old < 0)

    def removed(self) -> tuple[Operation, ...]:
        """Return the operators that only the old graph has."""
        return tuple(self.old.operations[step.old] for step in self.steps if step.new < 0)

    def changed(self) -> tuple[Step, ...]:
        """Return the operators that are in both and differ."""
        return tuple(step for step in self.steps if step.aspects)

    @property
    def equal_count(self) -> int:
        """The number of operators that are the same in both."""
        return sum(step.is_equal for step in self.steps)

    @property
    def is_empty(self) -> bool:
        """Whether nothing differs that takes part in a graph's hash."""
        return (
            all(step.is_equal for step in self.steps)
            and not self.inputs
            and not any(self.outputs)
            and self.old.libraries == self.new.libraries
            and self.old.aliases == self.new.aliases
        )

    def parting(self) -> Step | None:
        """Return where the graphs part: the first operator that differs by more than the inputs' sizes, or at all."""
        differing = [step for step in self.steps if not step.is_equal]
        return next((step for step in differing if not step.follows), differing[0] if differing else None)


def diff_graphs(old: GraphFacts, new: GraphFacts) -> GraphDiff:
    """Return what differs between two graphs."""
    pairs = align(old.names, new.names, lambda i, j: _alike(old.operations[i], new.operations[j]))
    partners = Partners(old, new, pairs)
    inputs = tuple(partners.changed_inputs())
    sizes = _sizes(old, new, inputs)
    judged = _Judged(sizes)
    steps = []
    for i, j in _all_positions(pairs, len(old.operations), len(new.operations)):
        if i < 0 or j < 0:
            steps.append(Step(i, j))
            continue
        aspects, follows = judged.judge(old.operations[i], new.operations[j])
        if partners.rewired(i, j):
            aspects, follows = aspects | {Aspect.WIRING}, False
        steps.append(Step(i, j, aspects, follows=follows))
    return GraphDiff(old, new, tuple(steps), inputs, partners.changed_outputs(), sizes)


class _Judged:
    """Pairs of operators, each kind of pair judged once: a large graph repeats its layers many times."""

    def __init__(self, sizes: tuple[tuple[int, int], ...]) -> None:
        self._sizes = sizes
        self._known: dict[tuple[object, object], tuple[frozenset[Aspect], bool]] = {}

    def judge(self, old: Operation, new: Operation) -> tuple[frozenset[Aspect], bool]:
        """Return in what two operators differ, and whether all of it follows from the inputs' sizes."""
        kind = (old.detail, new.detail)
        found = self._known.get(kind)
        if found is None:
            aspects = _aspects(old, new)
            may_follow = bool(aspects) and aspects <= {Aspect.SHAPE, Aspect.CONSTANT, Aspect.LAYOUT}
            found = self._known[kind] = (aspects, may_follow and _follows(old, new, self._sizes))
        return found


def _alike(old: Operation, new: Operation) -> int:
    """Return in how many tensors and constants two operators of one name agree, place by place."""
    tensors = zip(old.operands, new.operands, strict=False)
    results = zip(old.results, new.results, strict=False)
    constants = zip(old.constants, new.constants, strict=False)
    return (
        sum(a.tensor == b.tensor for a, b in tensors)
        + sum(a == b for a, b in results)
        + sum(a == b for a, b in constants)
    )


def _all_positions(pairs: tuple[tuple[int, int], ...], rows: int, columns: int) -> Iterator[tuple[int, int]]:
    i = j = 0
    for next_i, next_j in (*pairs, (rows, columns)):
        yield from ((position, -1) for position in range(i, next_i))
        yield from ((-1, position) for position in range(j, next_j))
        if next_i < rows and next_j < columns:
            yield next_i, next_j
        i, j = next_i + 1, next_j + 1


def _aspects(old: Operation, new: Operation) -> frozenset[Aspect]:
    found = set()
    left = [*(operand.tensor for operand in old.operands), *old.results]
    right = [*(operand.tensor for operand in new.operands), *new.results]
    # Lists of other lengths have nothing to be compared place by place; they are another wiring.
    if (len(old.operands), len(old.results)) != (len(new.operands), len(new.results)):
        found.add(Aspect.WIRING)
    else:
        if [tensor.shape for tensor in left] != [tensor.shape for tensor in right]:
            found.add(Aspect.SHAPE)
        if [tensor.dtype for tensor in left] != [tensor.dtype for tensor in right]:
            found.add(Aspect.DTYPE)
        if [operand.window for operand in old.operands] != [operand.window for operand in new.operands]:
            found.add(Aspect.LAYOUT)
    if old.constants != new.constants:
        found.add(Aspect.CONSTANT)
    return frozenset(found)


def _sizes(old: GraphFacts, new: GraphFacts, inputs: tuple[InputChange, ...]) -> tuple[tuple[int, int], ...]:
    found: dict[tuple[int, int], None] = {}
    for change in inputs:
        if change.old >= 0 and change.new >= 0:
            left, right = old.inputs[change.old].shape, new.inputs[change.new].shape
            if len(left) == len(right):
                found |= dict.fromkeys(pair for pair in zip(left, right, strict=True) if pair[0] != pair[1])
    return tuple(found)


def _follows(old: Operation, new: Operation, sizes: tuple[tuple[int, int], ...]) -> bool:
    """Return whether every number that differs differs by the factor of an input's dimension."""
    left = _numbers(old)
    right = _numbers(new)
    return (
        left[0] == right[0]
        and len(left[1]) == len(right[1])
        and all(
            a == b or any(a * after == b * before for before, after in sizes)
            for a, b in zip(left[1], right[1], strict=True)
        )
    )


def _numbers(operation: Operation) -> tuple[str, list[int]]:
    words = [
        *(f"{operand.tensor} {operand.window}" for operand in operation.operands),
        *map(str, operation.results),
        *operation.constants,
    ]
    text = "; ".join(words)
    # Digits of a dtype's name stay in the skeleton: letters stand before them.
    return _NUMBER.sub("#", text), [int(number) for number in _NUMBER.findall(text)]
