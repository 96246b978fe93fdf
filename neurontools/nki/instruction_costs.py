"""What instructions of a kernel cost: which engine runs them, and for how long.

Sources: the constants of `fixtures/engines/costs.yaml`, each with its document. N is the number of elements of a
partition. Cycles are those until the engine starts its next instruction; that results arrive later counts between
engines alone (`kernel_semaphore_ns`).
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

from neurontools.compiler.engines import dma
from neurontools.compiler.engines.dma import INDIRECT_OPCODE, PLAIN_OPCODE, TRANSPOSE_OPCODE
from neurontools.compiler.engines.placement import Engine
from neurontools.nki.dtypes import FLOATS, item_bytes
from neurontools.nki.memory import ON_CHIP, MemoryRegion

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.compiler.engines.modelled_core import ModelledCore
    from neurontools.nki.context import ElementAccess, Record

_SIXTEEN_BITS = frozenset({"bfloat16", "float16", "int16", "uint16"})
_SCALAR_GENERATION = 3
_REDUCED_FAST = frozenset({"add", "maximum"})
_UNCOSTED = frozenset({"digest", "priority"})
_TRANSPOSED_TOGETHER = 16
_PSUM = MemoryRegion.psum


class InstructionCost(NamedTuple):
    """What an instruction costs.

    Args:
        engine: runs it.
        time_ns: how long.
        scalar_ns: how long on the Scalar engine, where it may run there too; negative where it may not.
        opcode: name in a profile.
        could_ns: how long on the Scalar engine, where the kernel could have it run there; negative where it could not.
        partitions: of the chip that it works on, of products those of the contraction.
    """

    engine: Engine
    time_ns: float
    scalar_ns: float = -1.0
    opcode: str = ""
    could_ns: float = -1.0
    partitions: int = 0


class TransferCost(NamedTuple):
    """A transfer by the DMA engines.

    Args:
        opcode: name in a profile.
        time_ns: how long the DMA engines together are busy.
        nbytes: bytes that it moves.
        row_bytes: contiguous bytes of a descriptor.
        descriptors: the engine that makes the descriptors, None if the compiler does.
        making_ns: how long that takes.
        partitions: of the chip that it reads or writes.
    """

    opcode: str
    time_ns: float
    nbytes: int
    row_bytes: int
    descriptors: Engine | None
    making_ns: float
    partitions: int = 0


class InstructionCosts:
    """The costs of instructions on a core.

    Args:
        machine: the core.
        generation: number of its generation.
    """

    def __init__(self, machine: ModelledCore, generation: int) -> None:
        self.machine = machine
        self.costs = machine.costs
        self.generation = generation
        self._cycle_ns = machine.cycle_ns
        self._costs: dict[tuple[object, ...], InstructionCost] = {}
        self._transfers: dict[tuple[object, ...], TransferCost] = {}

    # ---- engines

    def cost(self, record: Record) -> InstructionCost:
        """Return the cost of an instruction of an engine; see `transfer` for those of the DMA engines."""
        key = _key(record)
        cost = self._costs.get(key)
        if cost is None:
            rule = _RULES.get(record.opcode, _vector)
            cost = self._costs[key] = rule(self, record)._replace(partitions=_partitions(record))
        return cost

    def _made(self, engine: Engine, record: Record, cycles: float, fixed: float = 0.0) -> InstructionCost:
        """Return the cost of an instruction of a number of cycles, at least the shortest, and fixed ones besides."""
        costs = self.costs
        if any(item.is_dynamic for item in (*record.reads, *record.writes)):
            cycles = max(cycles, costs.dynamic_cycles)
        cycles = max(cycles, costs.shortest_cycles) * self._stride_factor(record)
        spent = (cycles + fixed) * self._cycle_ns[engine]
        return InstructionCost(engine, spent, opcode=record.opcode.upper())

    def _stride_factor(self, record: Record) -> float:
        """Return how much slower an instruction is because elements of a large operand lie far apart."""
        for item in (*record.reads, *record.writes):
            stride = next(
                (step for size, step in zip(item.shape[:0:-1], item.strides[:0:-1], strict=True) if size > 1),
                1,
            )
            if stride * item_bytes(item.dtype) > self.costs.fast_stride_bytes:
                return self.costs.strided
        return 1.0

    # ---- transfers

    def transfer(self, record: Record) -> TransferCost:
        """Return what a transfer costs."""
        key = _key(record)
        transfer = self._transfers.get(key)
        if transfer is None:
            transfer = self._transfers[key] = self._transfer(record)._replace(partitions=_partitions(record))
        return transfer

    def _transfer(self, record: Record) -> TransferCost:
        machine = self.machine
        target = record.writes[0]
        sides = (*record.reads[:1], target)
        item = max(item_bytes(side.dtype) for side in sides)
        nbytes = prod(target.shape) * item
        row = min(row_elements(side) for side in sides) * item
        mode, making_ns = self._descriptors(record)
        if record.opcode == "dma_transpose":
            # The engines write blocks of 16 elements together, so that rows do not decide (arch-v3, "DMA Transpose").
            row = (
                nbytes
                if target.shape[-1] % _TRANSPOSED_TOGETHER == 0
                else row_elements(record.reads[0]) * item
            )
            from_hbm = record.reads[0].allocation.region not in ON_CHIP
            time_ns = dma.transposed_ns(machine, nbytes, row, from_hbm=from_hbm)
            return TransferCost(TRANSPOSE_OPCODE, time_ns, nbytes, row, mode, making_ns)
        time_ns = dma.transfer_ns(machine, nbytes, row)
        opcode = PLAIN_OPCODE
        if mode is Engine.GPSIMD and any(item.is_gather for item in (*record.reads, target)):
            opcode = INDIRECT_OPCODE
        if record.options.get("accumulates"):
            sources = sum(prod(side.shape) >= prod(target.shape) for side in record.reads)
            time_ns *= max(1, sources) / self.costs.dma_accumulate_share
        return TransferCost(opcode, time_ns, nbytes, row, mode, making_ns)

    def _descriptors(self, record: Record) -> tuple[Engine | None, float]:
        """Return who makes the descriptors of a transfer, and how long that takes."""
        mode = record.options.get("dge", "")
        accesses = (*record.reads, *record.writes)
        dynamic = any(item.is_dynamic for item in accesses)
        if mode == "swdge" or (dynamic and mode != "hwdge" and self._needs_software(accesses)):
            return Engine.GPSIMD, self.costs.software_dge_ns
        if mode == "hwdge" or dynamic:
            scalar = record.options.get("queue") == "scalar"
            return Engine.SCALAR if scalar else Engine.SYNC, self.costs.hardware_dge_ns
        return None, 0.0

    def _needs_software(self, accesses: tuple[ElementAccess, ...]) -> bool:
        return self.generation < _SCALAR_GENERATION or any(item.is_gather for item in accesses)


def _key(record: Record) -> tuple[object, ...]:
    """Return what the cost of an instruction depends on."""
    options = record.options
    key: list[object] = [record.opcode, record.engine]
    if options:
        key += [options[name] for name in options if name not in _UNCOSTED]
    for accesses in (record.reads, record.writes):
        key.append(None)
        for access in accesses:
            pattern = access.pattern
            if pattern is None or access.has_register:
                key.append((access.allocation.region, *access[2:5], access.is_dynamic, access.is_gather))
            else:
                key.append(pattern.kind)
    return tuple(key)


def _partitions(record: Record) -> int:
    accesses = (*record.reads[:1], *record.writes[:1], *record.reads[1:])
    return next((each.shape[0] for each in accesses if each.allocation.region in ON_CHIP), 0)


def row_elements(access: ElementAccess) -> int:
    """Return the elements that follow each other in an access; on the chip those of a partition at most."""
    first = 1 if access.allocation.region in ON_CHIP else 0
    run = 1
    for size, stride in zip(reversed(access.shape[first:]), reversed(access.strides[first:]), strict=True):
        if size == 1:
            continue
        if stride != run:
            break
        run *= size
    return run


def _elements(record: Record) -> int:
    """Return the elements of a partition of the largest operand."""
    return max((prod(item.shape[1:]) for item in (*record.reads, *record.writes)), default=1)


def _all_16bit(record: Record) -> bool:
    return all(
        item.dtype in _SIXTEEN_BITS for item in (*record.reads, *record.writes) if prod(item.shape[1:]) > 1
    )


def _in_psum(record: Record) -> bool:
    return any(item.allocation.region is _PSUM for item in (*record.reads, *record.writes))


# ---- rules by opcode


def _vector(costs: InstructionCosts, record: Record) -> InstructionCost:
    """Return the cost of an instruction without a rule of its own: N cycles."""
    match record.engine:
        case "gpsimd":
            return _gpsimd(costs, record)
        case "scalar":
            return _activation(costs, record)
        case "sync":
            return InstructionCost(
                Engine.SYNC,
                costs.costs.register_cycles * costs.machine.cycle_ns[Engine.SCALAR],
                opcode=record.opcode.upper(),
            )
    return costs._made(Engine.VECTOR, record, _elements(record))  # noqa: SLF001


def _factor(
    choose: Callable[[InstructionCosts, Record], float],
) -> Callable[[InstructionCosts, Record], InstructionCost]:
    """Return the rule of an instruction of the Vector engine whose cycles an element depend on its operands."""

    def rule(costs: InstructionCosts, record: Record) -> InstructionCost:
        return costs._made(Engine.VECTOR, record, _elements(record) * choose(costs, record))  # noqa: SLF001

    return rule


def _on_gpsimd(costs: InstructionCosts, made: InstructionCost) -> InstructionCost:
    """Return the cost on GpSimd of an instruction of the Vector engine."""
    return made._replace(engine=Engine.GPSIMD, time_ns=made.time_ns * costs.costs.gpsimd_slowdown)


def _one_tensor(costs: InstructionCosts, record: Record) -> InstructionCost:
    if record.engine == "scalar":
        return _activation(costs, record)
    dtype = "bfloat16" if _all_16bit(record) else "float32"
    factor = costs.machine.tensor_scalar_factor(dtype, from_psum=_in_psum(record))
    made = costs._made(Engine.VECTOR, record, _elements(record) * factor)  # noqa: SLF001
    if record.engine == "gpsimd":
        return _on_gpsimd(costs, made)
    if costs.generation < _SCALAR_GENERATION:
        return made
    scalar_ns = _activation(costs, record).time_ns
    if record.opcode == "tensor_copy" and not record.engine:
        return made._replace(scalar_ns=scalar_ns)
    # The Scalar engine computes in float32, so that integers may change.
    is_float = all(item.dtype in FLOATS for item in (*record.reads, *record.writes))
    fits = record.opcode == "tensor_copy" or record.options.get("fits_scalar", False)
    return made._replace(could_ns=scalar_ns) if fits and is_float else made


def _two_tensors(costs: InstructionCosts, record: Record) -> InstructionCost:
    dtype = "bfloat16" if _all_16bit(record) else "float32"
    factor = costs.machine.tensor_tensor_factor(dtype, from_psum=_in_psum(record))
    made = costs._made(Engine.VECTOR, record, _elements(record) * factor)  # noqa: SLF001
    return _on_gpsimd(costs, made) if record.engine == "gpsimd" else made


def _memset(costs: InstructionCosts, record: Record) -> InstructionCost:
    factor = costs.costs.memset_16bit if _all_16bit(record) else 1.0
    engine = Engine.GPSIMD if record.engine == "gpsimd" else Engine.VECTOR
    return costs._made(engine, record, _elements(record) * factor)  # noqa: SLF001


def _activation(costs: InstructionCosts, record: Record) -> InstructionCost:
    dtype = "bfloat16" if _all_16bit(record) else "float32"
    cycles = _elements(record) * costs.machine.activation_factor(dtype)
    made = costs._made(Engine.SCALAR, record, cycles)  # noqa: SLF001
    if record.options.get("reduces"):
        extra = costs.costs.activation_reduce_cycles * costs.machine.cycle_ns[Engine.SCALAR]
        made = made._replace(time_ns=made.time_ns + extra)
    return made


def _gpsimd(costs: InstructionCosts, record: Record) -> InstructionCost:
    return costs._made(Engine.GPSIMD, record, _elements(record), costs.costs.gpsimd_fixed_cycles)  # noqa: SLF001


def _local_gather(costs: InstructionCosts, record: Record) -> InstructionCost:
    width = record.options["width"]
    speed = (28 + 4 * width) / (4 * width) / min(4 / item_bytes(record.reads[0].dtype), width)
    cycles = record.options["indices"] * width / speed
    return costs._made(Engine.GPSIMD, record, cycles, costs.costs.gpsimd_fixed_cycles)  # noqa: SLF001


def _topk(costs: InstructionCosts, record: Record) -> InstructionCost:
    cycles = 4 * record.options["n"] + record.options["k"]
    return costs._made(Engine.GPSIMD, record, cycles)  # noqa: SLF001


def _reduced(costs: InstructionCosts, record: Record) -> InstructionCost:
    fast = _all_16bit(record) and record.options.get("op") in _REDUCED_FAST
    factor = costs.costs.tensor_reduce_16bit if fast else 1.0
    return costs._made(Engine.VECTOR, record, _elements(record) * factor)  # noqa: SLF001


def _with_registers(costs: InstructionCosts, record: Record) -> InstructionCost:
    cycles = max(_elements(record), costs.costs.shortest_cycles) + costs.costs.reduce_register_cycles
    return costs._made(Engine.VECTOR, record, cycles)  # noqa: SLF001


def _matmul(costs: InstructionCosts, record: Record) -> InstructionCost:
    """Return the cost of loading the stationary matrix and of the product."""
    if record.engine == "vector":
        return costs._made(Engine.VECTOR, record, _elements(record))  # noqa: SLF001
    constants = costs.costs
    stationary = record.reads[0]
    item = stationary.dtype
    if record.options.get("transposes"):
        rows, columns = stationary.shape[0], prod(stationary.shape[1:])
        passes = constants.transpose_fp32_passes if item_bytes(item) == 4 else 1.0
        cycles = max(rows, min(constants.matmul_shortest_columns, columns)) * passes
    else:
        columns = min(prod(stationary.shape[1:]), constants.matmul_stationary_columns)
        moving = record.options.get("columns") or prod(record.writes[0].shape[1:])
        wide = item in {"float32", "tfloat32"}
        passes = costs.machine.matmul_passes("float32") if item == "float32" else 1.0
        cycles = max(min(constants.matmul_shortest_columns, columns), moving) * (passes if wide else 1.0)
    cycles += constants.load_stationary_cycles * columns / constants.matmul_stationary_columns
    name = "TRANSPOSE" if record.options.get("transposes") else "MATMUL"
    return InstructionCost(Engine.TENSOR, cycles * costs.machine.cycle_ns[Engine.TENSOR], opcode=name)


def _scalar_tensor_tensor(costs: InstructionCosts, record: Record) -> float:
    fast = _all_16bit(record) and {record.options.get("op"), record.options.get("op1")} <= {
        "subtract",
        "multiply",
    }
    return costs.costs.scalar_tensor_tensor_16bit if fast else costs.costs.scalar_tensor_tensor


_RULES: dict[str, Callable[[InstructionCosts, Record], InstructionCost]] = {
    "tensor_copy": _one_tensor,
    "tensor_scalar": _one_tensor,
    "tensor_tensor": _two_tensors,
    "memset": _memset,
    "activation": _activation,
    "activate2": _activation,
    "iota": _gpsimd,
    "affine_select": _gpsimd,
    "local_gather": _local_gather,
    "topk": _topk,
    "tensor_reduce": _reduced,
    "tensor_scalar_reduce": _with_registers,
    "select_reduce": _with_registers,
    "nc_matmul": _matmul,
    "nc_matmul_mx": _matmul,
    "nc_transpose": _matmul,
    "partition_broadcast": _matmul,
    "tensor_tensor_scan": _factor(lambda costs, _: costs.costs.scan),
    "tensor_scalar_cumulative": _factor(lambda costs, _: costs.costs.scan),
    "scalar_tensor_tensor": _factor(_scalar_tensor_tensor),
    "exponential": _factor(lambda costs, _: costs.costs.exponential_vector),
    "reciprocal": _factor(lambda costs, _: costs.costs.reciprocal_vector),
    "bn_aggr": _factor(lambda costs, _: costs.costs.bn_aggr),
    "tensor_copy_predicated": _factor(
        lambda costs, record: (
            costs.costs.predicated_copy_psum if _in_psum(record) else costs.costs.predicated_copy
        )
    ),
}
