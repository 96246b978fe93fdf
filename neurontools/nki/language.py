"""The functions of nki.language (second generation): tensors, loops, program numbers, and wrappers of instructions."""

from __future__ import annotations

import builtins
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from neurontools.nki import instructions
from neurontools.nki.context import fail, is_running, running
from neurontools.nki.dtypes import FLOATS, INTEGERS, dtype_name, to_float32
from neurontools.nki.limits import chosen_target, limits_of
from neurontools.nki.locations import user_location
from neurontools.nki.memory import ON_CHIP, Allocation, MemoryRegion, Storage
from neurontools.nki.operators import ACTIVATIONS, OPERATORS
from neurontools.nki.tensor import DynamicSlice, NkiTensor, VirtualRegister

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from neurontools.nki.operators import MathOperator

sbuf, psum, hbm = MemoryRegion.sbuf, MemoryRegion.psum, MemoryRegion.hbm
private_hbm, shared_hbm = MemoryRegion.private_hbm, MemoryRegion.shared_hbm
_MOST_ITERATIONS = 1_000_000
_SHARED = (MemoryRegion.shared_hbm, MemoryRegion.hbm)


def is_hbm(buffer: MemoryRegion) -> bool:
    """Return whether a memory is HBM."""
    return buffer not in ON_CHIP


def is_on_chip(buffer: MemoryRegion) -> bool:
    """Return whether a memory is SBUF or PSUM."""
    return buffer in ON_CHIP


def is_psum(buffer: MemoryRegion) -> bool:
    """Return whether a memory is PSUM."""
    return buffer is MemoryRegion.psum


def is_sbuf(buffer: MemoryRegion) -> bool:
    """Return whether a memory is SBUF."""
    return buffer is MemoryRegion.sbuf


# ---- tensors


def ndarray(
    shape: Sequence[int],
    dtype: Any,
    buffer: Any = sbuf,
    name: str = "",
    address: tuple[int, int] | None = None,
) -> NkiTensor:
    """Declare a tensor; on the chip the first dimension is the partitions."""
    sizes = tuple(int(size) for size in ((shape,) if isinstance(shape, int) else shape))
    region = buffer if isinstance(buffer, MemoryRegion) else MemoryRegion(str(buffer))
    core = running()
    allocation = Allocation(
        region,
        sizes,
        dtype_name(dtype),
        user_location(),
        name,
        address,
        -1 if region in _SHARED else core.number,
    )
    check_declaration(allocation)
    if region in _SHARED and len(core.launch.cores) > 1:
        storage = _shared_storage(allocation)
    else:
        core.launch.allocations.append(allocation)
        storage = Storage(allocation)
    return NkiTensor(sizes, allocation.dtype, storage)


def _shared_storage(allocation: Allocation) -> Storage:
    """Return the storage of a tensor in shared HBM: cores share it by order of declaration."""
    core = running()
    key = ("shared", core.shared_count)
    core.shared_count += 1
    constants = core.launch.constants
    if key not in constants:
        core.launch.allocations.append(allocation)
        constants[key] = Storage(allocation)
    storage: Storage = constants[key]
    if (storage.allocation.shape, storage.allocation.dtype) != (allocation.shape, allocation.dtype):
        fail(
            "ndarray",
            f"the cores declare different tensors in shared HBM: {storage.allocation.shape} and {allocation.shape}",
            "declare shared tensors in the same order on all cores, or use nl.private_hbm",
            storage.allocation,
        )
    return storage


def check_declaration(allocation: Allocation) -> None:
    """Refuse a declaration that does not fit into its memory."""
    limits = running().limits
    shape, region = allocation.shape, allocation.region
    if not shape or builtins.min(shape) < 1:
        fail("ndarray", f"shape {shape} has a size that is not positive")
    if region not in ON_CHIP:
        return
    if len(shape) < 2:
        fail(
            "ndarray",
            f"shape {shape} has {len(shape)} dimensions, tensors on the chip have partitions and free dimensions",
            "add a dimension of size 1",
        )
    if shape[0] > limits.partitions:
        fail(
            "ndarray",
            f"partition dimension {shape[0]} exceeds maximum {limits.partitions}",
            "the first dimension is the partitions: tile it by 128",
        )
    memory, most = (
        ("PSUM", limits.psum_partition_bytes) if region is psum else ("SBUF", limits.sbuf_partition_bytes)
    )
    if allocation.partition_bytes > most:
        fail(
            "ndarray",
            f"{allocation.partition_bytes} bytes a partition, {memory} has {most} on {limits.target}",
            "tile the free dimension",
        )
    if allocation.address is not None:
        _check_address(allocation, most)


