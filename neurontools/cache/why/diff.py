"""What differs between two graphs, operator by operator: aligned by name, with inputs and outputs matched.

Myers' greedy search finds the shortest edit script over names. Where the graphs differ in more than a few hundred places,
the furthest path so far is taken and the search goes on behind it, so that time stays linear in the length.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from neurontools.cache.graph_facts import GraphFacts, Operand, OperatorCall, TensorType

Pair = tuple[int, int]

CASTS = ("aten._to_copy.default", "convert")
"""Operators that change a data type and nothing else."""
_NUMBER = re.compile(r"(?<![A-Za-z0-9_.])-?\d+(?![.\d])")

_MOST_EDITS, _FEWEST_EDITS = 400, 24
_MAX_SEARCH_STEPS = 2_000_000


class Aspect(StrEnum):
    """In what two aligned operators differ."""

    SHAPE = "shape"
    DTYPE = "dtype"
    CONSTANT = "constant"
    WIRING = "wiring"
    LAYOUT = "layout"


@dataclass(frozen=True, slots=True)
class InputChange:
    """Matched inputs that differ, by number, -1 for none."""

    old: int
    new: int


@dataclass(frozen=True, slots=True)
class DiffStep:
    """One position of a diff: `old` and `new` are operator numbers, -1 for none.

    `aspects` is empty for equal operators. `follows`: the whole difference follows from the inputs' new sizes.
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
        inputs: inputs that differ, were added or were removed.
        outputs: outputs of the new graph only, and of the old graph only, as text.
        sizes: (old, new) sizes of dimensions that changed in the inputs.
    """

    old: GraphFacts
    new: GraphFacts
    steps: tuple[DiffStep, ...]
    inputs: tuple[InputChange, ...]
    outputs: tuple[tuple[str, ...], tuple[str, ...]]
    sizes: tuple[tuple[int, int], ...]

    def added(self) -> tuple[OperatorCall, ...]:
        """Return the operators of the new graph only."""
        return tuple(self.new.operations[step.new] for step in self.steps if step.old < 0)

    def removed(self) -> tuple[OperatorCall, ...]:
        """Return the operators of the old graph only."""
        return tuple(self.old.operations[step.old] for step in self.steps if step.new < 0)

    def changed(self) -> tuple[DiffStep, ...]:
        """Return the operators that are in both and differ."""
        return tuple(step for step in self.steps if step.aspects)

    @property
    def equal_count(self) -> int:
        """The number of operators that are the same in both."""
        return sum(step.is_equal for step in self.steps)

    @property
    def sizes_text(self) -> str:
        """The changed sizes, such as `8 -> 3`."""
        return ", ".join(f"{old} -> {new}" for old, new in self.sizes)

    @property
    def is_empty(self) -> bool:
        """Whether nothing differs that is part of a graph's hash."""
        return (
            all(step.is_equal for step in self.steps)
            and not self.inputs
            and not any(self.outputs)
            and self.old.libraries == self.new.libraries
            and self.old.aliases == self.new.aliases
        )

    def first_difference(self) -> DiffStep | None:
        """Return where the graphs part: the first operator that differs by more than the inputs' sizes, or at all."""
        differing = [step for step in self.steps if not step.is_equal]
        return next((step for step in differing if not step.follows), differing[0] if differing else None)


def diff_graphs(old: GraphFacts, new: GraphFacts) -> GraphDiff:
    """Return what differs between two graphs."""
    pairs = align(old.names, new.names, lambda i, j: _similarity(old.operations[i], new.operations[j]))
    matching = _Matching(old, new, pairs)
    inputs = tuple(matching.changed_inputs())
    sizes = _changed_sizes(old, new, inputs)
    # Each kind of pair is compared once: a large graph repeats its layers many times.
    known: dict[tuple[object, object], tuple[frozenset[Aspect], bool]] = {}
    steps = []
    for i, j in _all_positions(pairs, len(old.operations), len(new.operations)):
        if i < 0 or j < 0:
            steps.append(DiffStep(i, j))
            continue
        kind = (old.operations[i].detail, new.operations[j].detail)
        if kind not in known:
            known[kind] = _compare_operations(old.operations[i], new.operations[j], sizes)
        aspects, follows = known[kind]
        if matching.is_rewired(i, j):
            aspects, follows = aspects | {Aspect.WIRING}, False
        steps.append(DiffStep(i, j, aspects, follows=follows))
    return GraphDiff(old, new, tuple(steps), inputs, matching.changed_outputs(), sizes)


