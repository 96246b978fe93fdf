"""The data types that nccom-test knows."""

from __future__ import annotations

from enum import StrEnum

from neurontools.errors import UsageError


class DataType(StrEnum):
    """A data type by the name that is printed."""

    UINT8 = "uint8"
    INT8 = "int8"
    FP8 = "fp8"
    FP8E4 = "fp8e4"
    UINT16 = "uint16"
    INT16 = "int16"
    FP16 = "fp16"
    BF16 = "bf16"
    UINT32 = "uint32"
    INT32 = "int32"
    FP32 = "fp32"

    @property
    def nbytes(self) -> int:
        """Size of an element."""
        digits = self.value.removesuffix("e4").lstrip("abcdefghijklmnopqrstuvwxyz")
        return int(digits) // 8

    @property
    def is_float(self) -> bool:
        """Whether it is a floating point type."""
        return "int" not in self.value


def datatype_named(name: str) -> DataType:
    """Return a data type by its name.

    Raises:
        UsageError: there is none.
    """
    try:
        return DataType(name)
    except ValueError:
        known = ", ".join(kind.value for kind in DataType)
        raise UsageError(f"unknown data type {name!r}", f"choose one of {known}") from None
