"""`torch.classes.neuron`: models of several ranks as TorchScript holds them, and the runtime.

The class of models is plain Python, which TorchScript compiles and stores.
"""

# mypy: disable-error-code="no-untyped-def,no-any-return"
# TorchScript reads the annotations of the class.

import warnings
from typing import Any

import torch
from torch import Tensor

import neurontools.compat.model_builder.operators  # noqa: F401 # TorchScript looks for them
from neurontools.compat import core_placement, traced_model
from neurontools.xla import api


class SpmdModel:
    """A compiled model.

    Args:
        neff: bytes of the NEFF.
        metaneff: bytes of its border.
        ranks: number of ranks in this process.
        world: number of ranks.
    """

    def __init__(self, neff: Tensor, metaneff: Tensor, ranks: int, world: int):
        self.neff = neff
        self.metaneff = metaneff
        self.ranks = ranks
        self.world = world
        self.mock = torch.zeros(1)  # a tensor, as Python gets copies of the object

    def initialize(self, states: list[dict[str, Tensor]], weights: list[dict[str, Tensor]], start_rank: int):
        """Load the model, with the weights and the state of each rank."""
        torch.ops.neuron.spmd_initialize(
            self.neff, self.metaneff, self.ranks, self.world, states, weights, start_rank
        )

    def is_initialized(self) -> bool:
        """Return whether it has weights."""
        if bool(self.mock):
            return True
        return bool(torch.ops.neuron.spmd_is_initialized(self.neff))

    def set_mock_initialized(self, mock: bool):
        """Return zeros from now on, or no longer: while TorchScript records a call."""
        self.mock.fill_(mock)

    def forward(self, inputs: list[Tensor]) -> list[Tensor]:
        """Return the results of rank 0; all ranks get the same inputs."""
        if bool(self.mock):
            return torch.ops.neuron.spmd_examples(self.metaneff)
        return torch.ops.neuron.spmd_forward(self.neff, inputs)

    def forward_ranked(self, inputs: list[list[Tensor]]) -> list[list[Tensor]]:
        """Return the results of each rank, on its core; each gets inputs of its own."""
        return torch.ops.neuron.spmd_forward_ranked(self.neff, inputs, True)

    def forward_async(self, inputs: list[list[Tensor]]) -> list[list[Tensor]]:
        """Return what `forward_ranked` returns; executions are synchronous."""
        return torch.ops.neuron.spmd_forward_ranked(self.neff, inputs, True)

    def forward_ranked_to_cpu(self, inputs: list[list[Tensor]]) -> list[list[Tensor]]:
        """Return the results of each rank, on the CPU."""
        return torch.ops.neuron.spmd_forward_ranked(self.neff, inputs, False)

    def save_neff(self, path: str) -> bool:
        """Write the NEFF to a file."""
        return bool(torch.ops.neuron.spmd_save(self.neff, path))

    def save_metaneff(self, path: str) -> bool:
        """Write the border of the NEFF to a file."""
        return bool(torch.ops.neuron.spmd_save(self.metaneff, path))


with warnings.catch_warnings():  # that TorchScript is deprecated
    warnings.simplefilter("ignore")
    torch.jit.script(SpmdModel)


def spmd_model(neff: bytes, metaneff: bytes, local_ranks_size: int, world_size: int) -> Any:
    """Return a compiled model for TorchScript; it is loaded when its weights are known."""
    return SpmdModel(_tensor_of(neff), _tensor_of(metaneff), local_ranks_size, world_size)


class Runtime:
    """`torch.classes.neuron.Runtime`: the cores of this process."""

    def initialize(self) -> None:
        """Claim the cores."""
        api.device_count()

    def set_default_neuron_cores(self, start: int, count: int) -> None:
        """Load models on these cores from now on.

        Raises:
            ValueError: the process does not have them.
        """
        traced_model.set_default_cores(core_placement.range_of_cores(start, count))

    def get_vnc_memory_stats(self) -> "tuple[int, int]":
        """Return the used and the free memory of the first core, in bytes."""
        memory = api.engine().memory(0)
        return memory.used_bytes, memory.limit_bytes - memory.used_bytes

    def unload(self) -> None:
        """Give the cores back."""
        api.shutdown()


def _tensor_of(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
