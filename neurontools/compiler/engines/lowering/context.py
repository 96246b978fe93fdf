"""The state of a lowering: layouts of values on the chip, the step at hand, and how engines' work becomes instructions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.compiler.engines import dma
from neurontools.compiler.engines.instructions import STREAM_PIECES, Instruction, Step, StepOperand
from neurontools.compiler.engines.lowering.calls import PartitionLayout, numel, row_bytes
from neurontools.compiler.engines.placement import Engine
from neurontools.compiler.work import item_bytes, touched_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.compiler.engines.lowering.calls import LoweredCall
    from neurontools.compiler.engines.modelled_core import ModelledCore
    from neurontools.compiler.graph import View

_MANY = 1 << 30  # pieces of what takes no time


class Lowering:
    """What a lowering knows while it walks over the calls.

    Args:
        machine: the core.
        inputs: slots that hold data before the program.
        constants: inputs whose layout and type the compiler chooses: weights of a graph without gradients.
        factors: values that only products read.
    """

    def __init__(
        self,
        machine: ModelledCore,
        inputs: frozenset[int],
        constants: frozenset[int],
        factors: frozenset[int],
    ) -> None:
        self.machine = machine
        self.costs = machine.costs
        self.constants = constants
        self.factors = factors
        self.layouts: dict[int, frozenset[PartitionLayout]] = {
            slot: frozenset({PartitionLayout.ROW}) for slot in inputs if slot not in constants
        }
        self.in_psum: set[int] = set()
        self.unread = set(inputs - constants)  # still in HBM alone
        self.turned: set[int] = set()  # inputs that are transposed on their way to SBUF
        self.fill: dict[int, float] = {}  # share of the partitions that a value uses, where it is not all
        self.folded: set[int] = set()
        self.step = Step(0)
        self._local = 0
        self._turning: tuple[int, float, int] = (
            0,
            0.0,
            0,
        )  # tiles to transpose, their cycles, elements to evict

    def start(self, call: LoweredCall) -> Step:
        """Begin the step of a call."""
        self.step = Step(call.position)
        return self.step

    def local(self) -> int:
        """Return a new number for a value on the chip between instructions of this step."""
        self._local -= 1
        return self._local

    # Operands

    def read(self, view: View, nbytes: int | None = None, row: float | None = None) -> None:
        """Note that the step needs a tensor in SBUF."""
        size = self.stored_bytes(view) if nbytes is None else nbytes
        self.unread.discard(view.slot)
        self.step.reads.append(StepOperand(view.slot, size, row or row_bytes(view), view.slot in self.turned))

    def stored_bytes(self, view: View) -> int:
        """Return the bytes of a tensor; what only products read is stored in the type that they run in."""
        nbytes = touched_bytes(view)
        if self.machine.matmul_dtype and view.dtype == "float32" and view.slot in self.factors:
            return nbytes * self.machine.cast_bytes // 4
        return nbytes

    def write(self, view: View, layout: PartitionLayout | None = None) -> None:
        """Note that the step makes a tensor, in a layout."""
        nbytes = self.stored_bytes(view)
        row = nbytes // self.costs.partitions if layout is PartitionLayout.CHANNEL else row_bytes(view)
        self.step.writes.append(StepOperand(view.slot, nbytes, max(1, row)))
        self.fill.pop(view.slot, None)
        self.unread.discard(view.slot)
        self.turned.discard(view.slot)
        if layout is None:
            self.layouts.pop(view.slot, None)
        else:
            self.layouts[view.slot] = frozenset({layout})
        self.in_psum.discard(view.slot)
        self.folded.discard(view.slot)

    def write_all(self, call: LoweredCall, layout: PartitionLayout | None = None, *, rank: int = 0) -> None:
        """Note all results of a call; those of fewer dimensions than `rank` may lie in any layout."""
        for view in call.results:
            self.write(view, layout if len(view.shape) >= rank else None)

    def read_all(self, call: LoweredCall) -> None:
        """Note all operands of a call."""
        for view in dict.fromkeys(call.operands):
            self.read(view)

    def layout_of(self, view: View) -> PartitionLayout | None:
        """Return the layout that a value has on the chip, None where any is possible."""
        known = self.layouts.get(view.slot)
        return min(known) if known else None

    def partition_elements(self, view: View, layout: PartitionLayout | None) -> int:
        """Return the elements of the fullest partition that holds a tensor."""
        total, parts = numel(view), self.costs.partitions
        if total == 0:
            return 0
        if layout is None or len(view.shape) < 2:
            return -(-total // parts)
        match layout:
            case PartitionLayout.ROW:
                across = total // view.shape[-1]
            case PartitionLayout.COLUMN:
                across = view.shape[-1]
            case PartitionLayout.CHANNEL:
                across = view.shape[1]
        used = -(-across // parts) * (total // across)
        fill = self.fill.get(view.slot, 1.0) if layout is PartitionLayout.ROW else 1.0
        return self._spread(total, used, fill)

    def _spread(self, total: int, elements: int, fill: float) -> int:
        """Return the elements of the fullest partition, where whole rows leave `elements` there and a value uses a share."""
        return max(elements, round(total / self.costs.partitions / fill))

    def fill_of(self, views: Sequence[View]) -> float:
        """Return the share of the partitions that the largest of some values use."""
        return min((self.fill.get(view.slot, 1.0) for view in views), default=1.0)

    def elements_of(self, call: LoweredCall, main: View, layout: PartitionLayout | None) -> int:
        """Return the elements of the fullest partition for a call that keeps the places of its operands."""
        elements = self.partition_elements(main, layout)
        if layout is PartitionLayout.ROW and main.slot not in self.fill:
            return self._spread(numel(main), elements, self.fill_of(call.operands))
        return elements

    def write_alike(self, call: LoweredCall, layout: PartitionLayout | None) -> None:
        """Note results that lie where the operands do."""
        fill = self.fill_of(call.operands)
        for view in call.results:
            self.write(view, layout)
            if fill < 1.0 and layout is PartitionLayout.ROW:
                self.fill[view.slot] = fill

    # Instructions

    def emit(
        self,
        engine: Engine,
        opcode: str,
        elements: float,
        factor: float,
        reads: tuple[int, ...],
        writes: tuple[int, ...],
        *,
        pieces: int = 0,
        flops: int = 0,
        may_use_scalar: bool = False,
        fixed_cycles: float | None = None,
    ) -> None:
        """Add instructions of the Vector, Scalar or GpSimd engine over elements of a partition.

        Args:
            engine: where they run; GpSimd becomes Vector on cores without it.
            opcode: their name.
            elements: elements of a partition.
            factor: cycles an element.
            reads: buffers that they read.
            writes: buffers that they write.
            pieces: independent parts; 0 for a stream that may be cut anywhere.
            flops: operations that the operator is credited with.
            may_use_scalar: whether the Scalar engine may do it too, at a cycle an element.
            fixed_cycles: cycles of an instruction besides its elements; None for those of an access.
        """
        if engine is Engine.GPSIMD and not self.machine.has_gpsimd:
            engine = Engine.VECTOR
        count = max(1, -(-int(elements) // self.costs.tile_elements), pieces)
        fixed = self.costs.access_cycles if fixed_cycles is None else fixed_cycles
        shortest, per_tile = self.costs.shortest_cycles, elements / count
        cycle_ns = self.machine.cycle_ns
        tile_ns = (max(shortest, per_tile * factor) + fixed) * cycle_ns[engine]
        scalar_ns = -1.0
        if may_use_scalar:
            scalar_ns = (max(shortest, per_tile) + fixed) * cycle_ns[Engine.SCALAR]
        pieces = pieces or STREAM_PIECES
        self.step.instructions.append(
            Instruction(engine, opcode, count, tile_ns, reads, writes, pieces, flops, scalar_ns)
        )

    def pass_on(self, reads: tuple[int, ...], writes: tuple[int, ...], flops: int) -> None:
        """Note that values become others without an instruction; the next one is credited with the operations."""
        self.step.instructions.append(Instruction(Engine.VECTOR, "", 0, 0.0, reads, writes, _MANY, flops))

    def tensor(
        self,
        opcode: str,
        count: int,
        cycles: float,
        reads: tuple[int, ...],
        writes: tuple[int, ...],
        *,
        elements: float,
        pieces: int,
        flops: int = 0,
    ) -> None:
        """Add `count` instructions of the Tensor engine that take `cycles` together and leave `elements` in PSUM."""
        turning, self._turning = self._turning, (0, 0.0, 0)
        cycle_ns = self.machine.cycle_ns[Engine.TENSOR]
        turning_ns = turning[1] * cycle_ns
        tiles = max(1, count) + turning[0]
        tile_ns = (cycles * cycle_ns + turning_ns) / tiles
        made = Instruction(Engine.TENSOR, opcode, tiles, tile_ns, reads, writes, max(1, pieces), flops)
        made.turning, made.turning_ns = turning[0], turning_ns
        made.psum_elements = elements + turning[2]
        self.step.instructions.append(made)
        if turning[2]:
            self.evict(turning[2], writes[0], self.local())

    def evict(self, elements: float, source: int, target: int) -> None:
        """Copy a result of the Tensor engine from PSUM to SBUF, on Vector or Scalar, whichever is free."""
        factor = self.machine.tensor_scalar_factor("float32", from_psum=True)
        self.emit(Engine.VECTOR, "COPY", elements, factor, (source,), (target,), may_use_scalar=True)

    def transpose_work(self, dtype: str, rows: int, columns: int, batch: int = 1) -> tuple[int, float, int]:
        """Return tiles, cycles and elements to copy from PSUM of the transposes of a batch of matrices."""
        parts, costs = self.costs.partitions, self.costs
        tiles = batch * -(-rows // parts) * -(-columns // parts)
        is_wide = item_bytes(dtype) > 2 and self.machine.matmul_dtype is None
        passes = costs.transpose_fp32_passes if is_wide else 1.0
        moving = min(rows, columns, parts)
        cycles = tiles * (max(costs.matmul_shortest_columns, moving) * passes + costs.matmul_init_cycles)
        return tiles, cycles, tiles * moving

    def transpose(self, dtype: str, rows: int, columns: int, *, batch: int = 1, share: float = 1.0) -> None:
        """Transpose a matrix in tiles of 128 x 128 on the Tensor engine, among the tiles of the next product."""
        tiles, cycles, moved = self.transpose_work(dtype, rows, columns, batch)
        count, spent, evicted = self._turning
        self._turning = count + tiles, spent + cycles * share, evicted + int(moved * share)

    def transpose_alone(self, view: View, source: int, target: int) -> None:
        """Transpose a tensor for its own sake."""
        columns = view.shape[-1]
        self.transpose(view.dtype, numel(view) // columns, columns)
        (count, cycles, evicted), self._turning = self._turning, (0, 0.0, 0)
        done = self.local()
        self.tensor("TRANSPOSE", count, cycles, (source,), (done,), elements=evicted, pieces=count)
        self.evict(evicted, done, target)

    def bring(self, view: View, layout: PartitionLayout, *, may_turn: bool = False) -> int:
        """Return the buffer of a tensor that a product needs in a layout, and transpose it where it lies otherwise."""
        known = self.layouts.get(view.slot)
        if known is not None and layout not in known and len(view.shape) >= 2 and numel(view):
            if may_turn and self._turns_on_the_way(view):
                self.turned.add(view.slot)
                self.layouts[view.slot] = frozenset({layout})
                return view.slot
            columns = view.shape[-1]
            self.transpose(view.dtype, numel(view) // columns, columns)
            self.layouts[view.slot] = known | {layout}
        return view.slot

    def _turns_on_the_way(self, view: View) -> bool:
        """Return whether DMA transposes an operand while it loads it, where that is faster (v3 and v4, 16 bits)."""
        if not self.costs.hardware_dge_ns or view.slot not in self.unread or item_bytes(view.dtype) != 2:
            return False
        columns, parts = view.shape[-1], self.costs.partitions
        rows = numel(view) // columns
        if min(rows, columns) < parts:
            return False  # less than a tile
        stored = self.stored_bytes(view), row_bytes(view)
        added_ns = dma.transposed_ns(self.machine, *stored) - dma.transfer_ns(self.machine, *stored)
        cycles = self.transpose_work(view.dtype, rows, columns)[1]
        return added_ns < cycles * self.machine.cycle_ns[Engine.TENSOR]
