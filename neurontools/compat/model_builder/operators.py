"""The operators `torch.ops.neuron` of models of several ranks.

Those that run a model change the NEFF's tensor on paper: TorchScript drops calls that change nothing, and joins equal ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from neurontools.base.files import write_atomic
from neurontools.compat import traced_model
from neurontools.compat.model_builder.messages import MetaNeff
from neurontools.compat.model_builder.program import SpmdProgram, on_core
from neurontools.compat.traced_model import TracedModelError

if TYPE_CHECKING:
    from torch import Tensor

_SCHEMAS = (
    "_parallel_load(Dict(str, Tensor)[] checkpoint) -> Dict(str, Tensor)[]",
    (
        "spmd_initialize(Tensor(a!) neff, Tensor metaneff, int ranks, int world, Dict(str, Tensor)[] states, "
        "Dict(str, Tensor)[] weights, int start_rank) -> ()"
    ),
    "spmd_is_initialized(Tensor neff) -> bool",
    "spmd_examples(Tensor metaneff) -> Tensor[]",
    "spmd_forward(Tensor(a!) neff, Tensor[] inputs) -> Tensor[]",
    "spmd_forward_ranked(Tensor(a!) neff, Tensor[][] inputs, bool on_device) -> Tensor[][]",
    "spmd_save(Tensor data, str path) -> bool",
)


def _parallel_load(checkpoint: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    return [
        {name: on_core(tensor, rank) for name, tensor in weights.items()}
        for rank, weights in enumerate(checkpoint)
    ]


def _initialize(
    neff: Tensor,
    metaneff: Tensor,
    ranks: int,
    world: int,
    states: list[dict[str, Tensor]],
    weights: list[dict[str, Tensor]],
    start_rank: int,
) -> None:
    program = traced_model.find_model(neff, lambda: SpmdProgram(_bytes(neff), _bytes(metaneff), ranks, world))
    program.bind(states, weights, start_rank)


def _program(neff: Tensor) -> SpmdProgram:
    def refuse() -> SpmdProgram:
        raise TracedModelError("the model has no weights yet", "call its initialize with a checkpoint")

    return traced_model.find_model(neff, refuse)


def _is_initialized(neff: Tensor) -> bool:
    try:
        return _program(neff).is_bound
    except TracedModelError:
        return False


def _examples(metaneff: Tensor) -> list[Tensor]:
    border = MetaNeff()
    border.ParseFromString(_bytes(metaneff))
    return border.example_results()


def _forward(neff: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    program = _program(neff)
    return program.execute([inputs] * program.world)[0]


def _forward_ranked(neff: Tensor, inputs: list[list[Tensor]], on_device: bool) -> list[list[Tensor]]:
    results = _program(neff).execute(inputs)
    if not on_device:
        return results
    return [[on_core(result, rank) for result in own] for rank, own in enumerate(results)]


def _save(data: Tensor, path: str) -> bool:
    write_atomic(path, _bytes(data))
    return True


def _bytes(tensor: Tensor) -> bytes:
    return bytes(tensor.numpy().tobytes())


_library = torch.library.Library("neuron", "FRAGMENT")
for _schema, _kernel in zip(
    _SCHEMAS,
    (_parallel_load, _initialize, _is_initialized, _examples, _forward, _forward_ranked, _save),
    strict=True,
):
    _library.define(_schema)
    _library.impl(_schema.partition("(")[0], _kernel, "CompositeImplicitAutograd")
