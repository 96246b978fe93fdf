"""The published metrics of one execution of a schedule (AWS Neuron documentation, neuron-profile user guide).

Everything follows from the rows of the schedule and the peaks of the core; nothing is a constant. Engines that wait
between tiles are not active.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.compiler.engines.placement import Engine
from neurontools.compiler.engines.queues import RELOAD_OPCODE, SPILL_OPCODE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.compiler.engines.cost import GraphCost
    from neurontools.compiler.engines.storage import CostRow
    from neurontools.machine.instances.catalogue import DeviceType


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
