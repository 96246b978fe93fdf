"""The estimate: lowering, SBUF, DMA and schedule of a graph, in that order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.compiler.engines.cost import MAX_WORK, CostRow, GraphCost
from neurontools.compiler.engines.kernel_program import NAMESPACE
from neurontools.compiler.engines.lowering.families import has_instruction
from neurontools.compiler.engines.lowering.lower import lower
from neurontools.compiler.engines.modelled_core import ModelledCore
from neurontools.compiler.engines.placement import CUSTOM_OPCODE, split_name
from neurontools.compiler.engines.schedule import Schedule, Scheduled, schedule

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from neurontools.compiler.engines.instructions import CustomWork
    from neurontools.compiler.graph import Graph
    from neurontools.machine.instances.catalogue import DeviceType


def estimate(
    graph: Graph,
    device: DeviceType,
    *,
    lnc: int | None = None,
    matmul_dtype: str | None = None,
    custom: Mapping[int, CustomWork] | None = None,
) -> GraphCost:
    """Return the modelled schedule of a graph on one logical core of a device.

    Args:
        graph: what to run.
        device: whose rates apply.
        lnc: physical cores of a logical core; None for the device's default. Work is spread over them evenly.
        matmul_dtype: what float32 matrix products are cast to (`--auto-cast`), None for no cast.
        custom: what calls of custom operators do, by their positions in the graph; for others the bytes that they
            touch decide.
    """
    machine = ModelledCore(device, device.lnc_default if lnc is None else lnc, matmul_dtype)
    return cost_of(plan(graph, machine, custom), machine, graph)


def launch_ns(graph: Graph, machine: ModelledCore) -> int:
    """Return the time of an execution before its first instruction; it is shorter for a kernel alone."""
    calls = [node for node in graph.nodes if has_instruction(node)]
    is_kernel = len(calls) == 1 and split_name(calls[0].op)[0] == NAMESPACE
    return round(machine.costs.kernel_start_ns if is_kernel else machine.costs.launch_ns)


def plan(graph: Graph, machine: ModelledCore, custom: Mapping[int, CustomWork] | None = None) -> Schedule:
    """Return the schedule of a graph with all that `estimate` leaves out: causes of waiting, slack, SBUF over time."""
    return schedule(lower(graph, machine, custom or {}), machine)


def cost_of(planned: Schedule, machine: ModelledCore, graph: Graph) -> GraphCost:
    """Return the stored form of a schedule: groups that take time, after the launch."""
    launch = launch_ns(graph, machine)
    rows, _ = _rows(planned.groups, launch)
    residency = planned.residency
    return GraphCost(
        rows=tuple(rows),
        total_ns=max(
            (row.start_ns + row.duration_ns for row in rows), default=launch if planned.kernels else 0
        ),
        unknown=planned.unknown,
        fallback=machine.costs.version if machine.costs.is_fallback else "",
        sbuf_peak_bytes=max((nbytes for _, nbytes in planned.sbuf_use()), default=0),
        spill_save_bytes=residency.spill_save_bytes,
        spill_reload_bytes=residency.spill_reload_bytes,
        graph=graph,
    )


def row_groups(planned: Schedule) -> list[int]:
    """Return by row of `cost_of` the number of its group; a product with transposes has two rows."""
    return _rows(planned.groups, 0)[1]


def _rows(groups: Sequence[Scheduled], launch_ns: int) -> tuple[list[CostRow], list[int]]:
    """Return the rows, and the number of each one's group."""
    rows: list[CostRow] = []
    origins: list[int] = []
    carried = 0
    for number, (instruction, engine, operator, start, end, busy, *_) in enumerate(groups):
        carried += instruction.flops
        first, last, works = round(start), round(end), round(busy)
        if last <= first or not instruction.count:
            continue
        duration = (
            works if instruction.opcode == CUSTOM_OPCODE else last - first
        )  # exact, as other tools show it
        works, tiles = max(1, min(works, duration)), instruction.count
        begin = launch_ns + first
        if instruction.turning:
            # Transposes run between the tiles that need them; they are shown before them.
            part = min(duration - 1, round(duration * instruction.turning_ns / max(busy, 1e-9)))
            if part:
                spent = min(part, round(instruction.turning_ns))
                rows.append(
                    CostRow(
                        operator,
                        "TRANSPOSE",
                        engine,
                        begin,
                        part,
                        max(1, spent),
                        instruction.turning,
                        0,
                        0,
                        0,
                    )
                )
                origins.append(number)
                begin, duration, works = (
                    begin + part,
                    duration - part,
                    max(1, min(works - spent, duration - part)),
                )
                tiles -= instruction.turning
        moved = min(instruction.read_bytes, MAX_WORK), min(instruction.write_bytes, MAX_WORK)
        rows.append(
            CostRow(
                operator,
                instruction.opcode,
                engine,
                begin,
                duration,
                works,
                max(1, tiles),
                min(carried, MAX_WORK),
                *moved,
                instruction.source,
            )
        )
        origins.append(number)
        carried = 0
    return rows, origins
