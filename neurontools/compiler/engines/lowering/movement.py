"""Operators that move data: gathers and scatters by descriptors, copies, casts, fills, iota, collectives, custom operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools import gpsimd
from neurontools.compiler.engines import dma
from neurontools.compiler.engines.dma import INDIRECT_OPCODE, PLAIN_OPCODE
from neurontools.compiler.engines.instructions import STREAM_PIECES, Instruction, KernelProgram
from neurontools.compiler.engines.lowering.calls import PartitionLayout, numel, row_bytes
from neurontools.compiler.engines.lowering.families import plain_name
from neurontools.compiler.engines.placement import COLLECTIVE_OPCODE, CUSTOM_OPCODE, Engine
from neurontools.compiler.work import flops, item_bytes, read_bytes, touched_bytes, write_bytes

if TYPE_CHECKING:
    from neurontools.compiler.engines.instructions import CustomWork
    from neurontools.compiler.engines.lowering.calls import LoweredCall
    from neurontools.compiler.engines.lowering.context import Lowering
    from neurontools.compiler.graph import View

_BY_ROW = frozenset(
    {"embedding", "_embedding_bag", "index_select", "index", "index_put", "index_add", "index_copy"}
)


def lower_gather(low: Lowering, call: LoweredCall) -> None:
    """Lower lookups: a descriptor for each row that is read, never the whole table."""
    made = max(call.results, key=numel, default=None)
    if made is None or not call.operands or numel(made) == 0:
        low.write_all(call)
        return
    table, indices = call.operands[0], call.operands[1:]
    for view in indices:
        low.read(view)
    nbytes = numel(made) * item_bytes(made.dtype)
    row = (
        made.shape[-1] * item_bytes(made.dtype)
        if made.shape and len(table.shape) > 1
        else item_bytes(made.dtype)
    )
    if plain_name(call.node.op) not in _BY_ROW:
        row = item_bytes(made.dtype)
        low.read(table)
        elements = low.partition_elements(table, PartitionLayout.ROW if len(table.shape) > 1 else None)
        # A row's choice is a comparison with a ramp and a masked sum, or a descriptor each.
        by_mask = elements * max(
            1, numel(made) * max(1, table.shape[-1] if table.shape else 1) // max(1, numel(table))
        )
        if by_mask * 2 * low.machine.cycle_ns[Engine.VECTOR] < dma.transfer_ns(low.machine, nbytes, row):
            slots = tuple(view.slot for view in call.operands)
            low.emit(
                Engine.VECTOR, "RANGE_SELECT", by_mask, 2.0, slots, _targets(call), flops=flops(call.node)
            )
            _write_rows(low, call)
            return
    _descriptors(low, call, nbytes, row, is_load=True)
    _write_rows(low, call)


def lower_scatter(low: Lowering, call: LoweredCall) -> None:
    """Lower stores by index: a read-add-write descriptor for each row, after a fill where the result is new."""
    made = max(call.results, key=numel, default=None)
    if made is None or numel(made) == 0:
        low.write_all(call)
        return
    sources = [view for view in call.operands if view.slot != made.slot]
    for view in sources:
        low.read(view)
    values = max((view for view in sources if not view.dtype.startswith("int")), key=numel, default=made)
    values = values if sources else made
    nbytes = min(numel(values), numel(made)) * item_bytes(made.dtype)
    row = made.shape[-1] * item_bytes(made.dtype) if made.shape else item_bytes(made.dtype)
    name = plain_name(call.node.op)
    if name not in _BY_ROW and "embedding" not in name:
        row = item_bytes(made.dtype)
    if made.slot not in {view.slot for view in call.operands}:
        filled = dma.transfer_ns(low.machine, touched_bytes(made), 4096)
        low.step.instructions.append(
            Instruction(
                Engine.DMA, PLAIN_OPCODE, 1, filled, (), (made.slot,), write_bytes=touched_bytes(made)
            )
        )
    _descriptors(low, call, nbytes, row, is_load=False)
    _write_rows(low, call, home=True)


def _descriptors(low: Lowering, call: LoweredCall, nbytes: int, row: int, *, is_load: bool) -> None:
    costs, machine = low.costs, low.machine
    rows = nbytes // max(1, row)
    count = max(1, -(-rows // costs.partitions))
    ready = low.local()
    opcode = "GATHER" if is_load else "SCATTER"
    indices = tuple(view.slot for view in call.operands[1:]) or tuple(view.slot for view in call.operands)
    engine = Engine.GPSIMD if machine.has_gpsimd else Engine.VECTOR
    low.step.instructions.append(
        Instruction(
            engine,
            opcode,
            count,
            costs.software_dge_ns / machine.lnc,
            indices,
            (ready,),
            count,
            flops(call.node),
        )
    )
    spent = dma.transfer_ns(machine, nbytes, row)
    reads = (ready,) if is_load else (ready, *(view.slot for view in call.operands))
    read, write = nbytes, 0
    if not is_load:
        spent, read, write = spent / costs.dma_accumulate_share, nbytes, nbytes
    low.step.instructions.append(
        Instruction(
            Engine.DMA,
            INDIRECT_OPCODE,
            count,
            spent / count,
            reads,
            _targets(call),
            max(count, min(rows, STREAM_PIECES)),
            read_bytes=read,
            write_bytes=write,
        )
    )


def _targets(call: LoweredCall) -> tuple[int, ...]:
    return tuple(view.slot for view in call.results)


def _write_rows(low: Lowering, call: LoweredCall, *, home: bool = False) -> None:
    low.write_all(call, PartitionLayout.ROW, rank=2)
    if home:
        low.step.writes.clear()  # the descriptors put them into HBM


def lower_transfer(low: Lowering, call: LoweredCall) -> None:
    """Lower copies: nothing where only names change, a pass for casts, a transpose where rows become columns."""
    low.step.streams = True
    sources = [view for view in call.operands if view not in call.results] or list(call.operands[:1])
    for view in sources:
        turned_row = _BLOCK_COLUMNS * item_bytes(view.dtype)
        low.read(view, row=min(turned_row, row_bytes(view)) if _turns(view) else None)
    made = max(call.results, key=numel, default=None)
    source = max(sources, key=numel, default=None)
    if made is None or source is None or numel(made) == 0:
        low.write_all(call)
        return
    layout = low.layout_of(source)
    slots, targets = tuple(view.slot for view in sources), _targets(call)
    elements = low.partition_elements(made, layout if len(made.shape) >= 2 else None)
    is_absorbed = source.dtype == made.dtype and (source.slot in low.layouts or source.slot in low.in_psum)
    if _turns(source) and layout is PartitionLayout.ROW:
        low.transpose_alone(source, source.slot, targets[0])
    elif source.dtype != made.dtype or (is_absorbed and len(sources) > 1) or source.slot in low.in_psum:
        factor = low.machine.tensor_scalar_factor(made.dtype, from_psum=source.slot in low.in_psum)
        low.emit(
            Engine.VECTOR,
            "COPY",
            elements,
            factor,
            slots,
            targets,
            flops=flops(call.node),
            may_use_scalar=True,
        )
    else:
        low.pass_on(slots, targets, flops(call.node))
    low.in_psum.difference_update(slots)
    low.write_all(call, layout, rank=2)


_BLOCK_COLUMNS = 512  # of a matrix that is transposed block by block


def _turns(view: View) -> bool:
    """Return whether the last dimension of a tensor is not contiguous."""
    return len(view.shape) >= 2 and view.strides[-1] != 1 and view.shape[-1] > 1 and numel(view) > 1


def lower_fill(low: Lowering, call: LoweredCall) -> None:
    """Lower constants: memsets."""
    low.step.streams = True
    for view in call.results:
        if numel(view):
            elements = low.partition_elements(view, None)
            low.emit(
                Engine.VECTOR,
                "MEMSET",
                elements,
                0.5,
                (),
                (view.slot,),
                flops=numel(view),
                may_use_scalar=False,
            )
        low.write(view)


def lower_iota(low: Lowering, call: LoweredCall) -> None:
    """Lower ramps and triangles on GpSimd."""
    low.read_all(call)
    made = max(call.results, key=numel, default=None)
    if made is not None and numel(made):
        elements = low.partition_elements(made, PartitionLayout.ROW if len(made.shape) >= 2 else None)
        low.emit(
            Engine.GPSIMD,
            "IOTA",
            elements,
            1.0,
            tuple(view.slot for view in call.operands),
            _targets(call),
            flops=flops(call.node),
            fixed_cycles=low.costs.gpsimd_fixed_cycles,
        )
    low.write_all(call)


def lower_collective(low: Lowering, call: LoweredCall) -> None:
    """Lower exchanges with other cores, by the model of nccom-test; they read and write HBM."""
    from neurontools.compiler.engines.collective_cost import (
        collective_ns,
    )  # plans of algorithms are rarely needed

    machine = low.machine
    moved = read_bytes(call.node), write_bytes(call.node)
    known_ns = collective_ns(call.node, machine.device, machine.lnc)
    if known_ns is None:
        known_ns = round(UNKNOWN_COLLECTIVE_NS + max(moved) / machine.dma_bytes_ns)
    low.step.in_hbm = True
    low.read_all(call)
    low.step.instructions.append(
        Instruction(
            Engine.CC,
            COLLECTIVE_OPCODE,
            1,
            float(known_ns),
            tuple(view.slot for view in call.operands),
            _targets(call) or tuple(view.slot for view in call.operands),
            flops=flops(call.node),
            read_bytes=moved[0],
            write_bytes=moved[1],
        )
    )
    for view in call.results or call.operands:
        low.write(view)


UNKNOWN_COLLECTIVE_NS = 15_000


def lower_custom(low: Lowering, call: LoweredCall, work: CustomWork | None) -> None:
    """Lower an operator of a user's library: a kernel, the time of its counted work, or of its bytes."""
    if isinstance(work, KernelProgram):
        low.step.in_hbm, low.step.kernel = True, work
        low.read_all(call)
        low.write_all(call)
        return
    moved = read_bytes(call.node), write_bytes(call.node)
    rates = gpsimd.rates()
    spent = rates.launch_ns + rates.transfer_ns(sum(moved)) if work is None else work
    engine = Engine.GPSIMD if low.machine.has_gpsimd else Engine.VECTOR
    low.step.instructions.append(
        Instruction(
            engine,
            CUSTOM_OPCODE,
            1,
            float(round(spent)),
            tuple(view.slot for view in call.operands),
            _targets(call),
            flops=flops(call.node),
            read_bytes=moved[0],
            write_bytes=moved[1],
        )
    )
    for view in call.results:
        low.layouts.pop(view.slot, None)
