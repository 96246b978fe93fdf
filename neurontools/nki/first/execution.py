"""How instructions of the first generation run: results get memory, masks become views, assignments write in place."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from neurontools.nki import instructions
from neurontools.nki.context import Record, fail, running
from neurontools.nki.dtypes import numpy_dtype
from neurontools.nki.errors import KernelError
from neurontools.nki.first.blocks import BlockTensor
from neurontools.nki.first.dtypes import name_of, promoted, scalar_type
from neurontools.nki.first.errors import refuse_size
from neurontools.nki.first.index import Index, is_number, selection
from neurontools.nki.first.tile import Tile
from neurontools.nki.first.views import Gathered, TileView, plain_view, reshaped
from neurontools.nki.generations import without_hints
from neurontools.nki.instructions.matrix import accumulate_product
from neurontools.nki.locations import user_declaration
from neurontools.nki.memory import ON_CHIP, Allocation, MemoryRegion, Storage
from neurontools.nki.operators import ACTIVATIONS, OPERATORS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.nki.first.index import Selection
    from neurontools.nki.operators import MathOperator
    from neurontools.nki.tensor import NkiTensor

SBUF, PSUM = MemoryRegion.sbuf, MemoryRegion.psum
_LEAST_DIMS = 2
_OF_TENSOR_ENGINE = frozenset({"nc_matmul", "nc_transpose"})


def on_chip_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of a tile, which has partitions and at least one free dimension."""
    sizes = tuple(int(size) for size in shape)
    return sizes + (1,) * (_LEAST_DIMS - len(sizes))


def new_tile(shape: Sequence[int], dtype: str, region: MemoryRegion = SBUF, *, filled: bool = False) -> Tile:
    """Return a tile for the result of an instruction.

    Args:
        shape: partitions, then free sizes.
        dtype: NKI name of the type.
        region: SBUF or PSUM.
        filled: whether elements that the instruction leaves out read as not written.
    """
    core = running()
    sizes = on_chip_shape(shape)
    most = core.limits.partitions
    if sizes[0] > most:
        refuse_size(
            "tile",
            f"number of partitions {sizes[0]} exceed architecture limitation of {most}.",
            "tile the partition dimension",
        )
    allocation = Allocation(region, sizes, dtype, user_declaration(), core=core.number)
    core.launch.allocations.append(allocation)
    storage = Storage(allocation, None if filled else np.empty(prod(sizes), numpy_dtype(dtype)))
    storage.is_complete = True
    return Tile(plain_view(storage, sizes, dtype), is_result=True)


def absent(shape: Sequence[int], dtype: str, region: MemoryRegion = SBUF) -> Tile:
    """Return the result of an instruction that a mask leaves out altogether."""
    sizes = on_chip_shape(shape)
    allocation = Allocation(region, sizes, dtype, user_declaration())
    held = numpy_dtype(dtype)
    data = np.zeros(1, held) if held.kind in "iub" else np.full(1, np.nan, dtype=np.float32).astype(held)
    operand = TileView(sizes, dtype, Storage(allocation, data))
    operand.strides = (0,) * len(sizes)
    return Tile(operand, valid=False)


def tile_of(value: Any, function: str) -> Tile:
    """Return an operand that must be a tile or a tensor."""
    if isinstance(value, BlockTensor):
        value.refuse(function)
    if isinstance(value, Index):
        return running().language.index_tile(value)
    if not isinstance(value, Tile):
        fail(function, f"an operand is a {type(value).__name__}, not a tile")
    return value


def part_for(tile: Tile, selected: Selection, shape: tuple[int, ...], function: str) -> NkiTensor:
    """Return the view of an operand for the selected elements of a shape that it broadcasts to."""
    if selected is None or tile.shape == shape:
        return tile.resolved(function, selected)
    if isinstance(selected, tuple):
        box = tuple(
            item if size == wanted else slice(0, size)
            for item, size, wanted in zip(selected, tile.shape, shape, strict=False)
        )
        return tile.resolved(function, box + tuple(slice(0, size) for size in tile.shape[len(box) :]))
    return tile.resolved(function)


def destination(tile: Tile, selected: Selection, function: str, *, skip: bool = False) -> NkiTensor:
    """Return the view of a destination for the selected elements."""
    if isinstance(selected, np.ndarray) and not tile.bounds and not tile.lookups:
        view = tile.operand
        return Gathered(view, view.offset + Index(view.shape, view.strides, 0).values(), selected)
    return tile.resolved(function, selected, skip=skip)


