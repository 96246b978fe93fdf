"""The flat interface to a compiled library, field by field as in `include/neurontools/abi.hpp`."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from neurontools.customop.signature import MAX_ARGUMENTS

MAGIC = 0x4F43544E
MAX_DIM = 8
MAX_FRAMES = 24
MAX_CORES = 8
OUTPUT_SLOT = MAX_ARGUMENTS
SLOTS = MAX_ARGUMENTS + 1

SHAPE_COMMAND = 1
RUN_COMMAND = 2
PLACES_COMMAND = 3

TENSOR_ARGUMENT = 0
REAL_ARGUMENT = 1
INTEGER_ARGUMENT = 2

OK = 0
FAILED = 1
FATAL = 2


class Tensor(ctypes.Structure):
    """Shape, element type and address of a tensor."""

    _fields_ = (
        ("sizes", ctypes.c_int64 * MAX_DIM),
        ("dim", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("nbytes", ctypes.c_uint64),
        ("data", ctypes.c_void_p),
        ("const_data", ctypes.c_void_p),
    )


class Argument(ctypes.Structure):
    """A tensor, a real number or an integer."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("real", ctypes.c_double),
        ("integer", ctypes.c_int64),
        ("tensor", Tensor),
    )


class Place(ctypes.Structure):
    """A tensor's location in device memory: the end of a range of whole pages."""

    _fields_ = (
        ("offset", ctypes.c_uint64),
        ("nbytes", ctypes.c_uint64),
        ("constant", ctypes.c_uint64),
    )


class CallRequest(ctypes.Structure):
    """One call of a shape function or kernel."""

    _fields_ = (
        ("magic", ctypes.c_uint32),
        ("command", ctypes.c_uint32),
        ("callee", ctypes.c_uint32),
        ("argument_count", ctypes.c_uint32),
        ("core_count", ctypes.c_uint32),
        ("capture_stdout", ctypes.c_uint32),
        ("core_order", ctypes.c_uint32),
        ("count_places", ctypes.c_uint32),
        ("places", Place * SLOTS),
        ("output", Tensor),
        ("arguments", Argument * MAX_ARGUMENTS),
    )


class Counters(ctypes.Structure):
    """Memory accesses of one core."""

    _fields_ = (
        ("element_accesses", ctypes.c_uint64),
        ("transfers", ctypes.c_uint64),
        ("transferred_bytes", ctypes.c_uint64),
        ("moves", ctypes.c_uint64),
        ("moved_bytes", ctypes.c_uint64),
        ("computed_bytes", ctypes.c_uint64),
    )


class Reply(ctypes.Structure):
    """The result of a call."""

    _fields_ = (
        ("magic", ctypes.c_uint32),
        ("status", ctypes.c_int32),
        ("core", ctypes.c_int32),
        ("signal", ctypes.c_int32),
        ("elapsed_ns", ctypes.c_uint64),
        ("frame_count", ctypes.c_uint64),
        ("frames", ctypes.c_uint64 * MAX_FRAMES),
        ("kind", ctypes.c_char * 32),
        ("message", ctypes.c_char * 512),
        ("warnings", ctypes.c_char * 1024),
        ("shape", Tensor),
        ("counters", Counters * MAX_CORES),
    )


class MailboxLayout(ctypes.Structure):
    """Memory shared by host and worker, as in `src/mailbox.hpp`: numbers, flags, times, request, reply."""

    _fields_ = (
        ("requested", ctypes.c_uint32),
        ("host_sleeps", ctypes.c_uint32),
        ("host_wake_up_ns", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("woken_ns", ctypes.c_uint64),
        ("host_line", ctypes.c_uint32 * 10),
        ("accepted", ctypes.c_uint32),
        ("answered", ctypes.c_uint32),
        ("worker_sleeps", ctypes.c_uint32),
        ("plain", ctypes.c_uint32),
        ("answered_ns", ctypes.c_uint64),
        ("worker_wake_up_ns", ctypes.c_uint32),
        ("worker_line", ctypes.c_uint32 * 9),
        ("request", CallRequest),
        ("reply", Reply),
    )


@dataclass(frozen=True, slots=True)
class DType:
    """An element type.

    Args:
        code: its number in torch's ScalarType, used by the C++ headers too.
        name: its name in torch (`float32`) and on the command line.
        kernel_name: its name in kernels (`kFloat`).
        itemsize: bytes of an element.
        on_device: whether a kernel may have tensors of it (AWS Neuron documentation, custom operators API reference).
    """

    code: int
    name: str
    kernel_name: str
    itemsize: int
    on_device: bool = True


DTYPES = (
    DType(0, "uint8", "kByte", 1),
    DType(1, "int8", "kChar", 1),
    DType(2, "int16", "kShort", 2),
    DType(3, "int32", "kInt", 4),
    DType(4, "int64", "kLong", 8, on_device=False),
    DType(5, "float16", "kHalf", 2),
    DType(6, "float32", "kFloat", 4),
    DType(7, "float64", "kDouble", 8, on_device=False),
    DType(11, "bool", "kBool", 1, on_device=False),
    DType(15, "bfloat16", "kBFloat16", 2),
)
BY_CODE = {dtype.code: dtype for dtype in DTYPES}
BY_NAME = {dtype.name: dtype for dtype in DTYPES}
DEVICE_NAMES = tuple(dtype.name for dtype in DTYPES if dtype.on_device)