def _check_address(allocation: Allocation, most: int) -> None:
    assert allocation.address is not None
    partition, offset = allocation.address
    bank = running().limits.psum_bank_bytes
    if allocation.region is psum and offset % bank:
        fail(
            "ndarray",
            f"address {allocation.address} in PSUM must be a multiple of {bank} bytes",
            "start at a bank",
        )
    if partition + allocation.shape[0] > running().limits.partitions:
        fail(
            "ndarray",
            f"address {allocation.address}: partitions {partition} to {partition + allocation.shape[0] - 1} do not exist",
        )
    if offset + allocation.partition_bytes > most:
        fail(
            "ndarray",
            f"address {allocation.address}: ends at byte {offset + allocation.partition_bytes} of {most} a partition",
        )


def _filled(shape: Sequence[int], value: Any, dtype: Any, buffer: Any, name: str) -> NkiTensor:
    made = ndarray(shape, dtype, buffer, name)
    if made.on_chip:
        instructions.memset(made, value)
    else:
        made.write(np.full(made.shape, value, dtype=np.float32))
    return made


def zeros(shape: Sequence[int], dtype: Any, buffer: Any = sbuf, name: str = "") -> NkiTensor:
    """Declare a tensor of zeros."""
    return _filled(shape, 0, dtype, buffer, name)


def ones(shape: Sequence[int], dtype: Any, buffer: Any = sbuf, name: str = "") -> NkiTensor:
    """Declare a tensor of ones."""
    return _filled(shape, 1, dtype, buffer, name)


def full(shape: Sequence[int], fill_value: Any, dtype: Any, buffer: Any = sbuf, name: str = "") -> NkiTensor:
    """Declare a tensor of one value."""
    return _filled(shape, fill_value, dtype, buffer, name)


def zeros_like(x: NkiTensor, dtype: Any = None, buffer: Any = None, name: str = "") -> NkiTensor:
    """Declare a tensor of zeros of the shape and type of another."""
    return zeros(x.shape, dtype or x.dtype, buffer or x.buffer, name)


def empty_like(x: NkiTensor, dtype: Any = None, buffer: Any = None, name: str = "") -> NkiTensor:
    """Declare a tensor of the shape and type of another."""
    return ndarray(x.shape, dtype or x.dtype, buffer or x.buffer, name)


def rand(shape: Sequence[int], dtype: Any, buffer: Any = sbuf, name: str = "") -> NkiTensor:
    """Declare a tensor of uniform numbers of 0 to 1."""
    from neurontools.nki.instructions.random import uniform

    made = ndarray(shape, dtype, buffer, name)
    made.write(uniform("vector", made.shape))
    running().issue("rand", "vector", (), (made.access(),))
    return made


def random_seed(seed: Any) -> None:
    """Seed `rand`."""
    instructions.set_rng_seed(seed)


def shared_constant(constant: Any) -> NkiTensor:
    """Declare a tensor in shared HBM with the data of an array or a .npy file."""
    data = np.load(constant) if isinstance(constant, str) else np.asarray(constant)
    if data.dtype in {np.dtype(np.float64), np.dtype(np.int64)}:
        data = data.astype(np.float32 if data.dtype.kind == "f" else np.int32)
    made = ndarray(data.shape, data.dtype, shared_hbm)
    made.write(data)
    return made


def shared_identity_matrix(n: int, dtype: Any = "uint8", dst: NkiTensor | None = None) -> NkiTensor:
    """Return an identity matrix in SBUF."""
    made = ndarray((n, n), dtype) if dst is None else dst
    made.write(np.eye(n, dtype=np.float32))
    running().issue("shared_identity_matrix", "dma", (), (made.access(),))
    return made


# ---- loops and programs


def ds(start: Any, size: int) -> DynamicSlice:
    """Return a slice of `size` elements from `start` on."""
    return DynamicSlice(start, size)


def _range(start: Any, stop: Any = None, step: int = 1) -> range:
    return range(int(start)) if stop is None else range(int(start), int(stop), int(step))


def affine_range(start: Any, stop: Any = None, step: int = 1, **_options: Any) -> Iterator[int]:
    """Return the numbers of a loop that is unrolled, whose iterations the kernel declares independent."""
    return iter(_range(start, stop, step))


sequential_range = static_range = _range


def dynamic_range(start: Any, stop: Any = None, step: int = 1) -> Iterator[VirtualRegister]:
    """Return the numbers of a loop that runs on the device, as registers."""
    numbers = _range(start, stop, step)
    if len(numbers) > _MOST_ITERATIONS:
        _refuse_endless("dynamic_range")
    return (VirtualRegister(number) for number in numbers)


def _refuse_endless(function: str) -> None:
    fail(
        function,
        f"more than {_MOST_ITERATIONS} iterations",
        "the loop does not end: check its bounds or its condition",
    )


def fori_loop(lower: Any, upper: Any, body_fun: Callable[[VirtualRegister], Any], step: int = 1) -> None:
    """Run a function for each number of a loop on the device."""
    for number in dynamic_range(lower, upper, step):
        body_fun(number)


