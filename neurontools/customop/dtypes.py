"""Element types of the device: numbers in the ABI, names, sizes."""

from __future__ import annotations

from dataclasses import dataclass


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
