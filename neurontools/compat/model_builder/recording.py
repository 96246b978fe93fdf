"""generate_hlo: a model of several ranks, recorded once as rank 0. What differs between the ranks is data.

Source: the use of these names in aws-neuron/neuronx-distributed, `trace/`.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from neurontools.base.files import write_atomic
from neurontools.compat.model_builder.messages import (
    Constant,
    HloComputationProto,
    HloInstructionProto,
    HloModuleProto,
    MetaNeff,
    MetaTensor,
    data_type_of,
)
from neurontools.compat.model_builder.structure import Flattener, Packer
from neurontools.compat.traced_model import TracedModelError
from neurontools.compat.tracing import Recording
from neurontools.compiler.graph import graph_from_bytes
from neurontools.compiler.graph_nodes import GraphError
from neurontools.xla.multicore.executable import recorded_as_first_of
from neurontools.xla.neff_executable import compile_exported

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from neurontools.compat.traced_model import Signature

_NEFF = "graph.neff"
_OF_THE_WRAPPER = ("--logfile", "--verbose", "--enable-internal-neff-wrapper")


@dataclass(slots=True)
class HloArtifacts:
    """What `generate_hlo` makes of a model.

    Args:
        hlo_module: the graph.
        flattener: makes the graph's inputs from those of the model.
        packer: makes the model's result from those of the graph.
        metaneff: the border of the graph.
        weights: None: a checkpoint has them.
        constant_parameter_tensors: tensors of the traced code, which `metaneff` holds.
        weight_name_to_idx: the number of the parameter of each weight that holds no state.
    """

    hlo_module: HloModuleProto
    flattener: Flattener | None
    packer: Packer | None
    metaneff: Any
    weights: Any = None
    constant_parameter_tensors: Any = None
    weight_name_to_idx: dict[str, int] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NeffArtifacts:
    """Where a NEFF is."""

    neff_filename: str


def generate_hlo(
    func: Callable[..., Any],
    example_inputs: Any,
    input_output_aliases: Mapping[torch.Tensor, int] | None = None,
    *,
    enable_aliasing: bool = False,
    treat_inputs_as_kwargs: bool = False,
    **_: Any,
) -> HloArtifacts:
    """Record a model as rank 0 of `torch_xla.runtime.world_size()` ranks.

    Args:
        func: the model.
        example_inputs: what it takes; a dict with `treat_inputs_as_kwargs`.
        input_output_aliases: parameters or buffers that hold state, each with the position of its next value in the result.
        enable_aliasing: whether the parameters and buffers that the model changes hold state.
        treat_inputs_as_kwargs: whether the model takes its inputs by their names.

    Raises:
        TracedModelError: an alias is invalid, or the model takes or returns other values than tensors.
        CompileError: the shape of a tensor depends on values.
    """
    import torch_xla.runtime

    inputs: Any = example_inputs if treat_inputs_as_kwargs else _as_tuple(example_inputs)
    names = tuple(inputs) if treat_inputs_as_kwargs else ()
    values = tuple(inputs.values()) if treat_inputs_as_kwargs else inputs
    with recorded_as_first_of(torch_xla.runtime.world_size()):
        recording = Recording(func, values, names, finds_state=enable_aliasing)
        exported = recording.export()
        signature, weights = recording.border(exported, input_output_aliases or {})
    used = sorted({source for source in signature.sources if source >= 0})
    _, spec = tree_flatten(values)
    numbers = tree_unflatten(list(range(len(recording.arguments))), spec)
    excluded = [number for number in range(len(recording.arguments)) if number not in used]
    border = dataclasses.replace(
        signature,
        arguments=tuple(signature.arguments[position] for position in used),
        sources=tuple(used.index(source) if source >= 0 else source for source in signature.sources),
    )
    metaneff, indices = _metaneff(border, weights)
    module = _module(exported.graph.to_bytes(), exported.graph.digest(), metaneff)
    metaneff.serialized_graph_def = module.SerializeToString()
    aliased = {result for _, result in border.aliases}
    return HloArtifacts(
        hlo_module=module,
        flattener=Flattener(numbers, excluded or None),
        packer=Packer.of(recording.structure, aliased),
        metaneff=metaneff,
        weight_name_to_idx=indices,
    )


def _as_tuple(inputs: Any) -> tuple[Any, ...]:
    return tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)


def _metaneff(border: Signature, weights: Sequence[torch.Tensor]) -> tuple[MetaNeff, dict[str, int]]:
    """Return the border as libraries read it, and the number of each weight among the inputs."""
    tensors = [
        _tensor(f"input{number}", getattr(torch, dtype), shape, MetaTensor.USER_INPUT)
        for number, (dtype, shape) in enumerate(border.arguments)
    ]
    state = {weight for weight, _ in border.aliases}
    inputs_of: dict[int, int] = {}
    for position, (name, weight) in enumerate(zip(border.weights, weights, strict=True)):
        if not name:
            continue
        inputs_of[position] = len(tensors)
        kind = MetaTensor.INPUT_STATE if position in state else MetaTensor.INPUT_WEIGHT
        tensors.append(_tensor(f"input{len(tensors)}", weight.dtype, weight.shape, kind, name))
    results = [
        _tensor(f"output{number}", getattr(torch, view.dtype), view.shape, MetaTensor.Type.UNKNOWN)
        for number, view in enumerate(border.results)
    ]
    unnamed = [weight for name, weight in zip(border.weights, weights, strict=True) if not name]
    metaneff = MetaNeff(
        input_tensors=tensors,
        output_tensors=results,
        output_aliases_to={result: inputs_of[weight] for weight, result in border.aliases},
        border=border.to_bytes(),
        constants=[Constant.of(weight) for weight in unnamed],
    )
    indices = {border.weights[place]: number for place, number in inputs_of.items() if place not in state}
    return metaneff, indices


def _tensor(
    name: str, dtype: torch.dtype, shape: Sequence[int], kind: MetaTensor.Type, key: str = ""
) -> MetaTensor:
    return MetaTensor(
        name=name.encode(),
        shape=list(shape),
        data_type=data_type_of(dtype),
        type=kind,
        checkpoint_key=key.encode(),
    )


def _module(graph: bytes, digest: str, metaneff: MetaNeff) -> HloModuleProto:
    parameters = [
        HloInstructionProto(name=f"p{number}", opcode="parameter", id=number, parameter_number=number)
        for number in range(len(metaneff.input_tensors))
    ]
    entry = HloComputationProto(name="entry", id=1, instructions=parameters)
    return HloModuleProto(name=f"graph.{digest}", entry_computation_id=1, computations=[entry], graph=graph)


def neuron_xla_compile(
    module_bytes: bytes,
    compiler_flags: str | Sequence[str],
    input_format: str = "hlo",
    platform_target: str = "",
    *,
    use_cache: bool = True,
    **_: Any,
) -> bytes:
    """Return the NEFF of an HLO module of `generate_hlo`.

    Args:
        module_bytes: the module.
        compiler_flags: flags of the compiler.
        input_format: hlo.
        platform_target: the device to compile for; this machine's by default.
        use_cache: whether the persistent compile cache is used.

    Raises:
        TracedModelError: the bytes are of another program.
        CompileError: the compiler refuses the graph or a flag.
    """
    del input_format
    module = HloModuleProto()
    module.ParseFromString(module_bytes)
    try:
        graph = graph_from_bytes(module.graph)
    except GraphError as error:
        raise TracedModelError(
            f"not an HLO module of this machine: {error.message}", "trace it here"
        ) from error
    words = shlex.split(compiler_flags) if isinstance(compiler_flags, str) else list(compiler_flags)
    flags = [word for word in words if not word.startswith(_OF_THE_WRAPPER)]
    if platform_target and not any(flag.startswith("--target") for flag in flags):
        flags.insert(0, f"--target={platform_target}")
    return compile_exported(graph, flags, uses_cache=use_cache)


def neuron_xla_wlo_compile(
    module_bytes: bytes, compiler_flags: str | Sequence[str], **options: Any
) -> tuple[bytes, None]:
    """Return the NEFF of an HLO module; weights keep their layout, so there is nothing that changes it."""
    return neuron_xla_compile(module_bytes, compiler_flags, **options), None


def generate_neff(
    hlo_artifacts: HloArtifacts,
    compiler_workdir: str | Path | None = None,
    compiler_args: str | Sequence[str] | None = None,
    inline_weights_to_neff: bool = True,
) -> NeffArtifacts:
    """Compile the graph of a model, and write the NEFF to a directory."""
    del inline_weights_to_neff
    directory = os.fspath(compiler_workdir or ".")
    neff = neuron_xla_compile(
        hlo_artifacts.hlo_module.SerializeToString(), compiler_args or (), use_cache=False
    )
    os.makedirs(directory, exist_ok=True)
    write_atomic(os.path.join(directory, _NEFF), neff)
    return NeffArtifacts(os.path.join(directory, _NEFF))


def hlo_entry_computation(module: HloModuleProto) -> HloComputationProto:
    """Return the entry of an HLO module."""
    return get_hlo_computation_by_id(module, module.entry_computation_id)


def get_hlo_computation_by_id(module: HloModuleProto, number: int) -> HloComputationProto:
    """Return a computation of an HLO module.

    Raises:
        KeyError: there is none of this number.
    """
    return {computation.id: computation for computation in module.computations}[number]


def get_hlo_root_instruction(computation: HloComputationProto) -> HloInstructionProto:
    """Return the last instruction of a computation."""
    return computation.instructions[-1]