class _Matching:
    """Matches inputs of two graphs by their first use in aligned operators."""

    def __init__(self, old: GraphFacts, new: GraphFacts, pairs: tuple[tuple[int, int], ...]) -> None:
        self._old, self._new = old, new
        self._operations = dict(pairs)
        self._inputs: dict[int, int] = {}
        self._matched: set[int] = set()
        reverse = {j: i for i, j in pairs}
        for i, j in pairs:
            left_operands, right_operands = old.operations[i].operands, new.operations[j].operands
            for left, right in zip(left_operands, right_operands, strict=False):
                if len(left_operands) != len(right_operands) and left.tensor != right.tensor:
                    continue
                a, b = _input_number(old, left, self._operations), _input_number(new, right, reverse)
                if a >= 0 and b >= 0 and a not in self._inputs and b not in self._matched:
                    self._inputs[a] = b
                    self._matched.add(b)
        for a, b in zip(_unused_inputs(old), _unused_inputs(new), strict=False):
            self._inputs[a] = b
            self._matched.add(b)

    def changed_inputs(self) -> Iterator[InputChange]:
        for a, tensor in enumerate(self._old.inputs):
            b = self._inputs.get(a, -1)
            if b < 0 or not _is_equal_or_transposed(tensor, self._new.inputs[b]):
                yield InputChange(a, b)
        for b in range(len(self._new.inputs)):
            if b not in self._matched:
                yield InputChange(-1, b)

    def is_rewired(self, i: int, j: int) -> bool:
        """Whether aligned operators take their arguments from other operators or inputs."""
        left, right = self._old.operations[i].operands, self._new.operations[j].operands
        return len(left) != len(right) or any(
            self._match(a.producer) != b.producer or a.result != b.result
            for a, b in zip(left, right, strict=True)
        )

    def changed_outputs(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the outputs of the new graph only, and of the old graph only."""
        expected = {(self._match(out.producer), out.result): out for out in self._old.outputs}
        found = {(out.producer, out.result): out for out in self._new.outputs}
        return (
            tuple(_output_text(self._new, out) for key, out in found.items() if key not in expected),
            tuple(_output_text(self._old, out) for key, out in expected.items() if key not in found),
        )

    def _match(self, producer: int) -> int | None:
        if producer >= 0:
            return self._operations.get(producer)
        number = -1 - producer
        if number >= len(self._old.inputs):
            return -1 - len(self._new.inputs)
        found = self._inputs.get(number)
        return None if found is None else -1 - found


def _input_number(graph: GraphFacts, operand: Operand, aligned: dict[int, int]) -> int:
    """Return which input an operand is, also behind a cast that only one graph has; -1 for none."""
    while operand.producer >= 0 and operand.producer not in aligned:
        operation = graph.operations[operand.producer]
        if operation.name not in CASTS or not operation.operands:
            break
        # A damaged module may have operators that take their own result.
        if operation.operands[0].producer >= operand.producer:
            return -1
        operand = operation.operands[0]
    # A graph may read a buffer that nothing fills; such an operand is not an input.
    return operand.input_number if operand.input_number < len(graph.inputs) else -1


def _unused_inputs(graph: GraphFacts) -> list[int]:
    used = {operand.input_number for operation in graph.operations for operand in operation.operands}
    return [number for number in range(len(graph.inputs)) if number not in used]


def _is_equal_or_transposed(old: TensorType, new: TensorType) -> bool:
    # After a transposition, another operator may use the input first.
    return old.dtype == new.dtype and sorted(old.shape) == sorted(new.shape)


def _output_text(graph: GraphFacts, output: Operand) -> str:
    if output.producer < 0:
        return f"input {-1 - output.producer} {output.tensor}"
    operation = graph.operations[output.producer]
    where = f" at {operation.source}" if operation.source else ""
    return f"{output.tensor} of {operation.name}{where}"


def _similarity(old: OperatorCall, new: OperatorCall) -> int:
    """Return how many tensors and constants of two operators of one name are equal, place by place."""
    operands = zip(old.operands, new.operands, strict=False)
    results = zip(old.results, new.results, strict=False)
    constants = zip(old.constants, new.constants, strict=False)
    return (
        sum(a.tensor == b.tensor for a, b in operands)
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


def _changed_sizes(
    old: GraphFacts, new: GraphFacts, inputs: tuple[InputChange, ...]
) -> tuple[tuple[int, int], ...]:
    found: dict[tuple[int, int], None] = {}
    for change in inputs:
        if change.old >= 0 and change.new >= 0:
            left, right = old.inputs[change.old].shape, new.inputs[change.new].shape
            if len(left) == len(right):
                found |= dict.fromkeys(pair for pair in zip(left, right, strict=True) if pair[0] != pair[1])
    return tuple(found)


def _compare_operations(
    old: OperatorCall, new: OperatorCall, sizes: tuple[tuple[int, int], ...]
) -> tuple[frozenset[Aspect], bool]:
    """Return in what two operators differ, and whether all of it follows from the inputs' sizes."""
    found = set()
    # Lists of other lengths cannot be compared place by place; they count as another wiring.
    if (len(old.operands), len(old.results)) != (len(new.operands), len(new.results)):
        found.add(Aspect.WIRING)
    else:
        if [tensor.shape for tensor in old.tensors] != [tensor.shape for tensor in new.tensors]:
            found.add(Aspect.SHAPE)
        if [tensor.dtype for tensor in old.tensors] != [tensor.dtype for tensor in new.tensors]:
            found.add(Aspect.DTYPE)
        if [operand.window for operand in old.operands] != [operand.window for operand in new.operands]:
            found.add(Aspect.LAYOUT)
    if old.constants != new.constants:
        found.add(Aspect.CONSTANT)
    may_follow = bool(found) and found <= {Aspect.SHAPE, Aspect.CONSTANT, Aspect.LAYOUT}
    return frozenset(found), may_follow and _follows_from_sizes(old, new, sizes)


def _follows_from_sizes(old: OperatorCall, new: OperatorCall, sizes: tuple[tuple[int, int], ...]) -> bool:
    """Return whether every number that differs does so by the factor of an input's dimension."""
    (old_text, old_numbers), (new_text, new_numbers) = _split_numbers(old), _split_numbers(new)
    return (
        old_text == new_text
        and len(old_numbers) == len(new_numbers)
        and all(
            a == b or any(a * after == b * before for before, after in sizes)
            for a, b in zip(old_numbers, new_numbers, strict=True)
        )
    )


def _split_numbers(operation: OperatorCall) -> tuple[str, list[int]]:
    words = [
        *(f"{operand.tensor} {operand.window}" for operand in operation.operands),
        *map(str, operation.results),
        *operation.constants,
    ]
    text = "; ".join(words)
    # Digits in the name of a dtype stay in the text: letters precede them.
    return _NUMBER.sub("#", text), [int(number) for number in _NUMBER.findall(text)]


def align(
    a: Sequence[str], b: Sequence[str], alike: Callable[[int, int], int] | None = None
) -> tuple[Pair, ...]:
    """Return the pairs of positions that belong together, both rising; names of a pair are equal.

    Args:
        a: names in the first graph.
        b: names in the second graph.
        alike: how much two positions of one name agree; decides where several scripts are as short.
    """
    start = 0
    while start < len(a) and start < len(b) and a[start] == b[start]:
        start += 1
    end_a, end_b = len(a), len(b)
    while end_a > start and end_b > start and a[end_a - 1] == b[end_b - 1]:
        end_a -= 1
        end_b -= 1
    pairs = [(position, position) for position in range(start)]
    numbers: dict[str, int] = {}
    left, right = ([numbers.setdefault(name, len(numbers)) for name in names] for names in (a, b))
    pairs += _middle(left, right, start, end_a, end_b)
    pairs += [(end_a + offset, end_b + offset) for offset in range(len(a) - end_a)]
    return tuple(_slide(pairs, a, b, alike) if alike is not None else pairs)


def _middle(a: Sequence[int], b: Sequence[int], start: int, end_a: int, end_b: int) -> list[Pair]:
    pairs: list[Pair] = []
    at_a = at_b = start
    # A search of n edits takes n * n / 2 steps and gets n further, so that all of them take length * n / 2.
    most = max(_FEWEST_EDITS, min(_MOST_EDITS, _MAX_SEARCH_STEPS // max(end_a + end_b - 2 * start, 1)))
    while at_a < end_a and at_b < end_b:
        found, at_a, at_b = _search(a, b, at_a, end_a, at_b, end_b, most)
        pairs += found
    return pairs


def _search(
    a: Sequence[int], b: Sequence[int], from_a: int, end_a: int, from_b: int, end_b: int, most: int
) -> tuple[list[Pair], int, int]:
    """Return pairs of the shortest script, or of its furthest start, and where it ends."""
    rows, columns = end_a - from_a, end_b - from_b
    most = min(rows + columns, most)
    # How far each diagonal goes; those below 0 are counted from the list's end.
    furthest = [0] * (2 * most + 3)
    history: list[list[int]] = []
    for edits in range(most + 1):
        history.append(furthest.copy())
        for diagonal in range(-edits, edits + 1, 2):
            above, below = furthest[diagonal + 1], furthest[diagonal - 1]
            down = diagonal == -edits or (diagonal != edits and below < above)
            x = above if down else below + 1
            y = x - diagonal
            while x < rows and y < columns and a[from_a + x] == b[from_b + y]:
                x += 1
                y += 1
            furthest[diagonal] = x
            if x >= rows and y >= columns:
                return _path(history, edits, x, y, from_a, from_b), end_a, end_b
    candidates = [
        (furthest[diagonal], furthest[diagonal] - diagonal) for diagonal in range(-most, most + 1, 2)
    ]
    x, y = max(
        (end for end in candidates if end[0] <= rows and end[1] <= columns), key=lambda end: (sum(end), end)
    )
    return _path(history, most, x, y, from_a, from_b), from_a + x, from_b + y


def _path(history: list[list[int]], edits: int, x: int, y: int, from_a: int, from_b: int) -> list[Pair]:
    pairs: list[Pair] = []
    # Without an edit there is no pair: the first names differ.
    for count in range(edits, 0, -1):
        before = history[count]
        diagonal = x - y
        down = diagonal == -count or (diagonal != count and before[diagonal - 1] < before[diagonal + 1])
        previous = diagonal + 1 if down else diagonal - 1
        start_x = before[previous]
        start_y = start_x - previous
        while x > start_x and y > start_y and x > 0 and y > 0:
            x -= 1
            y -= 1
            pairs.append((from_a + x, from_b + y))
        x, y = start_x, start_y
    pairs.reverse()
    return pairs


def _slide(
    pairs: list[Pair], a: Sequence[str], b: Sequence[str], alike: Callable[[int, int], int]
) -> list[Pair]:
    """Move each insertion and removal to where the pairs beside it agree most."""
    pairs = _slide_insertions(pairs, len(a), b, alike)
    # A removal is an insertion with the graphs exchanged.
    flipped = _slide_insertions([(j, i) for i, j in pairs], len(b), a, lambda j, i: alike(i, j))
    return [(i, j) for j, i in flipped]


def _slide_insertions(
    pairs: list[Pair], length_a: int, b: Sequence[str], alike: Callable[[int, int], int]
) -> list[Pair]:
    found = [(-1, -1), *pairs, (length_a, len(b))]
    for index in range(1, len(found)):
        before, after = found[index - 1], found[index]
        gap = after[1] - before[1] - 1
        if gap > 0 and after[0] == before[0] + 1:
            count = _best_slide(found, index, gap, b, alike)
            found[index - count : index] = [(i, j + gap) for i, j in found[index - count : index]]
    return found[1:-1]


def _best_slide(
    pairs: list[Pair], index: int, gap: int, b: Sequence[str], alike: Callable[[int, int], int]
) -> int:
    """Return how many pairs before an insertion match the end of the inserted operators better."""
    gain = best = best_count = 0
    for count in range(1, index):
        i, j = pairs[index - count]
        if (count > 1 and pairs[index - count + 1] != (i + 1, j + 1)) or b[j + gap] != b[j]:
            break
        gain += alike(i, j + gap) - alike(i, j)
        if gain > best:
            best, best_count = gain, count
    return best_count
