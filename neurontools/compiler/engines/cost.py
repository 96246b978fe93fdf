"""The modelled schedule of a graph on a NeuronCore: engine, start, duration, FLOPs and bytes of every group of tiles.

Nothing here is measured. docs/explanation/cost-model.md explains the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from neurontools.compiler.engines.placement import CUSTOM_OPCODE, Engine
from neurontools.compiler.engines.storage import (
    MAX_NS,
    MAX_WORK,
    CostError,
    CostRow,
    checked,
    dump_schedule,
    load_schedule,
)
from neurontools.compiler.graph import reads
from neurontools.compiler.work import written

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.compiler.graph import Graph, Node, View

__all__ = ["MAX_NS", "MAX_WORK", "CostError", "CostRow", "Engine", "GraphCost", "OpCost"]

_SHOWN_OPERANDS = 3
_TOTALS = ("total_ns", "sbuf_peak_bytes", "spill_save_bytes", "spill_reload_bytes")


class OpCost(msgspec.Struct, frozen=True, gc=False):
    """A group of equal tiles of one operator on one engine.

    Times are modelled nanoseconds; `start_ns` counts from the start of the execution. The engine works for `busy_ns`
    of `duration_ns`; between tiles it may wait for others. Bytes are those that a transfer moves from and to HBM.
    `operator` is the position in the graph, `layer` the path of the module, see `compiler.graph.Node`.
    """

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
    busy_ns: int = 0
    count: int = 1
    operator: int = 0
    layer: str = ""


@dataclass(frozen=True)
class GraphCost:
    """A schedule, modelled.

    Args:
        rows: groups of tiles in the order of the program, see `CostRow`.
        total_ns: the time of an execution.
        unknown: operators that a fallback describes, by position.
        fallback: version of the core whose constants are used where the device has none of its own; empty otherwise.
        sbuf_peak_bytes: most bytes in SBUF at once.
        spill_save_bytes: bytes that did not fit SBUF and were written to HBM.
        spill_reload_bytes: bytes read back.
        graph: where names, shapes and source lines of `ops` come from.
    """

    rows: tuple[CostRow, ...]
    total_ns: int
    unknown: tuple[int, ...] = ()
    fallback: str = ""
    sbuf_peak_bytes: int = 0
    spill_save_bytes: int = 0
    spill_reload_bytes: int = 0
    graph: Graph | None = field(default=None, repr=False, compare=False)

    @cached_property
    def ops(self) -> tuple[OpCost, ...]:
        """The groups with names, shapes and source lines."""
        assert self.graph is not None
        nodes, shapes, found = self.graph.nodes, {}, []
        for operator, opcode, engine, start, duration, busy, count, flops, read, write, source in self.rows:
            node = nodes[operator]
            if operator not in shapes:
                shapes[operator] = _shapes(node)
            work = start, duration, flops, read, write
            origin = source or node.source, busy, count, operator, node.layer
            found.append(OpCost(node.op, opcode, engine, *work, shapes[operator], *origin))
        return tuple(found)

    @cached_property
    def flops(self) -> int:
        """Floating-point operations of all operators."""
        return sum(row.flops for row in self.rows)

    @cached_property
    def gpsimd_ns(self) -> int:
        """Time of custom operators alone."""
        return sum(row.busy_ns for row in self.rows if row.opcode == CUSTOM_OPCODE)

    def engine_busy_ns(self, engine: Engine) -> int:
        """Return how long an engine works in one execution."""
        return sum(row.busy_ns for row in self.rows if row.engine is engine)

    @cached_property
    def matmul_flops(self) -> int:
        """FLOPs of the matmul family alone, what MFU counts."""
        return sum(row.flops for row in self.rows if row.engine is Engine.TENSOR)

    def to_bytes(self) -> bytes:
        """Return the stored form, the same for equal schedules; the graph is stored beside it."""
        head = {name: getattr(self, name) for name in _TOTALS}
        return dump_schedule(head | {"fallback": self.fallback, "unknown": self.unknown}, self.rows)

    @classmethod
    def from_bytes(cls, data: bytes, graph: Graph) -> GraphCost:
        """Return the schedule of a graph that `to_bytes` stored.

        Raises:
            CostError: the bytes are damaged, of another schema, or belong to another graph.
        """
        try:
            head, rows = load_schedule(data, len(graph.nodes))
            found = cls(
                rows,
                checked(head["total_ns"], MAX_NS),
                tuple(checked(operator, len(graph.nodes) - 1) for operator in head["unknown"]),
                str(head["fallback"]),
                **{name: checked(head[name], MAX_WORK) for name in _TOTALS[1:]},
                graph=graph,
            )
            checked(found.flops, MAX_WORK)
        except (KeyError, TypeError, ValueError, IndexError, OverflowError, AttributeError) as error:
            raise CostError(f"not a cost model: {type(error).__name__}: {error}") from error
        return found


def _shapes(node: Node) -> str:
    operands = _listed(reads(node))
    results = _listed(written(node))
    return f"{operands} -> {results}" if operands else results


def _listed(found: Sequence[View]) -> str:
    shown = [f"{view.dtype}[{','.join(map(str, view.shape))}]" for view in found[:_SHOWN_OPERANDS]]
    if len(found) > _SHOWN_OPERANDS:
        shown.append(f"+{len(found) - _SHOWN_OPERANDS}")
    return ", ".join(shown)
