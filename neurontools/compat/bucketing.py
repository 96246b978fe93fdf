"""torch_neuronx.bucket_model_trace: one TorchScript module of several traced models, chosen by the inputs.

Source: AWS Neuron documentation, "PyTorch NeuronX Tracing API for Inference", section "Autobucketing", and its guide.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from neurontools.compat.traced_model import TracedModelError
from neurontools.compat.tracing import trace

Kernel = Callable[..., Any]


class BucketModelConfig:
    """How inputs choose a bucket.

    Args:
        bucket_kernel: returns a TorchScript function: from the list of inputs to the inputs of the bucket's model, padded
            to its shapes, and a tensor with the number of the bucket.
        bucket_kernel_constant_args: further arguments of that function: tensors, numbers, texts.
        shared_state_buffer: not supported.
        shared_state_buffer_preprocessor: for the shared state alone.
        func_kwargs: keyword arguments for the function that makes the model: one dict, or one for each bucket.
        store_example_inputs: kept for libraries, which keep examples with the models.

    Raises:
        TracedModelError: there is a state shared by the buckets.
    """

    def __init__(
        self,
        bucket_kernel: Kernel,
        bucket_kernel_constant_args: Sequence[Any] = (),
        shared_state_buffer: Sequence[torch.Tensor] | None = None,
        shared_state_buffer_preprocessor: Kernel | None = None,
        func_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        store_example_inputs: bool = False,
    ) -> None:
        if shared_state_buffer is not None:
            raise TracedModelError(
                "shared_state_buffer is not simulated: each bucket keeps its own state",
                "make the state an input and a result of the models",
            )
        self.bucket_kernel = bucket_kernel
        self.bucket_kernel_constant_args = tuple(bucket_kernel_constant_args)
        self.shared_state_buffer = shared_state_buffer
        self.shared_state_buffer_preprocessor = shared_state_buffer_preprocessor
        self.func_kwargs = func_kwargs
        self.store_example_inputs = store_example_inputs

    def get_func_kwargs_for_bucket_rank(self, bucket_rank: int) -> dict[str, Any]:
        """Return the keyword arguments of the function for one bucket."""
        given = self.func_kwargs or {}
        return dict(given if isinstance(given, Mapping) else given[bucket_rank])

    def arguments(self, buckets: int) -> list[dict[str, Any]]:
        """Return the keyword arguments of the function for each bucket.

        Raises:
            TracedModelError: there are more or fewer of them.
        """
        given = self.func_kwargs or {}
        if not isinstance(given, Mapping) and len(given) != buckets:
            raise TracedModelError(
                f"func_kwargs has {len(given)} entries for {buckets} buckets", "give one dict for each bucket"
            )
        return [self.get_func_kwargs_for_bucket_rank(number) for number in range(buckets)]


class _Buckets(torch.nn.Module):  # type: ignore[misc]
    """The traced models, and the function that chooses one."""

    def __init__(
        self, models: Sequence[torch.jit.ScriptModule], choose: Any, constants: Sequence[Any]
    ) -> None:
        super().__init__()
        for number, model in enumerate(models):
            self.add_module(f"bucket_{number}", model)
        self.choose = choose
        for number, constant in enumerate(constants):
            setattr(self, f"constant_{number}", constant)


def bucket_model_trace(
    func: Callable[..., Any],
    example_inputs: Sequence[Any],
    bucket_config: BucketModelConfig,
    compiler_workdir: str | None = None,
    compiler_args: str | Sequence[str] | None = None,
) -> torch.jit.ScriptModule:
    """Trace a model for each example input, and return a module that takes them all.

    Args:
        func: returns the model and its `input_output_aliases`; called once for each bucket.
        example_inputs: for each bucket a tensor, or a tuple of tensors.
        bucket_config: chooses the bucket of an input.
        compiler_workdir: directory that gets the NEFFs, `bucket_<number>/graph.neff`.
        compiler_args: flags of the compiler.

    Raises:
        TracedModelError: there are no examples, or the models take or return different structures.
        CompileError: the shape of a tensor depends on values, or the compiler refuses a graph or a flag.
    """
    if isinstance(example_inputs, torch.Tensor) or not example_inputs:
        raise TracedModelError("example_inputs is a list with one example for each bucket", "[example, ...]")
    models = []
    arguments = bucket_config.arguments(len(example_inputs))
    for number, (example, given) in enumerate(zip(example_inputs, arguments, strict=True)):
        made = func(**given)
        if not isinstance(made, tuple) or len(made) != 2:  # model and aliases
            raise TracedModelError(
                "func of bucket_model_trace returns a model and its input_output_aliases",
                "return (model, {})",
            )
        workdir = None if compiler_workdir is None else os.path.join(compiler_workdir, f"bucket_{number}")
        model, aliases = made
        models.append(
            trace(
                model,
                tuple(example) if isinstance(example, tuple | list) else example,
                input_output_aliases=aliases or None,
                compiler_workdir=workdir,
                compiler_args=compiler_args,
            )
        )
    choose = bucket_config.bucket_kernel()
    if not isinstance(choose, torch.jit.ScriptFunction):
        raise TracedModelError(
            "bucket_kernel returns no TorchScript function", "return torch.jit.script(function)"
        )
    return _joined(models, choose, bucket_config.bucket_kernel_constant_args)


def _joined(
    models: Sequence[torch.jit.ScriptModule], choose: Any, constants: Sequence[Any]
) -> torch.jit.ScriptModule:
    borders = [_border(model) for model in models]
    inputs, result = borders[0]
    if any(border != borders[0] for border in borders) or any(kind != "Tensor" for kind in inputs):
        raise TracedModelError(
            "the models of the buckets take or return different structures: "
            + "; ".join(dict.fromkeys(f"({', '.join(takes)}) -> {gives}" for takes, gives in borders)),
            "let all of them take the same number of tensors, and return the same structure",
        )
    names = [f"input_{number}" for number in range(len(inputs))]
    passed = ", ".join(f"chosen[{number}]" for number in range(len(inputs)))
    further = "".join(f", self.constant_{number}" for number in range(len(constants)))
    lines = [
        f"def forward({', '.join(['self', *(f'{name}: Tensor' for name in names)])}) -> {result}:",
        f"    chosen, bucket = self.choose([{', '.join(names)}]{further})",
        "    number = int(bucket)",
        *(
            line
            for number in range(len(models) - 1)
            for line in (f"    if number == {number}:", f"        return self.bucket_{number}({passed})")
        ),
        f"    assert number == {len(models) - 1}, 'the bucket kernel chose a bucket that does not exist'",
        f"    return self.bucket_{len(models) - 1}({passed})",
    ]
    outer = torch.jit.script(_Buckets(models, choose, constants))
    outer.define("\n".join(lines) + "\n")
    return outer


def _border(model: torch.jit.ScriptModule) -> tuple[tuple[str, ...], str]:
    """Return the types of a module's arguments and of its result."""
    schema = model._c._get_method("forward").schema  # noqa: SLF001 # no public access
    takes = tuple(argument.type.annotation_str for argument in schema.arguments[1:])
    return takes, schema.returns[0].type.annotation_str
