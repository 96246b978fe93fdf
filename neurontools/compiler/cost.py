"""The modelled schedule of a graph on a NeuronCore: engine, start, duration, FLOPs and bytes of every instruction.

Nothing here is measured. An operator is one instruction whose duration is the longer of its arithmetic at the engine's
rate and its bytes at the core's share of HBM bandwidth, plus a fixed issue time. Instructions of one engine run in
program order; an instruction waits for those that wrote what it reads and for readers of what it overwrites.
docs/explanation/cost-model.md explains the numbers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from neurontools import gpsimd
from neurontools.compiler.engines import (
    COLLECTIVE_OPCODE,
    CUSTOM_OPCODE,
    Engine,
    Placement,
    has_instruction,
    place,
)
from neurontools.compiler.graph import reads
from neurontools.compiler.work import PARTITIONS, elements, flops, products, read_bytes, write_bytes, written
from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from neurontools.compiler.graph import Graph, Node, View
    from neurontools.machine.instances.catalogue import CoreVersion, DeviceType

__all__ = ["MAX_NS", "CostError", "Engine", "GraphCost", "OpCost", "estimate"]

SCHEMA = 1
ISSUE_CYCLES = 64
DMA_ISSUE_NS = 1_000
COLLECTIVE_ISSUE_NS = 15_000
MAX_NS = 3_600 * 10**9
"""The longest execution that a stored schedule may have."""

_SHOWN_OPERANDS = 3
_MAX_WORK = 2**62  # FLOPs or bytes; profiles store 64-bit integers


class CostError(NeuronToolsError):
    """Stored bytes are not a cost model of this schema."""


@dataclass(frozen=True, slots=True)
class OpCost:
    """One instruction. Times are modelled nanoseconds; `start_ns` counts from the start of the execution."""

    name: str
    opcode: str
    engine: Engine
    start_ns: int
    duration_ns: int
    flops: int
    read_bytes: int
    write_bytes: int
    shape: str
    source: str


_values = attrgetter(*(item.name for item in fields(OpCost)))


@dataclass(frozen=True, slots=True)
class GraphCost:
    """A schedule, modelled. `ops` are in program order; `gpsimd_ns` is the time of custom operators alone."""

    ops: tuple[OpCost, ...]
    total_ns: int
    flops: int
    gpsimd_ns: int

    def engine_busy_ns(self, engine: Engine) -> int:
        """Return how long an engine is busy in one execution; instructions of one engine never overlap."""
        return sum(op.duration_ns for op in self.ops if op.engine is engine)

    @property
    def matmul_flops(self) -> int:
        """FLOPs of the matmul family alone, what MFU counts."""
        return sum(op.flops for op in self.ops if op.engine is Engine.TENSOR)

    def to_bytes(self) -> bytes:
        """Return the stored form: JSON, the same for equal schedules."""
        stored = {"schema": SCHEMA, "total_ns": self.total_ns, "ops": [_values(op) for op in self.ops]}
        return json.dumps(stored, separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> GraphCost:
        """Return the schedule that `to_bytes` stored.

        Raises:
            CostError: the bytes are damaged or of another schema.
        """
        try:
            stored = json.loads(data)
            if stored["schema"] != SCHEMA:
                raise CostError(
                    f"cost model schema {stored['schema']} is not supported (supported: {SCHEMA})"
                )
            return _check(_total(tuple(map(parse_operation, stored["ops"])), int(stored["total_ns"])))
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise CostError(f"not a cost model: {type(error).__name__}: {error}") from error


def estimate(
    graph: Graph,
    device: DeviceType,
    *,
    lnc: int | None = None,
    matmul_dtype: str | None = None,
    custom_ns: Mapping[int, int] | None = None,
) -> GraphCost:
    """Return the modelled schedule of a graph on one logical core of a device.

    Args:
        graph: what to run.
        device: whose rates apply.
        lnc: physical cores of a logical core; None for the device's default. Work is spread over them evenly.
        matmul_dtype: what float32 matrix products are cast to (`--auto-cast`), None for no cast.
        custom_ns: what calls of custom operators take, in ns, by their positions in the graph; for others the bytes
            that they touch decide.
    """
    rates = _Rates(device, device.lnc_default if lnc is None else lnc, matmul_dtype)
    schedule = _Schedule()
    for position, node in enumerate(graph.nodes):
        if has_instruction(node):
            placement = place(node, has_gpsimd=device.core.gpsimd_processors > 0)
            schedule.add(node, placement, rates, (custom_ns or {}).get(position))
    return _total(tuple(schedule.ops), schedule.end_ns)


class _Rates:
    """Rates of one logical core."""

    def __init__(self, device: DeviceType, lnc: int, matmul_dtype: str | None) -> None:
        share = lnc / device.physical_cores
        self.device = device
        self.core: CoreVersion = device.core
        self.lnc = lnc
        self.matmul_dtype = matmul_dtype
        self.hbm_bytes_s = device.memory_bandwidth_bytes_s * share
        self.dma_bytes_s = device.dma_bandwidth_bytes_s * share

    def duration_ns(
        self, node: Node, placement: Placement, moved: tuple[int, int], custom_ns: int | None
    ) -> int:
        """Return how long an instruction takes; `moved` are the bytes read and written."""
        total = sum(moved)
        memory_ns = total / self.hbm_bytes_s * 1e9
        if placement.opcode == CUSTOM_OPCODE:
            unknown_ns = gpsimd.rates().launch_ns + gpsimd.rates().transfer_ns(total)
            return round(unknown_ns) if custom_ns is None else custom_ns
        if placement.opcode == COLLECTIVE_OPCODE:
            from neurontools.compiler.collective_cost import (
                collective_ns,
            )  # plans of algorithms are rarely needed

            modelled_ns = collective_ns(node, self.device, self.lnc)
            if modelled_ns is not None:
                return modelled_ns
        if placement.engine is Engine.DMA:
            issue = COLLECTIVE_ISSUE_NS if placement.opcode == COLLECTIVE_OPCODE else DMA_ISSUE_NS
            return issue + round(max(memory_ns, max(moved) / self.dma_bytes_s * 1e9))
        issue_ns = ISSUE_CYCLES / self.core.engine_clock_hz(placement.engine) * 1e9
        return round(issue_ns + max(memory_ns, self._compute_ns(node, placement.engine)))

    def _compute_ns(self, node: Node, engine: Engine) -> float:
        if engine is Engine.TENSOR:
            spent = sum(product.padded_flops for product in products(node))
            return spent / (self.core.tensor_flops_s(self._tensor_dtype(node)) * self.lnc) * 1e9
        clock_hz = self.core.engine_clock_hz(engine) * self.lnc
        if engine is Engine.GPSIMD:
            return elements(node) / (self.core.gpsimd_processors * clock_hz) * 1e9
        return flops(node) / (PARTITIONS * clock_hz) * 1e9

    def _tensor_dtype(self, node: Node) -> str:
        dtype = next((view.dtype for view in reads(node)), "float32")
        return self.matmul_dtype if self.matmul_dtype and dtype == "float32" else dtype


class _Schedule:
    """List scheduling in program order: one queue an engine, dependencies through slots."""

    def __init__(self) -> None:
        self.ops: list[OpCost] = []
        self.end_ns = 0
        self._engine_free: dict[Engine, int] = {}
        self._written: dict[int, int] = {}
        self._used: dict[int, int] = {}

    def add(self, node: Node, placement: Placement, rates: _Rates, custom_ns: int | None) -> None:
        sources = {view.slot for view in reads(node)}
        targets = {view.slot for view in written(node)}
        ready = [self._engine_free.get(placement.engine, 0)]
        ready += [self._written.get(slot, 0) for slot in sources]
        ready += [self._used.get(slot, 0) for slot in targets]
        start = max(ready)
        moved = read_bytes(node), write_bytes(node)
        duration = rates.duration_ns(node, placement, moved, custom_ns)
        end = start + duration
        self._engine_free[placement.engine] = end
        self.end_ns = max(self.end_ns, end)
        for slot in targets:
            self._written[slot] = end
        for slot in sources | targets:
            self._used[slot] = max(self._used.get(slot, 0), end)
        self.ops.append(
            OpCost(
                name=node.op,
                opcode=placement.opcode,
                engine=placement.engine,
                start_ns=start,
                duration_ns=duration,
                flops=flops(node),
                read_bytes=moved[0],
                write_bytes=moved[1],
                shape=_shapes(node),
                source=node.source,
            )
        )


def _total(ops: tuple[OpCost, ...], total_ns: int) -> GraphCost:
    return GraphCost(
        ops=ops,
        total_ns=total_ns,
        flops=sum(op.flops for op in ops),
        gpsimd_ns=sum(op.duration_ns for op in ops if op.opcode == CUSTOM_OPCODE),
    )


def _check(cost: GraphCost) -> GraphCost:
    if not 0 <= cost.total_ns <= MAX_NS or cost.flops > _MAX_WORK:
        raise ValueError("a total is out of range")
    return cost


def parse_operation(row: Any) -> OpCost:
    """Return the operation of a stored row: the fields of `OpCost` in order.

    Raises:
        ValueError, TypeError, OverflowError: it has other fields, an unknown engine, or a number out of range.
    """
    name, opcode, engine, *numbers, shape, source = row
    start, duration, count, read, write = (int(number) for number in numbers)
    if min(start, duration, count, read, write) < 0 or start + duration > MAX_NS:
        raise ValueError("a number of an operation is out of range")
    if max(count, read, write) > _MAX_WORK:
        raise ValueError("a number of an operation is out of range")
    return OpCost(
        str(name), str(opcode), Engine(engine), start, duration, count, read, write, str(shape), str(source)
    )


def _shapes(node: Node) -> str:
    operands = _listed(reads(node))
    results = _listed(written(node))
    return f"{operands} -> {results}" if operands else results


def _listed(found: Sequence[View]) -> str:
    shown = [f"{view.dtype}[{','.join(map(str, view.shape))}]" for view in found[:_SHOWN_OPERANDS]]
    if len(found) > _SHOWN_OPERANDS:
        shown.append(f"+{len(found) - _SHOWN_OPERANDS}")
    return ", ".join(shown)
