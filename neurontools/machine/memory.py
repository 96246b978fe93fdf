"""Memory categories of the Neuron tools: what neuron-top and neuron-monitor break memory down into."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class MemoryCategory(StrEnum):
    """What a piece of memory is for (AWS Neuron documentation, neuron-top and neuron-monitor user guides).

    The first five exist on a NeuronCore, `tensors` to `application_memory` on the host.
    """

    CONSTANTS = "constants"
    MODEL_CODE = "model_code"
    MODEL_SHARED_SCRATCHPAD = "model_shared_scratchpad"
    RUNTIME_MEMORY = "runtime_memory"
    TENSORS = "tensors"
    DMA_BUFFERS = "dma_buffers"
    APPLICATION_MEMORY = "application_memory"


class MemoryUse(Struct, frozen=True, gc=False):
    """Bytes in use by category."""

    constants: int = 0
    model_code: int = 0
    model_shared_scratchpad: int = 0
    runtime_memory: int = 0
    tensors: int = 0
    dma_buffers: int = 0
    application_memory: int = 0

    @property
    def total_bytes(self) -> int:
        """The sum over all categories."""
        return (
            self.constants
            + self.model_code
            + self.model_shared_scratchpad
            + self.runtime_memory
            + self.tensors
            + self.dma_buffers
            + self.application_memory
        )
