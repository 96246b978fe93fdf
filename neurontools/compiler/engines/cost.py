"""The modelled schedule of a graph on a NeuronCore, its stored form, and the published metrics of one execution.

Nothing here is measured. docs/explanation/cost-model.md explains the numbers. The stored form is a line of JSON, then one
column after the other as little-endian 64-bit numbers; starts and operators are differences to the row before, so that
equal layers of a model compress to little. The metrics (AWS Neuron documentation, neuron-profile user guide) follow from
the rows of the schedule and the peaks of the core; engines that wait between tiles are not active.
"""

from __future__ import annotations

import json
import sys
from array import array
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, repeat
from operator import add, gt
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from neurontools.base.json_reader import load_json
from neurontools.compiler.engines.dma import RELOAD_OPCODE, SPILL_OPCODE
from neurontools.compiler.engines.placement import CUSTOM_OPCODE, Engine
from neurontools.compiler.graph import Graph, Node, View, reads
from neurontools.compiler.work import written
from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from neurontools.machine.instances.catalogue import DeviceType


SCHEMA = 2

MAX_NS = 3_600 * 10**9
"""The longest execution that a stored schedule may have."""

MAX_WORK = 2**62
"""FLOPs or bytes of a row at most; profiles store 64-bit integers."""

_COLUMNS = 9
_DELTAS = (0, 2)  # the columns of operators and starts


class CostError(NeuronToolsError):
    """Stored bytes are not a cost model of this schema."""


class CostRow(NamedTuple):
    """A group of equal tiles as it is stored; times in ns, `operator` is a position in the graph.

    `source` is the kernel's source line; if it is "", the row has the source line of its operator.
    """

    operator: int
    opcode: str
    engine: Engine
    start_ns: int
    duration_ns: int
    busy_ns: int
    tiles: int
    flops: int
    read_bytes: int
    write_bytes: int
    source: str = ""


def dump_schedule(head: dict[str, Any], rows: Sequence[CostRow]) -> bytes:
    """Return the bytes of a schedule: of other values, which are JSON, and of rows."""
    kinds: dict[tuple[str, ...], int] = {}
    columns: list[list[int]] = [[] for _ in range(_COLUMNS)]
    for operator, opcode, engine, *numbers, source in rows:
        kind = (engine.value, opcode, source) if source else (engine.value, opcode)
        columns[0].append(operator)
        columns[1].append(kinds.setdefault(kind, len(kinds)))
        for column, number in zip(columns[2:], numbers, strict=True):
            column.append(number)
    for number in _DELTAS:
        column = columns[number]
        columns[number] = [now - before for now, before in zip(column, [0, *column], strict=False)]
    stored = head | {"schema": SCHEMA, "rows": len(rows), "kinds": list(kinds)}
    line = json.dumps(stored, separators=(",", ":"), sort_keys=True).encode() + b"\n"
    return line + b"".join(_pack(column) for column in columns)


def load_schedule(data: bytes, operators: int) -> tuple[dict[str, Any], tuple[CostRow, ...]]:
    """Return the other values and the rows that `dump_schedule` stored.

    Args:
        data: the bytes.
        operators: number of operators of the graph.

    Raises:
        CostError: they are of another schema.
        KeyError, TypeError, ValueError, IndexError, OverflowError, AttributeError: they are damaged, or a number is
            out of range.
    """
    line, _, body = data.partition(b"\n")
    head: dict[str, Any] = load_json(line)
    if head["schema"] != SCHEMA:
        raise CostError(f"cost model schema {head['schema']} is not supported (supported: {SCHEMA})")
    count = checked(head["rows"], len(body))
    if len(body) != count * 8 * _COLUMNS:
        raise ValueError("it has another size")
    if not count:
        return head, ()
    columns = [_unpack(body[start : start + count * 8]) for start in range(0, len(body), count * 8)]
    kinds = [(Engine(engine), str(opcode), "".join(source)) for engine, opcode, *source in head["kinds"]]
    return head, _rows(columns, kinds, operators)


def checked(value: object, limit: int) -> int:
    """Return a stored number between 0 and a limit.

    Raises:
        ValueError: it is not an integer in that range.
    """
    if type(value) is not int or not 0 <= value <= limit:
        raise ValueError(f"a total is out of range: {value!r}")
    return value


