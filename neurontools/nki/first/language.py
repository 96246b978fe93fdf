"""The functions of nki.language (first generation): transfers, reductions, products and selections of tiles.

Sources: AWS Neuron documentation 2.26, "nki.language".
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from neurontools.nki import instructions
from neurontools.nki.context import fail, running
from neurontools.nki.dtypes import to_float32
from neurontools.nki.first import reductions, tensors
from neurontools.nki.first.allocation import hbm, private_hbm, psum, sbuf, shared_hbm
from neurontools.nki.first.dtypes import PUBLIC, name_of
from neurontools.nki.first.errors import refuse_size
from neurontools.nki.first.execution import (
    PSUM,
    SBUF,
    absent,
    broadcast,
    broadcast_shape,
    check_fits,
    compute,
    destination,
    fill,
    need_on_chip,
    new_tile,
    part_for,
    tile_of,
)
from neurontools.nki.first.index import Index, arange, mgrid, selection
from neurontools.nki.first.loops import (
    affine_range,
    nc,
    sequential_range,
    spmd_dim,
    static_range,
)
from neurontools.nki.first.operands import documented
from neurontools.nki.first.tensors import ParDim
from neurontools.nki.first.tile import Tile
from neurontools.nki.first.views import refuse_dynamic, summed
from neurontools.nki.language import device_print as print_elements
from neurontools.nki.language import ds, num_programs, program_id, program_ndim, tile_size
from neurontools.nki.operators import OPERATORS, as_operator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.nki.first.index import Selection
    from neurontools.nki.memory import MemoryRegion
    from neurontools.nki.tensor import NkiTensor

_MATRIX_DIMS = 2


# ---- transfers


def _need_hbm(function: str, tile: Tile) -> None:
    if tile.on_chip:
        fail(
            function,
            f"`{tile.label}` is on the chip, must be in HBM",
            "copy it with nl.copy",
            tile.operand.storage.allocation,
        )


def load(src: Any, *, mask: Any = None, dtype: Any = None) -> Tile:
    """Load a tile from HBM to SBUF."""
    source = tile_of(src, "load")
    _need_hbm("load", source)
    kind = name_of(dtype) if dtype is not None else source.operand.dtype
    return compute("load", source.shape, kind, mask, instructions.dma_copy, source)


def store(dst: Any, value: Any, *, mask: Any = None) -> None:
    """Store a tile or a number to HBM."""
    target = tile_of(dst, "store")
    _need_hbm("store", target)
    selected = selection(mask, target.shape)
    if selected is False:
        return
    check_mutable("store", target)
    if isinstance(value, int | float | np.generic):
        source = new_tile(target.shape, target.operand.dtype)
        fill(source, value)
    else:
        source = tile_of(value, "store")
    need_on_chip("store", source)
    check_fits("store", target, source, ("dst", "value"))
    write_hbm("store", target, source, selected)


def check_mutable(function: str, target: Tile) -> None:
    """Refuse to write a parameter that the kernel does not declare mutable."""
    allocation = target.operand.storage.allocation
    if allocation.is_argument and allocation in running().launch.constants.get("immutable", ()):
        fail(
            function,
            f"Cannot update immutable parameter `{allocation.label}`",
            "annotate it with nki.typing.mutable_tensor and return it, or write to a tensor of the kernel",
        )


def write_hbm(function: str, target: Tile, source: Tile, selected: Selection, **options: Any) -> None:
    """Copy a tile to HBM; what is in PSUM goes through SBUF."""
    part = selected if source.size == target.size else None
    src = part_for(source, part, target.shape, function)
    if src.buffer is PSUM:
        copied = new_tile(src.shape, src.dtype).operand
        instructions.tensor_copy(copied, src)
        src = copied
    dst = destination(target, selected, function)
    if src.size != dst.size:
        src = broadcast(src, dst.shape)
    instructions.dma_copy(dst, src, **options)


def load_transpose2d(src: Any, *, mask: Any = None, dtype: Any = None) -> Tile:
    """Load a matrix from HBM, transposed."""
    source = tile_of(src, "load_transpose2d")
    _need_hbm("load_transpose2d", source)
    made = transposed("load_transpose2d", source, mask, instructions.dma_transpose)
    return made if dtype is None or made.operand.dtype == name_of(dtype) else made.astype(dtype)


def transposed(function: str, source: Tile, mask: Any, emit: Any, region: MemoryRegion = SBUF) -> Tile:
    """Return the transpose of a matrix by an instruction; the mask selects elements of the source."""
    if source.lookups:
        refuse_dynamic(function, source.operand)
    rows, columns = source.shape[0], source.operand.free_size
    selected = selection(mask, source.shape)
    if selected is False:
        return absent((columns, rows), source.operand.dtype, region)
    made = new_tile((columns, rows), source.operand.dtype, region, filled=selected is not None)
    if isinstance(selected, tuple):
        made.valid = tuple(reversed(selected)) if len(selected) == _MATRIX_DIMS else None
    elif selected is not None:
        fail(function, "the mask is not a rectangle")
    emit(destination(made, made.valid, function), source.resolved(function, selected))
    made.producer = running().records[-1]
    return made


def atomic_rmw(dst: Any, value: Any, op: Any, *, mask: Any = None) -> None:
    """Add a tile to elements in HBM."""
    add_to_hbm(
        "atomic_rmw", tile_of(dst, "atomic_rmw"), tile_of(value, "atomic_rmw"), op, selection(mask, dst.shape)
    )


def add_to_hbm(function: str, target: Tile, source: Tile, op: Any, selected: Selection) -> None:
    """Read, modify and write elements in HBM; only addition exists."""
    operator = as_operator(op)
    if operator is None or operator.name != "add":
        fail(function, f"op is {op!r}, only np.add is supported")
    if selected is False:
        return
    dst, src = target.resolved(function, selected), part_for(source, selected, target.shape, function)
    values = to_float32(src.read("value")).reshape(dst.shape)
    dst.write(to_float32(dst.array()) + summed(dst, values))
    running().issue("dma_copy", "dma", (src.access(), dst.access()), (dst.access(),), accumulates=True)


def broadcast_to(src: Any, *, shape: Sequence[int]) -> Tile:
    """Return a tile repeated along dimensions of size 1."""
    source = tile_of(src, "broadcast_to")
    sizes = tuple(int(size) for size in shape)
    if source.shape == sizes:
        return source
    need_on_chip("broadcast_to", source)
    return Tile(broadcast(source.resolved("broadcast_to"), sizes))


def index_tile(index: Index, dtype: str = "int32", mask: Any = None) -> Tile:
    """Return a tile with the numbers of an index expression."""

    def emit(dst: NkiTensor) -> None:
        values = index.values().reshape(dst.shape)
        dst.write(values.astype(np.float32) if "float" in dtype else values)
        running().issue("iota", "gpsimd", (), (dst.access(),))

    made = compute("iota", index.shape, dtype, None, emit)
    made.valid = selection(mask, made.shape)
    return made


def static_cast(input_data: Any, dtype: Any) -> Any:
    """Return an array or a tile as another type."""
    return input_data.astype(dtype)


def device_print(prefix: str, x: Any, *, mask: Any = None) -> None:
    """Print a tile."""
    selected = selection(mask, x.shape) if isinstance(x, Tile) else None
    if selected is not False:
        print_elements(prefix, x.resolved("device_print", selected) if isinstance(x, Tile) else x)


def expand_dims(data: Any, axis: Any) -> Tile:
    """Return the view with dimensions of size 1 inserted."""
    return tile_of(data, "expand_dims").expand_dims(axis)


# ---- products


def matmul(x: Any, y: Any, *, transpose_x: bool = False, mask: Any = None) -> Tile:
    """Return `x @ y` in PSUM; `transpose_x` says that x is transposed already."""
    left, right = in_sbuf(tile_of(x, "matmul")), in_sbuf(tile_of(y, "matmul"))
    if not transpose_x and selection(mask, left.shape) is not False:
        left = in_sbuf(transpose(left))
    return product(left, right, mask)


def in_sbuf(tile: Tile) -> Tile:
    """Return a tile in SBUF: itself, or a copy."""
    if tile.operand.buffer is not PSUM:
        return tile
    return compute("copy", tile.shape, tile.operand.dtype, None, instructions.tensor_copy, tile)


def product(
    stationary: Tile, moving: Tile, mask: Any, *, dtype: str = "float32", pairs: int = 1, **options: Any
) -> Tile:
    """Return `stationary.T @ moving` in PSUM; the mask's first axis is the contracted one, its second the moving columns."""
    need_on_chip("nc_matmul", stationary, moving)
    shape = (stationary.operand.free_size // pairs, moving.operand.free_size // pairs)
    selected = selection(mask, moving.shape)
    if selected is False:
        return absent(shape, dtype, PSUM)
    if isinstance(selected, np.ndarray):
        fail("nc_matmul", "the mask is not a rectangle")
    made = new_tile(shape, dtype, PSUM, filled=selected is not None)
    rows = None
    if selected is not None:
        rows = (selected[0], *[slice(0, size) for size in stationary.shape[1:]])
        made.valid = (
            slice(0, shape[0]),
            selected[1] if len(selected) == _MATRIX_DIMS else slice(0, shape[1]),
        )
    dst = destination(made, made.valid, "nc_matmul")
    instructions.nc_matmul(
        dst,
        stationary.resolved("nc_matmul", rows),
        moving.resolved("nc_matmul", selected),
        accumulate=False,
        **options,
    )
    made.producer = running().records[-1]
    return made


def transpose(x: Any, *, dtype: Any = None, mask: Any = None) -> Tile:
    """Return the transpose of a tile."""
    source = tile_of(x, "transpose")
    need_on_chip("transpose", source)
    limit = running().limits.stationary_columns
    if source.ndim > _MATRIX_DIMS:
        refuse_size(
            "transpose",
            f"parameter '{source.label}' of 'transpose' exceed max supported number of dimensions of 2.",
        )
    if source.shape[1] > limit:
        refuse_size(
            "transpose",
            f"size of dimension 1 in '{source.label}' of 'transpose' exceed architecture limitation of {limit}.",
        )
    made = transposed("transpose", in_sbuf(source), mask, instructions.nc_transpose, PSUM)
    return made if dtype is None or made.operand.dtype == name_of(dtype) else made.astype(dtype)


# ---- selections


def where(condition: Any, x: Any, y: Any, *, dtype: Any = None, mask: Any = None) -> Tile:
    """Select elements of x where a condition holds, of y elsewhere."""
    tiles = [item for item in (x, y) if isinstance(item, Tile)]
    kind = name_of(dtype) if dtype is not None else (tiles[0] if tiles else condition).operand.dtype
    shape = broadcast_shape("where", condition.shape, *[item.shape for item in tiles])
    need_on_chip("where", condition, *tiles)

    def emit(dst: NkiTensor, holds: NkiTensor, *values: Any) -> None:
        views = [holds, *[item for item in values if not isinstance(item, int | float | np.generic)]]
        arrays = [
            np.float32(item)
            if isinstance(item, int | float | np.generic)
            else to_float32(broadcast(item, dst.shape).read("operand"))
            for item in values
        ]
        dst.write(np.where(broadcast(holds, dst.shape).read("condition") != 0, *arrays))
        running().issue("select_reduce", "vector", tuple(view.access() for view in views), (dst.access(),))

    return compute("where", shape, kind, mask, emit, condition, x, y)


def gather_flattened(data: Any, indices: Any, *, mask: Any = None, dtype: Any = None) -> Tile:
    """Gather elements of each partition by index."""
    kind = name_of(dtype) if dtype is not None else data.operand.dtype
    source = data.resolved("gather_flattened")
    return compute(
        "gather_flattened",
        indices.shape,
        kind,
        mask,
        lambda dst, numbers: instructions.nc_n_gather(dst, source, numbers),
        indices,
    )


def random_seed(seed: Any, *, mask: Any = None) -> None:
    """Seed the random numbers of the kernel."""
    if selection(mask, (1, 1)) is False:
        return
    if isinstance(seed, Tile):
        instructions.set_rng_seed(seed[0:1, 0:1].resolved("random_seed"))
    else:
        tile = new_tile((1, 1), "int32")
        fill(tile, int(seed))
        instructions.set_rng_seed(tile.operand)


def dropout(x: Any, rate: Any, *, dtype: Any = None, mask: Any = None) -> Tile:
    """Replace elements with zeros at random."""
    source = tile_of(x, "dropout")
    made = compute("dropout", source.shape, source.operand.dtype, mask, instructions.dropout, source, rate)
    return made if dtype is None or made.dtype == dtype else made.astype(dtype)


def all_reduce(
    x: Any,
    op: Any,
    program_axes: Any,
    *,
    dtype: Any = None,
    mask: Any = None,
    parallel_reduce: bool = True,
    asynchronous: bool = False,
) -> Tile:
    """Refuse a reduction over programs of a grid: they run one after another here."""
    del op, program_axes, dtype, mask, parallel_reduce, asynchronous
    fail(
        "all_reduce",
        "programs of a grid run one after another and cannot wait for each other",
        "reduce their results in another kernel",
        x.operand.storage.allocation,
    )


class _Constants:
    """Numbers of a data type.

    Args:
        smallest: the most negative number.
    """

    def __init__(self, smallest: float) -> None:
        self.min = smallest


def finfo(dtype: Any) -> Any:
    """Return the limits of a floating-point type."""
    return ml_dtypes.finfo(dtype)


def sizeinbytes(dtype: Any) -> int:
    """Return the bytes of an element of a type."""
    return int(np.dtype(dtype).itemsize)


fp32 = _Constants(float(np.finfo(np.float32).min))
bfp16 = _Constants(-math.inf)
_OPERATOR_NAMES = [
    "abs",
    "add",
    "arctan",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "ceil",
    "copy",
    "cos",
    "divide",
    "equal",
    "erf",
    "erf_dx",
    "exp",
    "floor",
    "fmod",
    "gelu",
    "gelu_apprx_sigmoid",
    "gelu_apprx_tanh",
    "gelu_dx",
    "greater",
    "greater_equal",
    "invert",
    "left_shift",
    "less",
    "less_equal",
    "log",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "mish",
    "mod",
    "multiply",
    "negative",
    "not_equal",
    "power",
    "reciprocal",
    "relu",
    "right_shift",
    "rsqrt",
    "sigmoid",
    "sign",
    "silu",
    "silu_dx",
    "sin",
    "softplus",
    "sqrt",
    "square",
    "subtract",
    "tan",
    "tanh",
    "trunc",
]
NAMES: dict[str, Any] = {
    **{name: OPERATORS[name] for name in _OPERATOR_NAMES},
    **PUBLIC,
    **{
        function.__name__: documented(function)
        for function in (
            affine_range, reductions.all, all_reduce, arange, atomic_rmw, broadcast_to, device_print, dropout, ds, expand_dims, finfo,
            gather_flattened, load, load_transpose2d, reductions.loop_reduce, matmul, reductions.max, reductions.mean, reductions.min, nc, num_programs, reductions.prod, program_id,
            program_ndim, random_seed, reductions.rms_norm, sequential_range, reductions.softmax, spmd_dim, static_cast, static_range, store, reductions.sum,
            transpose, reductions.var, where, tensors.empty_like, tensors.full, tensors.ndarray, tensors.ones, tensors.rand,
            tensors.shared_constant, tensors.shared_identity_matrix, tensors.zeros, tensors.zeros_like,
        )
    },
    "bfp16": bfp16,
    "fp32": fp32,
    "hbm": hbm,
    "mgrid": mgrid,
    "par_dim": ParDim,
    "private_hbm": private_hbm,
    "psum": psum,
    "sbuf": sbuf,
    "shared_hbm": shared_hbm,
    "tile_size": tile_size,
}  # fmt: skip
"""What `neuronxcc.nki.language` offers, by name."""