def compute(
    function: str,
    shape: Sequence[int],
    dtype: str,
    mask: Any,
    emit: Callable[..., Any],
    *operands: Any,
    region: MemoryRegion = SBUF,
) -> Tile:
    """Run an elementwise instruction and return its result.

    Args:
        function: its name, for errors.
        shape: shape of the result.
        dtype: NKI name of its type.
        mask: which elements are computed.
        emit: runs the instruction on views: destination first, then operands; numbers are passed on.
        operands: tiles of a shape that broadcasts to the result's, or numbers.
        region: where the result is.
    """
    sizes = on_chip_shape(shape)
    selected = selection(mask, sizes)
    if selected is False:
        return absent(sizes, dtype, region)
    made = new_tile(sizes, dtype, region, filled=selected is not None)
    views = [
        part_for(item, selected, sizes, function) if isinstance(item, Tile) else item for item in operands
    ]
    emit(destination(made, selected, function), *views)
    made.valid = selected
    made.producer = running().records[-1]
    return made


def apply(operator: MathOperator, operands: Sequence[Any], dtype: Any, options: dict[str, Any]) -> Any:
    """Compute an operator of tiles and numbers by the instruction that has it: what calls of `nl.add` do."""
    values = [
        *operands,
        *[options.pop(keyword) for keyword in ("x", "y", "src", "data") if keyword in options],
    ]
    if len(values) > operator.arity:  # nl.mod and nl.fmod take dtype and mask by position
        dtype, options = (
            values[operator.arity],
            dict(zip(("mask",), values[operator.arity + 1 :], strict=False), **options),
        )
        values = values[: operator.arity]
    mask = options.pop("mask", None)
    if options:
        without_hints(operator.name, options, [*["x", "y"][: operator.arity], "dtype", "mask"])
    tiles = [tile_of(item, operator.name) for item in values if not _is_scalar(item)]
    if not tiles:
        return operator.compute(*[np.float32(item) for item in values])
    kind = name_of(dtype) if dtype is not None else _result_type(operator, values)
    if len(values) == 1:
        if operator.name == "invert" and tiles[0].operand.dtype == "bool":
            operator = OPERATORS["logical_not"]
        return _unary(operator, tiles[0], kind, mask)
    first, second = (item if _is_scalar(item) else tile_of(item, operator.name) for item in values)
    shape = broadcast_shape(
        operator.name, *[item.shape for item in (first, second) if isinstance(item, Tile)]
    )
    return compute(
        operator.name,
        shape,
        kind,
        mask,
        lambda dst, *views: emit_binary(operator, dst, *views),
        first,
        second,
    )


def _is_scalar(value: Any) -> bool:
    return isinstance(value, int | float | np.generic)


def _result_type(operator: MathOperator, values: Sequence[Any]) -> str:
    if operator.name in _TRUTHS:
        return "bool"
    types = [
        scalar_type(item) if _is_scalar(item) else tile_of(item, operator.name).operand.dtype
        for item in values
    ]
    kind = types[0] if len(types) == 1 else promoted(types[0], types[1])
    return "float32" if operator.name == "divide" and "int" in kind else kind


_TRUTHS = frozenset(
    [
        "equal",
        "not_equal",
        "less",
        "less_equal",
        "greater",
        "greater_equal",
        "logical_and",
        "logical_or",
        "logical_xor",
        "logical_not",
    ]
)


