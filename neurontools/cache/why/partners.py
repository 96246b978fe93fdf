"""Which inputs, operators and outputs of two graphs belong together, once their operators are aligned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.cache.graphs.graph_facts import GraphFacts, Operand, Tensor

CASTS = ("aten._to_copy.default", "convert")
"""Operators that change a data type and nothing else."""


@dataclass(frozen=True, slots=True)
class InputChange:
    """Inputs that belong together, by number, -1 for none."""

    old: int
    new: int


class Partners:
    """Which inputs and operators of two graphs belong together: inputs by their first use in aligned operators."""

    def __init__(self, old: GraphFacts, new: GraphFacts, pairs: tuple[tuple[int, int], ...]) -> None:
        self._old, self._new = old, new
        self._operations = dict(pairs)
        partners = {j: i for i, j in pairs}
        self._inputs: dict[int, int] = {}
        taken: set[int] = set()
        for i, j in pairs:
            ones, others = old.operations[i].operands, new.operations[j].operands
            for left, right in zip(ones, others, strict=False):
                if len(ones) != len(others) and left.tensor != right.tensor:
                    continue
                a, b = self._source(old, left, self._operations), self._source(new, right, partners)
                if a >= 0 and b >= 0 and a not in self._inputs and b not in taken:
                    self._inputs[a] = b
                    taken.add(b)
        self._pair_unused(taken)
        self._taken = taken

    def _pair_unused(self, taken: set[int]) -> None:
        """Pair inputs that no operator of either graph uses, in order."""
        used = [
            {operand.input_number for operation in graph.operations for operand in operation.operands}
            for graph in (self._old, self._new)
        ]
        left = [a for a in range(len(self._old.inputs)) if a not in used[0]]
        right = [b for b in range(len(self._new.inputs)) if b not in used[1]]
        for a, b in zip(left, right, strict=False):
            self._inputs[a] = b
            taken.add(b)

    @staticmethod
    def _source(graph: GraphFacts, operand: Operand, aligned: dict[int, int]) -> int:
        """Return which input an operand is, also behind a cast that only one graph has; -1 for none."""
        while operand.producer >= 0 and operand.producer not in aligned:
            operation = graph.operations[operand.producer]
            if operation.name not in CASTS or not operation.operands:
                break
            # A damaged module may have operators that take their own result.
            if operation.operands[0].producer >= operand.producer:
                return -1
            operand = operation.operands[0]
        # A graph may read a buffer that nothing fills; such an operand is no input of it.
        return operand.input_number if operand.input_number < len(graph.inputs) else -1

    def changed_inputs(self) -> Iterator[InputChange]:
        """Yield the inputs that differ, the gone ones and the added ones."""
        for a in range(len(self._old.inputs)):
            b = self._inputs.get(a, -1)
            if b < 0 or not _is_alike(self._old.inputs[a], self._new.inputs[b]):
                yield InputChange(a, b)
        for b in range(len(self._new.inputs)):
            if b not in self._taken:
                yield InputChange(-1, b)

    def rewired(self, i: int, j: int) -> bool:
        """Return whether aligned operators take their arguments from elsewhere."""
        left, right = self._old.operations[i].operands, self._new.operations[j].operands
        return len(left) != len(right) or any(
            self._partner(a.producer) != b.producer or a.result != b.result
            for a, b in zip(left, right, strict=True)
        )

    def changed_outputs(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return what is an output of the new graph alone, and of the old graph alone."""
        expected = {(self._partner(out.producer), out.result): out for out in self._old.outputs}
        given = {(out.producer, out.result): out for out in self._new.outputs}
        more = tuple(
            _output_text(self._new, out.producer, out.tensor)
            for key, out in given.items()
            if key not in expected
        )
        less = tuple(
            _output_text(self._old, out.producer, out.tensor)
            for key, out in expected.items()
            if key not in given
        )
        return more, less

    def _partner(self, producer: int) -> int | None:
        if producer >= 0:
            return self._operations.get(producer)
        number = -1 - producer
        if number >= len(self._old.inputs):
            return -1 - len(self._new.inputs)
        found = self._inputs.get(number)
        return None if found is None else -1 - found


def _is_alike(old: Tensor, new: Tensor) -> bool:
    """Return whether inputs are equal but for a transposition: another operator may look at them first."""
    return old.dtype == new.dtype and sorted(old.shape) == sorted(new.shape)


def _output_text(graph: GraphFacts, producer: int, tensor: Tensor) -> str:
    if producer < 0:
        return f"input {-1 - producer} {tensor}"
    operation = graph.operations[producer]
    where = f" at {operation.source}" if operation.source else ""
    return f"{tensor} of {operation.name}{where}"
