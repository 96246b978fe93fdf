"""A graph's difference as lines, like a unified diff: equal parts folded, what follows from sizes summed up."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from neurontools.base.text import plural, printable
from neurontools.cache.graph_facts import SCALAR_INPUT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from neurontools.cache.graph_facts import GraphFacts, Operand, OperatorCall
    from neurontools.cache.why.diff import DiffStep, GraphDiff

    # A mark and a function that formats the text: of thousands of lines, few are shown.
    _Line = tuple[str, Callable[[], str]]

_CONTEXT = 2
_SHOWN_OPERANDS = 6
_MAX_CONSTANT = 160


@dataclass(frozen=True, slots=True)
class DiffLine:
    """One line; `mark` is `-`, `+`, `@` for a position, `~` for a summary, or a blank for equal operators."""

    mark: str
    text: str


def diff_lines(diff: GraphDiff, *, full: bool = False, most: int | None = None) -> tuple[DiffLine, ...]:
    """Return the difference of two graphs as lines, () where the operators are the same.

    Args:
        diff: the difference.
        full: include operators that differ only by the inputs' sizes.
        most: the maximum number of lines, None for all.
    """
    if all(step.is_equal for step in diff.steps):
        return ()
    lines = list(_lines(diff, full=full))
    shown = [DiffLine(mark, format_text()) for mark, format_text in lines[:most]]
    hidden = len(lines) - len(shown)
    if hidden:
        shown.append(DiffLine("~", f"{plural(hidden, 'more line')} (--full)"))
    return tuple(shown)


def format_operation(graph: GraphFacts, operation: OperatorCall) -> str:
    """Return an operator with its arguments, results and source line."""
    shown = [_format_operand(graph, operand) for operand in operation.operands[:_SHOWN_OPERANDS]]
    if len(operation.operands) > _SHOWN_OPERANDS:
        shown.append(f"and {len(operation.operands) - _SHOWN_OPERANDS} more tensors")
    arguments = ", ".join((*shown, *map(shorten_constant, operation.constants)))
    results = ", ".join(map(str, operation.results))
    where = f"  # {operation.source}" if operation.source else ""
    return printable(f"{operation.name}({arguments})" + (f" -> {results}" if results else "") + where)


def shorten_constant(constant: str) -> str:
    """Return a constant without its middle if it is very long; a number that is an input as "another number"."""
    name, _, value = constant.rpartition("=")
    if value == SCALAR_INPUT:
        return f"{name}=another number" if name else "another number"
    half = _MAX_CONSTANT // 2
    return constant if len(constant) <= _MAX_CONSTANT else f"{constant[:half]}…{constant[-half:]}"


def at_source(source: str) -> str:
    """Return ` at file:line` for a source line, "" for none."""
    return f" at {source}" if source else ""


def _format_operand(graph: GraphFacts, operand: Operand) -> str:
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


def _place(diff: GraphDiff, steps: tuple[DiffStep, ...], shown: list[bool]) -> str:
    old = [step.old for step in steps if step.old >= 0]
    new = [step.new for step in steps if step.new >= 0]
    first = next(step for step, is_shown in zip(steps, shown, strict=True) if is_shown)
    side = diff.new.operations[first.new] if first.new >= 0 else diff.old.operations[first.old]
    return printable(f"@@ -{_range(old)} +{_range(new)} @@ {side.source}".rstrip())


def _range(numbers: list[int]) -> str:
    return f"{numbers[0]},{len(numbers)}" if numbers else "0,0"


def _folded(diff: GraphDiff, steps: tuple[DiffStep, ...]) -> Iterator[_Line]:
    equal = sum(step.is_equal for step in steps)
    if equal:
        yield " ", lambda: f"... {plural(equal, 'operator')} the same"
    if equal < len(steps):
        number = plural(len(steps) - equal, "operator differs", "operators differ")
        yield "~", lambda: f"... {number} by the sizes {diff.sizes_text} alone"


def _hunk(diff: GraphDiff, steps: tuple[DiffStep, ...], *, full: bool) -> Iterator[_Line]:
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
    return mark, partial(format_operation, graph, graph.operations[position])
