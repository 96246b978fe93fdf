"""Functions of nki.language that compute: each declares a tile in SBUF or PSUM and runs the instructions that it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from neurontools.nki import instructions
from neurontools.nki.context import fail, running, whole
from neurontools.nki.declarations import ndarray, psum
from neurontools.nki.dtypes import to_float32
from neurontools.nki.operators import ACTIVATIONS, OPERATORS, UNARY
from neurontools.nki.tensor import NkiTensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.nki.operators import MathOperator


def random_seed(seed: Any) -> None:
    """Seed `rand`."""
    instructions.set_rng_seed(seed)


def _need_tensor(function: str, operand: str, value: Any) -> None:
    if not isinstance(value, NkiTensor):
        fail(function, f"{operand} is a {type(value).__name__}, not a tensor")


def load(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Load a tensor from HBM to SBUF."""
    _need_tensor("load", "src", src)
    shape = src.shape if src.ndim > 1 else (src.shape[0], 1)
    made = ndarray(shape, dtype or src.dtype)
    instructions.dma_copy(made, src)
    return made


def store(dst: NkiTensor, value: NkiTensor) -> NkiTensor:
    """Store a tile to HBM."""
    _need_tensor("store", "dst", dst)
    if dst.on_chip:
        fail(
            "store",
            "dst is on the chip, must be in HBM",
            "copy with nl.copy or nisa.tensor_copy",
            dst.storage.allocation,
        )
    instructions.dma_copy(dst, value)
    return dst


