"""Checks that instructions share, and how they read scalar operands.

Sources: AWS Neuron documentation 2.32, "nki.isa" (each function's constraints) and the architecture guides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

import ml_dtypes
import numpy as np

from neurontools.nki.constants import engine as engines
from neurontools.nki.context import fail, running
from neurontools.nki.dtypes import INTEGERS, PACKED, numpy_dtype
from neurontools.nki.memory import ON_CHIP, MemoryRegion
from neurontools.nki.operators import ACTIVATIONS, UNARY, MathOperator, as_operator
from neurontools.nki.tensor import NkiTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from neurontools.nki.constants import engine

_Checked = TypeVar("_Checked")
_NEW = object()
SBUF, PSUM = MemoryRegion.sbuf, MemoryRegion.psum
GENERATION_3, GENERATION_4 = 3, 4
NUMBERS = (
    int, float, np.number, np.bool_,
    ml_dtypes.bfloat16, ml_dtypes.float8_e4m3, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2,
)  # fmt: skip
"""Types of constants."""
_TAKING_PACKED = frozenset(
    {
        "nc_matmul_mx", "quantize_mx", "memset", "tensor_copy", "nc_transpose", "nc_stream_shuffle", "nc_n_gather",
        "local_gather", "dma_copy", "dma_transpose", "sendrecv",
    }
)  # fmt: skip
"""Instructions that multiply, make or move packed elements; all others compute with numbers."""
_TARGET_OF = {3: "trn2", 4: "trn3"}
_REGION_NAMES = {SBUF: "SBUF", PSUM: "PSUM"}


def refuse(opcode: str, reason: str, remedy: str = "", *tensors: Any) -> NoReturn:
    """Raise the error of an instruction, with the declarations of tensors."""
    fail(
        opcode, reason, remedy, *[item.storage.allocation for item in tensors if isinstance(item, NkiTensor)]
    )


def checked(check: Callable[..., _Checked], operands: tuple[Any, ...], *options: Any) -> _Checked:
    """Return what the check of an instruction's operands and options returns; equal ones are checked once."""
    passed = running().passed
    try:
        signature = (check, *[tile.pattern for tile in operands], *options)
        result = passed.get(signature, _NEW)
    except (AttributeError, TypeError):  # other operands than tensors, or options that cannot be looked up
        return check(*operands, *options)
    if result is _NEW:
        result = passed[signature] = check(*operands, *options)
    return cast("_Checked", result)


def needs_generation(opcode: str, generation: int, feature: str = "") -> None:
    """Refuse what older NeuronCores lack."""
    limits = running().limits
    if limits.generation < generation:
        what = f"{feature} needs" if feature else "needs"
        refuse(
            opcode,
            f"{what} {_TARGET_OF[generation]}, this is {limits.target}",
            "choose the target with NEURON_PLATFORM_TARGET_OVERRIDE",
        )


def check_tile(opcode: str, operand: str, tile: Any, regions: tuple[MemoryRegion, ...] = ON_CHIP) -> None:
    """Refuse an operand other than a tensor, in the wrong memory, or has too many or badly placed partitions."""
    if not isinstance(tile, NkiTensor):
        refuse(opcode, f"{operand} is a {type(tile).__name__}, not a tensor")
    region = tile.storage.allocation.region
    if region not in regions:
        wanted = " or ".join(_REGION_NAMES.get(item, "HBM") for item in regions)
        refuse(opcode, f"{operand} is in {_REGION_NAMES.get(region, 'HBM')}, must be in {wanted}", "", tile)
    if region in ON_CHIP and tile.shape[0] > running().limits.partitions:
        refuse(
            opcode,
            f"{operand} partition dimension {tile.shape[0]} exceeds maximum {running().limits.partitions}",
            "tile the partition dimension",
            tile,
        )
    if tile.dtype in PACKED and opcode not in _TAKING_PACKED:
        refuse(
            opcode,
            f"does not take packed elements, {operand} is {tile.dtype}",
            "compute before nisa.quantize_mx packs them, or after nisa.nc_matmul_mx",
            tile,
        )


def check_conversion(opcode: str, dst: NkiTensor, src: NkiTensor) -> None:
    """Refuse a copy of packed elements that would not keep their bits."""
    if not PACKED.keys().isdisjoint((dst.dtype, src.dtype)) and numpy_dtype(dst.dtype) != numpy_dtype(
        src.dtype
    ):
        refuse(
            opcode,
            f"does not convert packed elements, src is {src.dtype} and dst {dst.dtype}",
            "copy to a tensor of the same type; nisa.quantize_mx packs elements",
            src,
            dst,
        )


def check_start(opcode: str, operand: str, tile: NkiTensor) -> None:
    """Refuse a tile whose partitions start where the engines cannot access that many."""
    allocation = tile.storage.allocation
    start = tile.offset and tile.offset * tile.itemsize // allocation.partition_bytes
    address = allocation.address
    if address is not None:
        start += address[0]
    if not start:
        return
    size = tile.shape[0]
    allowed = (0, 32, 64, 96) if size <= 32 else (0, 64) if size <= 64 else (0,)
    if start not in allowed:
        starts = ", ".join(map(str, allowed))
        refuse(
            opcode,
            f"{operand} has {size} partitions from partition {start} on, engines access that many from {starts}",
            "copy the partitions with nisa.dma_copy, or start at a multiple of 32",
            tile,
        )