def while_loop(init: Any, body_fun: Callable[[VirtualRegister], VirtualRegister]) -> None:
    """Run a function while the register that it returns is not 0."""
    state = init
    for _ in range(_MOST_ITERATIONS):
        if int(state) == 0:
            return
        state = body_fun(VirtualRegister(int(state)))
        if not isinstance(state, VirtualRegister):
            fail(
                "while_loop",
                f"the body returned a {type(state).__name__}, not a register",
                "return the next condition's register",
            )
    _refuse_endless("while_loop")


def program_id(axis: int = 0) -> int:
    """Return the number of this program along an axis of the grid."""
    program = running().program
    return program[axis] if axis < len(program) else 0


def num_programs(axes: Any = None) -> int:
    """Return the number of programs along axes of the grid, all by default."""
    grid = running().launch.grid
    if axes is None:
        return prod(grid)
    return prod(
        grid[axis] if axis < len(grid) else 1 for axis in ((axes,) if isinstance(axes, int) else axes)
    )


def program_ndim() -> int:
    """Return the number of dimensions of the grid; 0 for a launch without one."""
    grid = running().launch.grid
    return len(grid)


@contextmanager
def no_reorder() -> Iterator[None]:
    """Keep program order; here it is always kept."""
    yield


def device_print(print_prefix: str, tensor: Any) -> None:
    """Print a tensor."""
    print(print_prefix, tensor.array() if isinstance(tensor, NkiTensor) else tensor)  # noqa: T201


class _TileSize:
    """Sizes of the device, from the limits of its generation."""

    pmax = 128
    psum_fmax = psum_bank_fmax = 512
    psum_bank_fmax_bytes = 2048
    gemm_stationary_fmax = 128
    gemm_moving_fmax = 512
    bn_stats_fmax = 512
    psum_min_align = 4
    sbuf_min_align = 1

    @staticmethod
    def _limits() -> Any:
        return running().limits if is_running() else limits_of(chosen_target())

    @property
    def psum_num_banks(self) -> int:
        """Banks of PSUM."""
        return int(self._limits().psum_banks)

    @property
    def sbuf_size_bytes(self) -> int:
        """Bytes of SBUF."""
        return int(self._limits().sbuf_partition_bytes * self._limits().partitions)

    @property
    def sbuf_fmax(self) -> int:
        """Most float32 elements a partition of SBUF."""
        return int(self.sbuf_fmax_bytes // 4)

    @property
    def sbuf_fmax_bytes(self) -> int:
        """Bytes a partition of SBUF that kernels can use."""
        return int(self._limits().sbuf_usable_bytes)

    total_available_sbuf_size = sbuf_fmax_bytes


tile_size = _TileSize()

# ---- wrappers of instructions


def load(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Load a tensor from HBM to SBUF."""
    shape = src.shape if src.ndim > 1 else (src.shape[0], 1)
    made = ndarray(shape, dtype or src.dtype)
    instructions.dma_copy(made, src)
    return made


def store(dst: NkiTensor, value: NkiTensor) -> NkiTensor:
    """Store a tile to HBM."""
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
    elif operator.name in ACTIVATIONS and operator.name not in {
        "abs",
        "square",
        "relu",
        "rsqrt",
        "reciprocal",
    }:
        instructions.activation(made, operator, tile)
    elif operator.name == "reciprocal":
        instructions.reciprocal(made, tile)
    else:
        instructions.tensor_scalar(made, tile, operator, None)


copy = OPERATORS["copy"]


def _reduce(operator: str, x: NkiTensor, axis: Any, dtype: Any, keepdims: bool) -> NkiTensor:
    given = (axis,) if isinstance(axis, int) else tuple(axis)
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


NAMES: dict[str, Any] = {
    **OPERATORS,
    **{name if name != "bool" else "bool_": name for name in (*FLOATS, *INTEGERS, "bool")},
    **{
        function.__name__.rstrip("_"): function
        for function in (
            is_hbm, is_on_chip, is_psum, is_sbuf, ndarray, zeros, ones, full, zeros_like, empty_like, rand, random_seed,
            shared_constant, shared_identity_matrix, ds, affine_range, dynamic_range, fori_loop, while_loop, program_id,
            num_programs, program_ndim, no_reorder, device_print, load, store, load_transpose2d, sum, max, min, prod_,
            mean, var, all, softmax, rms_norm, where, dropout, expand_dims, broadcast_to, transpose, matmul,
            gather_flattened,
        )
    },
    "sequential_range": sequential_range,
    "static_range": static_range,
    "sbuf": sbuf,
    "psum": psum,
    "hbm": hbm,
    "private_hbm": private_hbm,
    "shared_hbm": shared_hbm,
    "tile_size": tile_size,
    "range": range,
    "DynamicSlice": DynamicSlice,
}  # fmt: skip
"""What `nki.language` offers, by name."""
