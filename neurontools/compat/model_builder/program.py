"""A compiled model of several ranks, loaded on the cores of this process. Weights and state are device tensors of the cores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neurontools.compat.model_builder.messages import MetaNeff, MetaTensor, torch_dtype
from neurontools.compat.traced_model import Signature, TracedModelError
from neurontools.xla import api
from neurontools.xla.device_name import device_name
from neurontools.xla.graph_values import dtype_name
from neurontools.xla.multicore.executable import MulticoreExecutable
from neurontools.xla.neff_executable import NeffExecutable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    Tensors = Mapping[str, torch.Tensor]


class SpmdProgram:
    """A compiled model.

    Args:
        neff: bytes of the NEFF.
        metaneff: bytes of its border.
        ranks: number of ranks in this process.
        world: number of ranks.

    Raises:
        TracedModelError: some ranks belong to other processes, or this process has too few cores.
        NrtError: the memory of a core is full.
    """

    def __init__(self, neff: bytes, metaneff: bytes, ranks: int, world: int) -> None:
        if ranks != world:
            raise TracedModelError(
                f"the model has {world} ranks, {ranks} of them in this process: ranks of several hosts are not simulated",
                "set local_ranks_size to the number of ranks",
            )
        if world > api.device_count():
            raise TracedModelError(
                f"the model has {world} ranks, but this process has {api.device_count()} NeuronCore(s)",
                "neuron-run --instance with a larger type, or a larger NEURON_RT_NUM_CORES",
            )
        self.world = world
        border = MetaNeff()
        border.ParseFromString(metaneff)
        self.signature = signature = Signature.from_bytes(border.border)
        constants = [constant.tensor() for constant in border.constants]
        unnamed = [position for position, name in enumerate(signature.weights) if not name]
        if len(unnamed) != len(constants):
            raise TracedModelError("the model's constants do not fit its border", "compile it again")
        self._constants = dict(zip(unnamed, constants, strict=True))
        named = [tensor for tensor in border.input_tensors if tensor.type >= MetaTensor.INPUT_WEIGHT]
        if len(named) != len(signature.weights) - len(constants):
            raise TracedModelError("the model's weights do not fit its border", "compile it again")
        forms = iter((dtype_name(torch_dtype(each.data_type)), tuple(each.shape)) for each in named)
        self._forms = [next(forms) if name else ("", ()) for name in signature.weights]
        self._aliased = {result for _, result in signature.aliases}
        self._weights: list[list[torch.Tensor]] = []

        def make() -> NeffExecutable:
            nbytes = sum(constant.nbytes for constant in constants)
            return NeffExecutable(
                neff, signature.inputs, signature.scalars, signature.results, nbytes, "the model"
            )

        self._executable = MulticoreExecutable(make, world)

    def bind(self, states: Sequence[Tensors], weights: Sequence[Tensors], start_rank: int) -> None:
        """Use the weights and the state of each rank.

        Raises:
            TracedModelError: a weight is missing or has another shape.
        """
        if start_rank or len(weights) != self.world:
            raise TracedModelError(
                f"the model has {self.world} ranks from rank 0, but got weights of {len(weights)} from rank {start_rank}",
                "give one dict of weights for each rank",
            )
        held: list[Tensors] = [{}] * self.world
        self._weights = [
            [self._weight(rank, position, *dicts) for position in range(len(self.signature.weights))]
            for rank, dicts in enumerate(zip(states or held, weights, strict=True))
        ]

    @property
    def is_bound(self) -> bool:
        """Whether `bind` was called."""
        return bool(self._weights)

    def execute(self, inputs: Sequence[Sequence[torch.Tensor]]) -> list[list[torch.Tensor]]:
        """Execute it with the inputs of each rank; returns the results of each rank, on the host. The state changes.

        Raises:
            TracedModelError: an input is missing or has another shape.
            NrtError: the execution of a rank fails.
        """
        if len(inputs) != self.world:
            raise TracedModelError(
                f"the model has {self.world} ranks, but got inputs for {len(inputs)}",
                "give a list of inputs for each rank",
            )
        weights = [[host_of(weight) for weight in held] for held in self._weights]
        given = [[host_of(tensor) for tensor in tensors] for tensors in inputs]
        for tensors in given:
            self._check_inputs(tensors)
        tensors = [
            [own[source] if source >= 0 else held[-1 - source] for source in self.signature.sources]
            for own, held in zip(given, weights, strict=True)
        ]
        outcomes = self._executable.execute(tensors)
        for held, results in zip(weights, outcomes, strict=True):
            for weight, result in self.signature.aliases:
                held[weight].copy_(results[result])
        return [
            [result for position, result in enumerate(results) if position not in self._aliased]
            for results in outcomes
        ]

    def unload(self) -> None:
        """Take it off its cores."""
        self._weights = []
        self._executable.unload()

    def _weight(self, rank: int, position: int, states: Tensors, weights: Tensors) -> torch.Tensor:
        name = self.signature.weights[position]
        if not name:
            return self._constants[position]
        tensor = states[name] if name in states else weights.get(name)
        if tensor is None:
            raise TracedModelError(
                f"the checkpoint of rank {rank} lacks {name!r}", "add it to the checkpoint"
            )
        _check(f"weight {name!r} of rank {rank}", tensor, self._forms[position], "shard the checkpoint again")
        return tensor

    def _check_inputs(self, tensors: Sequence[torch.Tensor]) -> None:
        wanted = self.signature.arguments
        if len(tensors) != len(wanted):
            raise TracedModelError(f"the model takes {len(wanted)} inputs, not {len(tensors)}")
        for position, (tensor, form) in enumerate(zip(tensors, wanted, strict=True)):
            _check(f"input {position}", tensor, form, "pad it, or add a bucket of this shape")


def _check(what: str, tensor: torch.Tensor, form: tuple[str, tuple[int, ...]], remedy: str) -> None:
    given, (dtype, shape) = dtype_name(tensor.dtype), form
    if (given, tuple(tensor.shape)) != (dtype, shape):
        raise TracedModelError(
            f"{what} is {given}{list(tensor.shape)}, but the model was compiled for {dtype}{list(shape)}",
            remedy,
        )


def host_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the contents of a tensor on the host: for a device tensor the memory itself, after a sync."""
    if tensor.device.type == "cpu":
        return tensor.detach()
    recorder: Any = api.engine().store_of(tensor)
    host: torch.Tensor = recorder.read(tensor, "execution")
    return host


def on_core(tensor: torch.Tensor, core: int) -> torch.Tensor:
    """Return a tensor on a core, the tensor itself if it is on a core."""
    return tensor.detach().to(f"{device_name()}:{core}") if tensor.device.type == "cpu" else tensor
