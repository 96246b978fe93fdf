"""An HLO module in the form that graphs are compared in: the entry computation, with a digest of what it calls."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from neurontools.cache.graphs.graph_facts import GraphFacts, GraphForm, Operand, Operation, Tensor

if TYPE_CHECKING:
    from neurontools.cache.graphs.hlo_module import HloComputation, HloInstruction, HloModule

_PARAMETER = "parameter"
_UNKNOWN = Tensor("unknown", ())


def facts_of_hlo(module: HloModule) -> GraphFacts:
    """Return what an HLO module says. Instruction ids and names take no part, as they change from trace to trace."""
    entry = module.entry()
    called = _called_texts(module)
    parameters = [item for item in entry.instructions if item.opcode == _PARAMETER]
    parameters.sort(key=lambda item: item.parameter or 0)
    rest = [item for item in entry.instructions if item.opcode != _PARAMETER]
    makers = {item.number: -1 - number for number, item in enumerate(parameters)}
    makers |= {item.number: number for number, item in enumerate(rest)}
    shapes = {item.number: (item.shapes or (_UNKNOWN,))[0] for item in entry.instructions}
    lost = sum(number not in makers for item in rest for number in item.operands)
    problems = list(module.problems)
    if lost:
        problems.append(f"{lost} operands refer to instructions that are not there")
    return GraphFacts(
        form=GraphForm.HLO,
        inputs=tuple((item.shapes or (_UNKNOWN,))[0] for item in parameters),
        input_names=tuple(item.op_name or item.name for item in parameters),
        operations=tuple(_operation(item, makers, shapes, called) for item in rest),
        outputs=_outputs(entry, makers, shapes),
        aliases=tuple(module.aliases),
        unread=tuple(problems),
    )


def _operation(
    item: HloInstruction, makers: dict[int, int], shapes: dict[int, Tensor], called: dict[int, str]
) -> Operation:
    operands = tuple(
        Operand(makers[number], 0, shapes[number]) for number in item.operands if number in makers
    )
    inner = tuple(f"calls {called.get(number, 'nothing known')}" for number in item.called)
    source = f"{item.source_file}:{item.source_line}" if item.source_file else item.op_name
    dimensions = (f"dimensions={item.dimensions}",) if item.dimensions else ()
    constants = (*dimensions, *item.attributes, *inner)
    return Operation(item.opcode or "unknown", operands, item.shapes, constants, source)


def _outputs(entry: HloComputation, makers: dict[int, int], shapes: dict[int, Tensor]) -> tuple[Operand, ...]:
    root = next((item for item in entry.instructions if item.number == entry.root), None)
    if root is None:
        return ()
    numbers = root.operands if root.opcode == "tuple" else [root.number]
    return tuple(Operand(makers[number], 0, shapes[number]) for number in numbers if number in makers)


def _called_texts(module: HloModule) -> dict[int, str]:
    """Return opcodes and a digest of each computation that others call; deeper calls count by their opcode alone."""
    texts = {}
    for computation in module.computations:
        lines = [
            f"{item.opcode} {item.shapes} {item.dimensions} {item.attributes} {item.parameter}"
            for item in computation.instructions
        ]
        digest = hashlib.sha256("\n".join(lines).encode("utf-8", "replace")).hexdigest()[:8]
        kinds = [item.opcode for item in computation.instructions if item.opcode != _PARAMETER]
        texts[computation.number] = f"{'+'.join(kinds[:4])} {digest}"
    return texts