def check_same_size(opcode: str, dst: NkiTensor, data: NkiTensor, operand: str) -> None:
    """Refuse operands that differ in partitions or elements of a partition."""
    if dst.shape[0] != data.shape[0]:
        refuse(opcode, f"{operand} has {data.shape[0]} partitions, dst has {dst.shape[0]}", "", data, dst)
    if dst.free_size != data.free_size:
        refuse(
            opcode,
            f"{operand} has {data.free_size} elements a partition, dst has {dst.free_size}",
            "slice one of them, or declare dst with the size of the data",
            data,
            dst,
        )


def check_elementwise(opcode: str, dst: NkiTensor, **operands: Any) -> None:
    """Check the destination and the tensors of an elementwise instruction."""
    checked(_check_elementwise, (dst, *operands.values()), opcode, ("dst", *operands))


def _check_elementwise(*arguments: Any) -> None:
    *tiles, opcode, names = arguments
    for name, tile in zip(names, tiles, strict=True):
        check_tile(opcode, name, tile)
        check_start(opcode, name, tile)
        check_same_size(opcode, tiles[0], tile, name)


def check_not_both_psum(opcode: str, first: tuple[str, Any], second: tuple[str, Any]) -> None:
    """Refuse two operands of PSUM."""
    if all(isinstance(item, NkiTensor) and item.buffer is PSUM for _, item in (first, second)):
        refuse(
            opcode,
            f"{first[0]} and {second[0]} are both in PSUM, at most one may be",
            "copy one to SBUF",
            first[1],
            second[1],
        )


def need_operator(
    opcode: str, value: Any, argument: str = "op", *, functions: Collection[str] = UNARY
) -> MathOperator:
    """Return the operator of an argument; of the activation functions, only those named are taken."""
    operator = as_operator(value)
    if operator is None:
        refuse(
            opcode,
            f"{argument} is {value!r}, not an operator",
            "use an operator of nki.language, such as nl.add",
        )
    if operator.name in ACTIVATIONS and operator.name not in functions:
        refuse(
            opcode,
            f"{argument} is {operator.name}, an activation function and not an operator",
            f"use nisa.activation with op=nl.{operator.name}",
        )
    return operator


def need_binary(opcode: str, value: Any, argument: str = "op") -> MathOperator:
    """Return the operator of two operands of an argument."""
    operator = need_operator(opcode, value, argument)
    if operator.arity == 1:
        refuse(
            opcode,
            f"{argument} is {operator.name}, which has one operand",
            f"use nisa.tensor_scalar with op0=nl.{operator.name}",
        )
    return operator


def check_reduction(opcode: str, operator: MathOperator) -> None:
    """Refuse operators that do not reduce (nki.api.shared, legal reduction operators)."""
    if operator.identity is None:
        refuse(
            opcode,
            f"{operator.name} does not reduce",
            "use add, subtract, multiply, maximum, minimum or a logical operator",
        )


def check_bits(opcode: str, operator: MathOperator, *tensors: Any) -> None:
    """Refuse operators on bits for tensors of other types than integers."""
    if operator.is_bitwise:
        for item in tensors:
            if isinstance(item, NkiTensor) and item.dtype not in INTEGERS:
                refuse(opcode, f"{operator.name} works on integers, not on {item.dtype}", "", item)


def scalar(opcode: str, operand: str, value: Any, data: NkiTensor, dtype: Any = np.float32) -> Any:
    """Return a scalar operand: a number, or a tensor of one element for each partition as a column.

    Returns:
        An array that broadcasts over the elements of `data`.
    """
    if isinstance(value, NkiTensor):
        check_tile(opcode, operand, value)
        if value.free_size != 1 or value.shape[0] not in {data.shape[0], 1}:
            refuse(
                opcode,
                f"{operand} has shape {value.shape}, must be a number or ({data.shape[0]}, 1)",
                "use nisa.tensor_tensor for operands of the same shape",
                value,
            )
        column = value.read(operand)
        column = column if dtype is None else column.astype(dtype)
        return column.reshape(value.shape[0], *[1] * (data.ndim - 1))
    if value is None:
        return np.float32(0)
    if isinstance(value, NUMBERS):
        return np.dtype(dtype or np.float32).type(value)
    refuse(
        opcode,
        f"{operand} is a {type(value).__name__}, must be a number or a tensor of shape ({data.shape[0]}, 1)",
    )


def engine_name(opcode: str, chosen: engine, *allowed: engine) -> str:
    """Return the name of the engine that a kernel chose, "" for none; refuse others than the allowed."""
    if chosen is engines.unknown or chosen is None:
        return ""
    if not isinstance(chosen, engines):
        refuse(opcode, f"engine {chosen!r} is not one", "use nisa.engine.vector, ...")
    if chosen not in allowed:
        names = ", ".join(item.name for item in allowed)
        refuse(opcode, f"does not run on the {chosen.name} engine", f"choose one of {names}")
    return chosen.name


def reads(*tensors: Any) -> tuple[Any, ...]:
    """Return the accesses of those operands that are tensors."""
    return tuple([item.access() for item in tensors if isinstance(item, NkiTensor)])
