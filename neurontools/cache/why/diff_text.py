"""A graph's difference as lines, like a unified diff: equal parts folded, what only follows from sizes summed up."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from neurontools.cache.tables import counted, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from neurontools.cache.graphs.graph_facts import GraphFacts, Operand, Operation
    from neurontools.cache.why.diff import GraphDiff, Step

    # A mark and what makes the text: of thousands of lines, few are shown.
    _Line = tuple[str, Callable[[], str]]

_CONTEXT = 2
_OPERANDS_SHOWN = 6
_LONGEST_CONSTANT = 160


@dataclass(frozen=True, slots=True)
class DiffLine:
    """One line; `mark` is `-`, `+`, `@` for a place, `~` for a sum, or a blank for what is the same."""

    mark: str
    text: str


def diff_lines(diff: GraphDiff, *, full: bool = False, most: int | None = None) -> tuple[DiffLine, ...]:
    """Return the difference of two graphs as lines, () where the operators are the same.

    Args:
        diff: the difference.
        full: also every operator that differs only by the inputs' sizes.
        most: so many lines at most, None for all.
    """
    if all(step.is_equal for step in diff.steps):
        return ()
    lines = list(_lines(diff, full=full))
    shown = [DiffLine(mark, make()) for mark, make in lines[:most]]
    rest = len(lines) - len(shown)
    if rest:
        shown.append(DiffLine("~", f"{counted(rest, 'more line', 'more lines')} (--full)"))
    return tuple(shown)


def operation_text(graph: GraphFacts, operation: Operation) -> str:
    """Return an operator with its arguments, results and source line."""
    shown = [_operand_text(graph, operand) for operand in operation.operands[:_OPERANDS_SHOWN]]
    if len(operation.operands) > _OPERANDS_SHOWN:
        shown.append(f"and {len(operation.operands) - _OPERANDS_SHOWN} more tensors")
    arguments = ", ".join((*shown, *map(shortened, operation.constants)))
    results = ", ".join(map(str, operation.results))
    where = f"  # {operation.source}" if operation.source else ""
    return plain(f"{operation.name}({arguments})" + (f" -> {results}" if results else "") + where)


def shortened(constant: str) -> str:
    """Return a constant, without its middle where it is very long."""
    half = _LONGEST_CONSTANT // 2
    return constant if len(constant) <= _LONGEST_CONSTANT else f"{constant[:half]}…{constant[-half:]}"


def _operand_text(graph: GraphFacts, operand: Operand) -> str:
    if operand.producer < 0:
        number = operand.input_number
        name = graph.input_names[number] if number < len(graph.input_names) else ""
        return f"{name or f'input {number}'}:{operand.tensor}"
    result = f".{operand.result}" if operand.result else ""
    return f"%{operand.producer}{result}:{operand.tensor}"


def _lines(diff: GraphDiff, *, full: bool) -> Iterator[_Line]:
    steps = diff.steps
    shown = [not step.is_equal and (full or not step.follows) for step in steps]
    near = [any(shown[max(0, at - _CONTEXT) : at + _CONTEXT + 1]) for at in range(len(steps))]
    at = 0
    while at < len(steps):
        end = at
        while end < len(steps) and near[end] == near[at]:
            end += 1
        if near[at]:
            yield "@", partial(_place, diff, steps[at:end], shown[at:end])
            yield from _hunk(diff, steps[at:end], full=full)
        else:
            yield from _folded(diff, steps[at:end])
        at = end


def _place(diff: GraphDiff, steps: tuple[Step, ...], shown: list[bool]) -> str:
    old = [step.old for step in steps if step.old >= 0]
    new = [step.new for step in steps if step.new >= 0]
    first = next(step for step, is_shown in zip(steps, shown, strict=True) if is_shown)
    side = diff.new.operations[first.new] if first.new >= 0 else diff.old.operations[first.old]
    return plain(f"@@ -{_range(old)} +{_range(new)} @@ {side.source}".rstrip())


def _range(numbers: list[int]) -> str:
    return f"{numbers[0]},{len(numbers)}" if numbers else "0,0"


def _folded(diff: GraphDiff, steps: tuple[Step, ...]) -> Iterator[_Line]:
    equal = sum(step.is_equal for step in steps)
    if equal:
        yield " ", lambda: f"... {counted(equal, 'operator', 'operators')} the same"
    if equal < len(steps):
        sizes = ", ".join(f"{old} -> {new}" for old, new in diff.sizes)
        number = counted(len(steps) - equal, "operator differs", "operators differ")
        yield "~", lambda: f"... {number} by the sizes {sizes} alone"


def _hunk(diff: GraphDiff, steps: tuple[Step, ...], *, full: bool) -> Iterator[_Line]:
    removed: list[_Line] = []
    added: list[_Line] = []
    for step in steps:
        if step.is_equal or (step.follows and not full):
            yield from (*removed, *added)
            removed, added = [], []
            yield _line(" " if step.is_equal else "~", diff.new, step.new)
            continue
        if step.old >= 0:
            removed.append(_line("-", diff.old, step.old))
        if step.new >= 0:
            added.append(_line("+", diff.new, step.new))
    yield from (*removed, *added)


def _line(mark: str, graph: GraphFacts, position: int) -> _Line:
    return mark, partial(operation_text, graph, graph.operations[position])