def broadcast_shape(function: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the result of operands of these shapes; dimension 0 is the partitions of all of them."""
    ndim = max(map(len, shapes))
    if len(shapes) > 1 and shapes[0][:1] == shapes[1][:1] and len(shapes[0]) != len(shapes[1]):
        shapes = tuple(shape + (1,) * (ndim - len(shape)) for shape in shapes)
    try:
        return tuple(np.broadcast_shapes(*shapes))
    except ValueError:
        fail(function, f"shapes {' and '.join(map(str, shapes))} do not broadcast")


def _unary(operator: MathOperator, tile: Tile, kind: str, mask: Any) -> Tile:
    def emit(dst: NkiTensor, source: NkiTensor) -> None:
        name = operator.name
        if name == "copy":
            instructions.tensor_copy(dst, source)
        elif name == "reciprocal":
            instructions.reciprocal(dst, source)
        elif name in _ON_SCALAR_ENGINE:
            instructions.activation(dst, operator, source)
        else:
            instructions.tensor_scalar(dst, source, operator, None)

    need_on_chip(operator.name, tile)
    return compute(operator.name, tile.shape, kind, mask, emit, tile)


_ON_SCALAR_ENGINE = ACTIVATIONS - {"abs", "copy", "gelu_apprx_sigmoid_dx", "prelu", "reciprocal"}


def need_on_chip(function: str, *tiles: Any) -> None:
    """Refuse operands in HBM."""
    for tile in tiles:
        if isinstance(tile, Tile) and not tile.on_chip:
            fail(
                function,
                f"operand `{tile.label}` is in HBM, must be in SBUF or PSUM",
                "load it with nl.load",
                tile.operand.storage.allocation,
            )


def emit_binary(operator: MathOperator, dst: NkiTensor, first: Any, second: Any) -> None:
    """Compute an operator of views and numbers by the instructions that it takes."""
    need_views(operator.name, first, second)
    if operator.is_bitwise:
        dst, first, second = (_bytes_of_truths(item) for item in (dst, first, second))
    if not isinstance(first, TileView):
        instructions.tensor_scalar(dst, second, operator, first, reverse0=True)
        return
    if not isinstance(second, TileView):
        instructions.tensor_scalar(dst, first, operator, second)
        return
    if second.buffer is PSUM and first.buffer is PSUM:
        copied = new_tile(second.shape, second.dtype).operand
        instructions.tensor_copy(copied, second)
        second = copied
    same = first.shape[0] == second.shape[0] == dst.shape[0]
    if same and first.free_size == second.free_size == dst.free_size:
        instructions.tensor_tensor(dst, first, second, operator)
    elif same and second.free_size == 1 and first.free_size == dst.free_size and not operator.is_bitwise:
        instructions.tensor_scalar(dst, first, operator, second)
    elif same and first.free_size == 1 and second.free_size == dst.free_size and not operator.is_bitwise:
        instructions.tensor_scalar(dst, second, operator, first, reverse0=True)
    else:
        instructions.tensor_tensor(dst, broadcast(first, dst.shape), broadcast(second, dst.shape), operator)


def _bytes_of_truths(view: Any) -> Any:
    return view.view("uint8") if isinstance(view, TileView) and view.dtype == "bool" else view


def need_views(function: str, *views: Any) -> None:
    """Refuse views of HBM."""
    for view in views:
        if isinstance(view, TileView) and view.storage.allocation.region not in ON_CHIP:
            need_on_chip(function, Tile(view))


def broadcast(view: NkiTensor, shape: tuple[int, ...]) -> NkiTensor:
    """Return a view of a shape; partitions are repeated by the Tensor engine, free dimensions by strides of 0."""
    missing = len(shape) - view.ndim
    if view.shape[0] == shape[0]:
        sizes, strides = view.shape + (1,) * missing, view.strides + (0,) * missing
    else:
        sizes, strides = (1,) * missing + view.shape, (0,) * missing + view.strides
    result = reshaped(view, sizes, strides)
    if sizes[0] != shape[0]:
        made = new_tile((shape[0], *sizes[1:]), result.dtype).operand
        made.write(np.broadcast_to(result.read("operand"), made.shape))
        running().issue("partition_broadcast", "tensor", (result.access(),), (made.access(),))
        result = made
    strides = tuple(
        0 if size == 1 and wanted != 1 else stride
        for size, stride, wanted in zip(result.shape, result.strides, shape, strict=True)
    )
    return reshaped(result, shape, strides)


# ---- assignment


def assign(target: Tile, value: Any) -> None:
    """Write a value to a tile: `target[...] = value`.

    The instruction that has made the value just before writes to the tile directly; any other value is copied.
    """
    if not target.on_chip:
        fail(
            "assignment",
            f"`{target.label}` is in HBM",
            "write it with nl.store",
            target.operand.storage.allocation,
        )
    if _is_scalar(value):
        fill(target, value)
        return
    source = tile_of(value, "assignment")
    need_on_chip("assignment", source)
    if source.lookups:
        fail(
            "assignment",
            "copying indirect memory references is not natively supported",
            "use nisa.tensor_copy_dynamic_src",
            source.operand.storage.allocation,
        )
    if source.valid is False:
        _leave_out(target)
        return
    if _is_same(target.operand, source.operand):
        return
    check_fits("a = b", target, source, ("a", "b"))
    selected = source.valid if source.shape == target.shape else None
    dst = destination(target, selected, "assignment")
    src = part_for(source, selected, source.shape, "assignment")
    if src.size != dst.size:
        src = broadcast(src, dst.shape)
    elif source.producer is not None and _redirect(source, dst, src):
        return
    if isinstance(dst, Gathered) and src.dtype == dst.dtype:
        src = Gathered(src, src.offset + Index(src.shape, src.strides, 0).values(), None)
    instructions.tensor_copy(dst, src)


def _leave_out(target: Tile) -> None:
    """Note that a mask has left out a write to a tile: kernels read it then without harm."""
    target.operand.storage.allocation.is_empty = False


def _is_same(first: NkiTensor, second: NkiTensor) -> bool:
    return first.storage is second.storage and (first.offset, first.shape, first.strides) == (
        second.offset,
        second.shape,
        second.strides,
    )


def check_fits(function: str, target: Tile, source: Tile, names: tuple[str, str]) -> None:
    """Refuse a value that is larger than its destination."""
    if source.size == target.size and source.shape[0] in {1, *target.shape[:1]}:
        return
    try:
        fits = broadcast_shape(function, target.shape, source.shape) == target.shape
    except KernelError:
        fits = source.size == target.size and not target.on_chip
    if not fits:
        refuse_size(
            function,
            f"Illegal assignment destination shape in '{function}': shape {list(target.shape)} of parameter '{names[0]}' is"
            f" smaller than other parameter shapes {names[1]}{list(source.shape)}.",
            "slice the value",
            target.operand.storage.allocation,
        )


def _redirect(source: Tile, dst: NkiTensor, src: NkiTensor) -> bool:
    """Let the last instruction write its result to the destination; return whether it can."""
    record = source.producer
    assert record is not None
    records = running().records
    if not records or records[-1] is not record:
        return False
    if not _can_write(record, dst.buffer):
        return False
    dst.write(src.array())
    redirect_record(record, source, dst)
    return True


def _can_write(record: Record, region: MemoryRegion) -> bool:
    if record.opcode == "nc_matmul" or record.engine == "tensor":
        return region is PSUM
    return record.engine != "dma" or region is not PSUM


def redirect_record(record: Record, source: Tile, dst: NkiTensor) -> None:
    """Name the destination in a record instead of the memory of its result."""
    allocation = source.operand.storage.allocation
    record.writes = tuple(dst.access() if item.allocation is allocation else item for item in record.writes)
    record.reads = tuple(dst.access() if item.allocation is allocation else item for item in record.reads)


def fill(target: Tile, value: Any, selected: Selection = None) -> None:
    """Fill a tile with a number."""
    dst = destination(target, selected, "memset")
    number = float(value) if isinstance(value, float | np.floating) else int(value)
    instructions.memset(dst, number)


def update(target: Tile, operator: MathOperator, value: Any) -> Tile:
    """Compute `target op= value` in place; sums of products are accumulated in PSUM by the Tensor engine."""
    need_on_chip(operator.name, target)
    if is_number(value) or _is_scalar(value):
        emit_binary(operator, target.resolved(operator.name), target.resolved(operator.name), value)
        return target
    source = tile_of(value, operator.name)
    need_on_chip(operator.name, source)
    if source.valid is False:
        _leave_out(target)
        return target
    check_fits("a = b", target, source, ("a", "b"))
    selected = source.valid if source.shape == target.shape else None
    dst = destination(target, selected, operator.name)
    src = part_for(source, selected, source.shape, operator.name)
    record, records = source.producer, running().records
    if dst.buffer is PSUM and operator.name == "add" and src.size == dst.size:
        begins = not _is_written(dst)
        if record is not None and records[-1] is record and record.opcode in _OF_TENSOR_ENGINE:
            accumulate_product(record.opcode, dst, src.array(), None)
            redirect_record(record, source, dst)
            record.options["accumulate" if record.opcode == "nc_matmul" else "accumulates"] = not begins
            return target
        if begins:  # the first sum of a tile overwrites
            instructions.tensor_copy(dst, src)
            return target
    emit_binary(operator, dst, dst, src)
    return target


def _is_written(view: NkiTensor) -> bool:
    return bool(np.any(view.written()))


def sum_into(total: Tile, operator: MathOperator, value: Tile, selected: Selection) -> None:
    """Compute `total = total op value` for the selected elements."""
    dst = destination(total, selected, operator.name)
    emit_binary(operator, dst, dst, part_for(value, selected, value.shape, operator.name))
    total.producer = running().records[-1]
    if total.valid is not None and selected is not None:
        valid: np.ndarray = np.zeros(total.shape, dtype=np.bool_)
        for part in (total.valid, selected):
            valid[part] = True
        total.valid = valid
    else:
        total.valid = None


def identity_of(operator: str) -> float:
    """Return the number that a reduction by an operator starts with."""
    return float(OPERATORS[operator].identity or 0.0)
