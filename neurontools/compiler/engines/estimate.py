"""The estimate: lowering, SBUF, DMA and schedule of a graph, in that order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.compiler.engines.cost import MAX_WORK, CostRow, GraphCost
from neurontools.compiler.engines.lowering.lower import lower
from neurontools.compiler.engines.modelled_core import ModelledCore
from neurontools.compiler.engines.placement import CUSTOM_OPCODE
from neurontools.compiler.engines.schedule import Schedule, schedule

if TYPE_CHECKING:
    from collections.abc import Mapping

    from neurontools.compiler.graph import Graph
    from neurontools.machine.instances.catalogue import DeviceType


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
    machine = ModelledCore(device, device.lnc_default if lnc is None else lnc, matmul_dtype)
    return cost_of(schedule(lower(graph, machine, custom_ns or {}), machine), machine, graph)


def cost_of(planned: Schedule, machine: ModelledCore, graph: Graph | None) -> GraphCost:
    """Return the stored form of a schedule: groups that take time, after the launch."""
    costs, rows = machine.costs, []
    launch, carried = round(costs.launch_ns), 0
    end_ns = round(planned.end_ns)
    for instruction, engine, operator, start, end, busy, _ in planned.groups:
        carried += instruction.flops
        first, last = round(start), round(end)
        if last > first and instruction.count:
            exact = round(busy)
            duration = last - first
            if instruction.opcode == CUSTOM_OPCODE:  # the time that all tools show, to the last digit
                duration, end_ns = exact, max(end_ns, first + exact)
            numbers = (
                launch + first,
                duration,
                max(1, min(exact, duration)),
                instruction.count,
                min(carried, MAX_WORK),
            )
            moved = (min(instruction.read_bytes, MAX_WORK), min(instruction.write_bytes, MAX_WORK))
            rows.append(CostRow(operator, instruction.opcode, engine, *numbers, *moved))
            carried = 0
    residency = planned.residency
    return GraphCost(
        rows=tuple(rows),
        total_ns=launch + end_ns if rows else 0,
        unknown=planned.unknown,
        fallback=costs.version if costs.is_fallback else "",
        sbuf_peak_bytes=max(residency.used_bytes, default=0),
        spill_save_bytes=residency.spill_save_bytes,
        spill_reload_bytes=residency.spill_reload_bytes,
        graph=graph,
    )
