"""DMA queues by the engine that issues a transfer and by its purpose, and who makes the descriptors.

Names have the form of the AWS Neuron documentation (neuron-profile user guide): `qScalarSpillReload0`, `qSyncDynamicHW`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

PLAIN_OPCODE = "DMA_DIRECT2D"
SPILL_OPCODE = "DMA_SPILL_SAVE"
RELOAD_OPCODE = "DMA_SPILL_RELOAD"
INDIRECT_OPCODE = "DMA_INDIRECT"
TRANSPOSE_OPCODE = "DMA_TRANSPOSE"


class DescriptorMode(StrEnum):
    """Who makes the descriptors of a transfer; the values are those of the published metrics."""

    STATIC = "static"
    """The compiler: they lie in HBM before the program starts."""

    SOFTWARE = "software_dynamic"
    """GpSimd, while the program runs."""

    HARDWARE = "hardware_dynamic"
    """The descriptor generation engines of v3 and v4."""


class DmaQueue(NamedTuple):
    """A queue: its name, the type that a NEFF gives it, and who makes its descriptors."""

    name: str
    kind: str
    mode: DescriptorMode


LOADS = DmaQueue("qSyncIO0", "data", DescriptorMode.STATIC)
STORES = DmaQueue("qScalarIO0", "output", DescriptorMode.STATIC)
_QUEUES = {
    SPILL_OPCODE: DmaQueue("qScalarSpillReload0", "data", DescriptorMode.STATIC),
    RELOAD_OPCODE: DmaQueue("qScalarSpillReload0", "data", DescriptorMode.STATIC),
    INDIRECT_OPCODE: DmaQueue("qGpSimdDynamicSW", "software_dynamic", DescriptorMode.SOFTWARE),
    TRANSPOSE_OPCODE: DmaQueue("qSyncDynamicHW", "hardware_dynamic", DescriptorMode.HARDWARE),
}


def queue_of(opcode: str, write_bytes: int) -> DmaQueue:
    """Return the queue of a transfer; loads and stores of tensors have one each."""
    return _QUEUES.get(opcode) or (STORES if write_bytes else LOADS)


def queues_of(transfers: Iterable[tuple[str, int]]) -> list[DmaQueue]:
    """Return the queues of transfers (opcode and bytes written), each once, by name."""
    return sorted({queue_of(*transfer) for transfer in transfers})