def load_transpose2d(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Load a tensor from HBM and transpose it."""
    made = ndarray((src.shape[1], src.shape[0]), src.dtype)
    instructions.dma_transpose(made, src)
    return made if dtype in {None, src.dtype} else copy(made, dtype=dtype)


def apply(operator: MathOperator, operands: Sequence[Any], dtype: Any, options: dict[str, Any]) -> NkiTensor:
    """Compute an operator of tiles and numbers by the instruction that has it, and return the result in SBUF."""
    if options:
        fail(operator.name, f"unknown argument {next(iter(options))!r}")
    tiles = [item for item in operands if isinstance(item, NkiTensor)]
    if not tiles:
        fail(operator.name, "needs a tile", "compute with numbers in Python")
    if len(operands) > operator.arity or any(item is None for item in operands):
        fail(operator.name, f"takes {operator.arity} operands, tiles or numbers, not {len(operands)} or None")
    shape = tuple(np.broadcast_shapes(*[tile.shape for tile in tiles]))
    made = ndarray(shape, dtype or tiles[0].dtype)
    if operator.arity == 1 or len(operands) == 1:
        _apply_unary(operator, made, tiles[0])
        return made
    first, second = operands[:2]
    if isinstance(first, NkiTensor) and isinstance(second, NkiTensor):
        if first.shape == second.shape == shape:
            instructions.tensor_tensor(made, first, second, operator)
        elif second.free_size == 1 and first.shape == shape:
            instructions.tensor_scalar(made, first, operator, second)
        elif first.free_size == 1 and second.shape == shape:
            instructions.tensor_scalar(made, second, operator, first, reverse0=True)
        else:
            running().launch.warn(
                "compiler",
                f"{operator.name}: the compiler does not broadcast {first.shape} and {second.shape}",
            )
            instructions.tensor_tensor(made, _broadcast(first, shape), _broadcast(second, shape), operator)
        return made
    reverse = not isinstance(first, NkiTensor)
    tile, number = (second, first) if reverse else (first, second)
    instructions.tensor_scalar(made, tile, operator, number, reverse0=reverse)
    return made


def _broadcast(tile: NkiTensor, shape: tuple[int, ...]) -> NkiTensor:
    result = tile
    if result.shape[0] != shape[0]:
        made = ndarray((shape[0], *tile.shape[1:]), tile.dtype)
        made.write(np.broadcast_to(tile.read("operand"), made.shape))
        result = made
    for dim in range(1, result.ndim):
        if result.shape[dim] != shape[dim]:
            result = result.broadcast(dim, shape[dim])
    return result


def _apply_unary(operator: MathOperator, made: NkiTensor, tile: NkiTensor) -> None:
    if operator.name == "copy":
        instructions.tensor_copy(made, tile)
    elif operator.name in ACTIVATIONS - UNARY:
        instructions.activation(made, operator, tile)
    elif operator.name == "reciprocal":
        instructions.reciprocal(made, tile)
    else:
        instructions.tensor_scalar(made, tile, operator, None)


copy = OPERATORS["copy"]


def _reduce(operator: str, x: NkiTensor, axis: Any, dtype: Any, keepdims: bool) -> NkiTensor:
    _need_tensor(operator, "x", x)
    given = [whole(operator, "axis", item) for item in (axis if isinstance(axis, list | tuple) else (axis,))]
    if any(not -x.ndim <= item < x.ndim for item in given):
        fail(operator, f"axis {axis} does not exist, x has {x.ndim} dimensions", "", x.storage.allocation)
    axes = {item % x.ndim for item in given}
    shape = [1 if dim in axes else size for dim, size in enumerate(x.shape)]
    if not keepdims:
        shape = [size for dim, size in enumerate(x.shape) if dim not in axes]
        shape += [1] * (2 - len(shape))
    made = ndarray(shape, dtype or x.dtype)
    instructions.tensor_reduce(made, OPERATORS[operator], x, given)
    return made


def sum(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:  # noqa: A001
    """Add up the last free dimensions."""
    return _reduce("add", x, axis, dtype, keepdims)


def max(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:  # noqa: A001
    """Return the largest values over the last free dimensions."""
    return _reduce("maximum", x, axis, dtype, keepdims)


def min(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:  # noqa: A001
    """Return the smallest values over the last free dimensions."""
    return _reduce("minimum", x, axis, dtype, keepdims)


def prod_(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Multiply the last free dimensions."""
    return _reduce("multiply", x, axis, dtype, keepdims)


def mean(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Return the mean over the last free dimensions."""
    total = _reduce("add", x, axis, "float32", keepdims)
    made = ndarray(total.shape, dtype or x.dtype)
    instructions.tensor_scalar(made, total, OPERATORS["multiply"], total.size / x.size)
    return made


def var(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Return the variance over the last free dimensions."""
    average = mean(x, axis, "float32", keepdims=True)
    centred = apply(OPERATORS["subtract"], (x, average), "float32", {})
    return mean(apply(OPERATORS["square"], (centred,), "float32", {}), axis, dtype or x.dtype, keepdims)


def all(x: NkiTensor, axis: Any, dtype: Any = None) -> NkiTensor:  # noqa: A001
    """Return whether all elements of the last free dimensions are not 0."""
    return _reduce("logical_and", x, axis, dtype, keepdims=False)


def softmax(x: NkiTensor, axis: Any = -1, dtype: Any = None) -> NkiTensor:
    """Return the softmax over the last dimension."""
    largest = max(x, axis, "float32", keepdims=True)
    shifted = apply(OPERATORS["subtract"], (x, largest), "float32", {})
    exponentials = apply(OPERATORS["exp"], (shifted,), "float32", {})
    total = sum(exponentials, axis, "float32", keepdims=True)
    return apply(
        OPERATORS["multiply"],
        (exponentials, apply(OPERATORS["reciprocal"], (total,), None, {})),
        dtype or x.dtype,
        {},
    )


def rms_norm(
    x: NkiTensor,
    w: NkiTensor,
    axis: Any,
    n: int,
    epsilon: float = 1e-6,
    dtype: Any = None,
    compute_dtype: Any = None,
) -> NkiTensor:
    """Return `x / RMS(x) * w`, the mean over `n` elements."""
    kind = compute_dtype or "float32"
    squares = apply(OPERATORS["square"], (x,), kind, {})
    total = sum(squares, axis, "float32", keepdims=True)
    scale = ndarray(total.shape, "float32")
    instructions.tensor_scalar(
        scale, total, OPERATORS["multiply"], 1 / n, op1=OPERATORS["add"], operand1=epsilon
    )
    root = apply(OPERATORS["rsqrt"], (scale,), "float32", {})
    normal = apply(OPERATORS["multiply"], (x, root), kind, {})
    return apply(OPERATORS["multiply"], (normal, w), dtype or x.dtype, {})


def where(condition: NkiTensor, x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """Select elements of x where a condition holds, of y elsewhere."""
    tiles = [item for item in (x, y) if isinstance(item, NkiTensor)]
    made = ndarray(condition.shape, dtype or (tiles[0].dtype if tiles else condition.dtype))
    values = [
        to_float32(np.broadcast_to(item.read("operand"), made.shape))
        if isinstance(item, NkiTensor)
        else np.float32(item)
        for item in (x, y)
    ]
    made.write(np.where(condition.read("condition") != 0, *values))
    running().issue(
        "select_reduce", "vector", tuple(item.access() for item in (condition, *tiles)), (made.access(),)
    )
    return made


def dropout(x: NkiTensor, rate: Any, dtype: Any = None) -> NkiTensor:
    """Replace elements with zeros at random."""
    made = ndarray(x.shape, x.dtype)
    instructions.dropout(made, x, rate)
    return made if dtype is None else copy(made, dtype=dtype)


def expand_dims(x: NkiTensor, axis: int) -> NkiTensor:
    """Return the view with a dimension of size 1 inserted."""
    return x.expand_dim(axis)


def broadcast_to(x: NkiTensor, shape: Sequence[int], dtype: Any = None) -> NkiTensor:
    """Copy a tile to a larger shape."""
    made = ndarray(shape, dtype or x.dtype)
    if x.shape[0] == shape[0]:
        instructions.tensor_copy(made, _broadcast(x, tuple(shape)))
    else:
        made.write(np.broadcast_to(x.read("x"), tuple(shape)))
        running().issue("partition_broadcast", "tensor", (x.access(),), (made.access(),))
    return made


def transpose(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Return the transpose in PSUM."""
    made = ndarray((x.free_size, x.shape[0]), x.dtype, psum)
    instructions.nc_transpose(made, x)
    return made if dtype in {None, x.dtype} else copy(made, dtype=dtype)


def matmul(x: NkiTensor, y: NkiTensor, transpose_x: bool = False) -> NkiTensor:
    """Return `x @ y` in PSUM; `transpose_x` says that x is transposed already."""
    if not transpose_x:
        running().launch.warn("compiler", "matmul: the compiler needs transpose_x=True")
        turned = transpose(x)
        x = ndarray(turned.shape, x.dtype)
        instructions.tensor_copy(x, turned)
    made = ndarray((x.free_size, y.free_size), "float32", psum)
    instructions.nc_matmul(made, x, y)
    return made


def gather_flattened(data: NkiTensor, indices: NkiTensor, axis: int = 0, dtype: Any = None) -> NkiTensor:
    """Gather elements of each partition by index."""
    del axis
    made = ndarray(indices.shape, data.dtype)
    instructions.nc_n_gather(made, data, indices)
    return made if dtype is None else copy(made, dtype=dtype)
