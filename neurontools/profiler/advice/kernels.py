"""Custom operators that touch single elements in HBM, instead of copying them to TCM in pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools import gpsimd
from neurontools.base.units import format_ns
from neurontools.compiler.engines.placement import CUSTOM_OPCODE, split_name
from neurontools.compiler.graph import reads
from neurontools.compiler.work import item_bytes, numel, written
from neurontools.profiler.advice.findings import Advice, Silent
from neurontools.profiler.advice.subject import short_source

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neurontools.profiler.advice.findings import Finding
    from neurontools.profiler.advice.subject import ProfiledProgram

KERNELS = "custom-operators"
_SLOWER = 4
"""Factor above the time of copies in pieces from which accesses to elements must be the cause: the model has no other."""


def kernels(program: ProfiledProgram) -> Iterator[Finding]:
    """Yield custom operators that take much longer than copies of their tensors through TCM."""
    spent = {row.operator: row.busy_ns for row in program.neff.cost.rows if row.opcode == CUSTOM_OPCODE}
    by_op: dict[str, list[int]] = {}
    for position in spent:
        by_op.setdefault(program.graph.nodes[position].op, []).append(position)
    if not by_op:
        yield Silent(KERNELS, "no custom operator in this graph")
    for op, positions in by_op.items():
        yield _kernel(program, op, positions, sum(spent[position] for position in positions))


def _kernel(program: ProfiledProgram, op: str, positions: Sequence[int], now_ns: int) -> Finding:
    namespace, name = split_name(op)
    copied = {position: _copied_ns(program, position) for position in positions}
    copied_ns = sum(copied.values())
    times = f"{format_ns(now_ns)}, and {format_ns(copied_ns)} would copy its tensors through TCM"
    if now_ns < _SLOWER * copied_ns:
        return Silent(KERNELS, f"{namespace}::{name} takes {times}")
    trial = program.trial(custom_ns=copied)
    if trial.gain is None or not trial.is_worth:
        return Silent(KERNELS, f"{namespace}::{name} takes {times}: {trial.words}")
    source = short_source(program.graph.nodes[positions[0]].source)
    return Advice(
        KERNELS,
        f"Let {namespace}::{name} copy its tensors to TCM in pieces instead of accessing single elements",
        f"in the C++ source of {name}{f' (called at {source})' if source else ''}, replace accessor() by tcm_accessor()"
        f" and copies of {gpsimd.rates().piece_bytes} bytes; neuron-customop bench shows the line",
        trial.gain,
        f"it takes {times} (rates of GPSIMD); engine model, this graph with that: {trial.words}",
        program.lines(positions, f"{namespace}::{name} on GpSimd"),
    )


def _copied_ns(program: ProfiledProgram, position: int) -> int:
    """Return the time of a call that moves each of its tensors through TCM once, on one core."""
    node = program.graph.nodes[position]
    nbytes = sum(numel(view) * item_bytes(view.dtype) for view in (*reads(node), *written(node)))
    return round(gpsimd.rates().launch_ns + gpsimd.rates().transfer_ns(nbytes))