def _rows(
    columns: Sequence[array[int]], kinds: Sequence[tuple[Engine, str, str]], limit: int
) -> tuple[CostRow, ...]:
    operators, starts = list(accumulate(columns[0])), list(accumulate(columns[2]))
    named, durations, busy, *work = columns[1], *columns[3:]
    smallest = min(map(min, (operators, starts, named, *columns[3:])))
    if smallest < 0 or max(operators) >= limit or max(map(add, starts, durations)) > MAX_NS:
        raise ValueError("a number of an operation is out of range")
    if any(max(column) > MAX_WORK for column in work) or any(map(gt, busy, durations)):
        raise ValueError("a number of an operation is out of range")
    engines, opcodes, sources = (map([kind[at] for kind in kinds].__getitem__, named) for at in range(3))
    rows = zip(operators, opcodes, engines, starts, durations, busy, *work, sources, strict=True)
    return tuple(map(tuple.__new__, repeat(CostRow), rows))


def _pack(column: Iterable[int]) -> bytes:
    packed = array("q", column)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _unpack(data: bytes) -> array[int]:
    found = array("q")
    found.frombytes(data)
    if sys.byteorder == "big":
        found.byteswap()
    return found


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
        nodes, known = self.graph.nodes, dict[int, tuple[str, str, str, str]]()
        found = []
        for operator, opcode, engine, start, duration, busy, count, flops, read, write, source in self.rows:
            if operator not in known:
                node = nodes[operator]
                known[operator] = node.op, _shapes(node), node.source, node.layer
            name, shapes, origin, layer = known[operator]
            found.append(
                OpCost(
                    name,
                    opcode,
                    engine,
                    start,
                    duration,
                    flops,
                    read,
                    write,
                    shapes,
                    source or origin,
                    busy,
                    count,
                    operator,
                    layer,
                )
            )
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


@dataclass(frozen=True, slots=True)
class ScheduleMetrics:
    """What one execution does, modelled; times in ns.

    Args:
        total_ns: the execution.
        total_active_ns: while any engine or DMA works.
        engine_active_ns: while an engine works, by engine; DMA among them.
        model_flops: operations of matrix products.
        hbm_read_bytes: bytes that transfers read from HBM.
        hbm_write_bytes: bytes that they write to HBM.
        dma_transfer_count: transfers.
        spill_save_bytes: bytes that left SBUF for want of room.
        spill_reload_bytes: bytes of them that came back.
        sbuf_peak_bytes: most bytes in SBUF at once.
    """

    total_ns: int
    total_active_ns: int
    engine_active_ns: dict[Engine, int]
    model_flops: int
    hbm_read_bytes: int
    hbm_write_bytes: int
    dma_transfer_count: int
    spill_save_bytes: int
    spill_reload_bytes: int
    sbuf_peak_bytes: int

    def mfu_percent(self, device: DeviceType, lnc: int) -> float:
        """Return the share of the bf16 peak that the model's operations use."""
        return _percent(self.model_flops, device.core.tensor_flops_s("bfloat16") * lnc * self.total_ns / 1e9)

    def hfu_percent(self) -> float:
        """Return the share of the time in which the Tensor engine works: padding and transposes included."""
        return _percent(self.engine_active_ns[Engine.TENSOR], self.total_ns)

    def mbu_percent(self, device: DeviceType, lnc: int) -> float:
        """Return the share of the core's HBM bandwidth in use."""
        possible = device.memory_bandwidth_bytes_s * lnc / device.physical_cores * self.total_ns / 1e9
        return _percent(self.hbm_read_bytes + self.hbm_write_bytes, possible)


def schedule_metrics(cost: GraphCost) -> ScheduleMetrics:
    """Return the metrics of a schedule."""
    transfers = [row for row in cost.rows if row.engine is Engine.DMA]
    return ScheduleMetrics(
        total_ns=cost.total_ns,
        total_active_ns=_active_ns(cost.rows),
        engine_active_ns={engine: cost.engine_busy_ns(engine) for engine in Engine},
        model_flops=cost.matmul_flops,
        hbm_read_bytes=sum(row.read_bytes for row in cost.rows),
        hbm_write_bytes=sum(row.write_bytes for row in cost.rows),
        dma_transfer_count=len(transfers),
        spill_save_bytes=sum(row.write_bytes for row in transfers if row.opcode == SPILL_OPCODE),
        spill_reload_bytes=sum(row.read_bytes for row in transfers if row.opcode == RELOAD_OPCODE),
        sbuf_peak_bytes=cost.sbuf_peak_bytes,
    )


def _active_ns(rows: Sequence[CostRow]) -> int:
    """Return how long anything works. The work of a row is spread evenly over it: others work while it waits."""
    edges = []
    for row in rows:
        share = row.busy_ns / row.duration_ns if row.duration_ns else 0.0
        edges += [(row.start_ns, share), (row.start_ns + row.duration_ns, -share)]
    edges.sort(key=lambda edge: edge[0])
    active = level = 0.0
    before = 0
    for time_ns, change in edges:
        active += min(level, 1.0) * (time_ns - before)
        level += change
        before = time_ns
    return round(active)


def _percent(part: float, whole: float) -> float:
    return 100.0 * part / whole if whole else 0.0
