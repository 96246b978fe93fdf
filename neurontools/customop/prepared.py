"""A kernel call that was packed once for its shapes, dtypes and numbers; only places of tensors change from call to call."""

from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING

from neurontools.customop import abi
from neurontools.customop.mailbox import REQUEST_OFFSET

if TYPE_CHECKING:
    from collections.abc import Sequence

_PLACES = REQUEST_OFFSET + abi.Request.places.offset
_PLACE_BYTES = ctypes.sizeof(abi.Place)
pack_place = struct.Struct("=QQQ").pack_into
FLAG = struct.Struct("=I")
CAPTURES = REQUEST_OFFSET + abi.Request.capture_stdout.offset
OUTPUT_PLACE = _PLACES + _PLACE_BYTES * abi.OUTPUT_SLOT


class PreparedCall:
    """What stays the same in all calls of a kernel with the same signature.

    Args:
        request: the call, without places.
        constant: positions of the tensors that the kernel takes as const: they may stay where they are.
    """

    __slots__ = ("core_count", "is_quick", "output_bytes", "packed", "tensors")

    def __init__(self, request: abi.Request, constant: Sequence[int]) -> None:
        arguments = request.arguments[: request.argument_count]
        used = abi.Request.arguments.offset + request.argument_count * ctypes.sizeof(abi.Argument)
        self.packed = bytes(request)[:used]
        # Of each tensor: position, where its place is written in the mailbox, size, whether it may stay.
        self.tensors = tuple(
            (index, _PLACES + _PLACE_BYTES * index, argument.tensor.nbytes, index in constant)
            for index, argument in enumerate(arguments)
            if argument.kind == abi.TENSOR_ARGUMENT
        )
        self.output_bytes: int = request.output.nbytes
        self.core_count: int = request.core_count
        self.is_quick = True  # whether it took less than a wake-up the last time
