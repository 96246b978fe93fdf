"""Convert between torch values and plain values."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

from neurontools.customop.abi import BY_CODE, DTYPES
from neurontools.customop.calls import Buffer, TensorMeta
from neurontools.customop.signature import TENSOR_KINDS
from neurontools.errors import TORCH_REMEDY, MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from neurontools.customop.operation import Completed, CustomOperator, Value


def import_torch() -> Any:
    """Return torch.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError(
            "custom operators run on torch tensors, and torch is not installed",
            TORCH_REMEDY,
        ) from error
    return torch


@cache
def _dtype_codes() -> dict[torch.dtype, int]:
    torch = import_torch()
    return {getattr(torch, dtype.name): dtype.code for dtype in DTYPES}


def dtype_of(code: int) -> torch.dtype:
    """Return the torch dtype of a number in the interface."""
    found: torch.dtype = getattr(import_torch(), BY_CODE[code].name)
    return found


def value_of(argument: object, word: str) -> Value:
    """Return an argument as a plain value; symbolic sizes become numbers.

    Args:
        argument: a tensor or a number.
        word: the parameter's kind in the signature.
    """
    if word in TENSOR_KINDS:
        tensor: Any = argument
        sizes = tuple(int(size) for size in tensor.shape)
        return TensorMeta(
            sizes, _dtype_codes().get(tensor.dtype, -1), math.prod(sizes) * tensor.element_size()
        )
    if word == "double":
        return float(argument)  # type: ignore[arg-type]
    if word == "int64" or not isinstance(argument, float):
        return int(argument)  # type: ignore[call-overload, no-any-return]
    return argument


def infer(operation: CustomOperator, arguments: Sequence[object]) -> TensorMeta:
    """Return shape and dtype of the output, from the shape function."""
    return operation.infer(values_of(operation, arguments))


def execute(
    operation: CustomOperator, arguments: Sequence[object], core_order: int = 0
) -> tuple[torch.Tensor, Completed]:
    """Run an operator on CPU tensors; the result is a new tensor. See `CustomOperator.run` for `core_order`."""
    torch = import_torch()
    values = values_of(operation, arguments)
    shape = operation.infer(values)
    kept: list[Any] = []
    inputs: dict[int, Buffer] = {}
    for index, value in enumerate(values):
        if isinstance(value, TensorMeta):
            tensor: Any = arguments[index]
            dense = tensor.detach().resolve_neg().contiguous()
            kept.append(dense)
            inputs[index] = Buffer(dense.data_ptr(), value.nbytes)
    result = torch.empty(shape.sizes, dtype=dtype_of(shape.dtype))
    completed = operation.run(values, inputs, shape, Buffer(result.data_ptr(), shape.nbytes), core_order)
    return result, completed


def values_of(operation: CustomOperator, arguments: Sequence[object]) -> list[Value]:
    """Return an operator's arguments as plain values."""
    return [
        value_of(argument, word) for argument, word in zip(arguments, operation.entry.parameters, strict=True)
    ]
