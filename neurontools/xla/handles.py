"""Makes empty device tensors: torch's own function for the first device, a DLPack import for the others.

torch's function knows only device 0. A DLPack description with a device number and no data gives the same kind of
tensor on any; torch copies what it needs out of the description, which therefore can be used again and again.
"""

# ruff: noqa: SLF001
# Torch's private API.

from __future__ import annotations

import ctypes
from typing import Any, ClassVar

import torch

_EXTERNAL_DEVICE = 12
_FLOAT, _INT, _UINT, _BFLOAT, _COMPLEX, _BOOL = 2, 0, 1, 4, 5, 6


class _Device(ctypes.Structure):
    _fields_: ClassVar = [("type", ctypes.c_int32), ("index", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_: ClassVar = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Description(ctypes.Structure):
    _fields_: ClassVar = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


class HandleMaker:
    """Makes handles on one device other than the first."""

    def __init__(self, index: int) -> None:
        self._description = _Description()
        self._description.device = _Device(_EXTERNAL_DEVICE, index)
        self._new_capsule = ctypes.pythonapi.PyCapsule_New
        self._new_capsule.restype = ctypes.py_object
        self._new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

    def __call__(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return an empty contiguous tensor."""
        # Kept for ever: torch reads the (absent) deleter again when the tensor goes, after this maker may have gone.
        _immortal.setdefault(id(self._description), self._description)
        description = self._description
        sizes = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        description.ndim = len(shape)
        description.shape = sizes
        description.dtype = _DataType(*_code(dtype), 1)
        capsule = self._new_capsule(ctypes.addressof(description), b"dltensor", None)
        tensor: torch.Tensor = torch._C._from_dlpack(capsule)
        return tensor


_immortal: dict[int, _Description] = {}


def handle_maker(index: int) -> Any:
    """Return the function that makes an empty contiguous tensor on a device from shape and dtype."""
    return HandleMaker(index) if index else torch._C._acc.create_empty_tensor


def _code(dtype: torch.dtype) -> tuple[int, int]:
    bits = dtype.itemsize * 8
    if dtype == torch.bool:
        return _BOOL, bits
    if dtype == torch.bfloat16:
        return _BFLOAT, bits
    if dtype.is_complex:
        return _COMPLEX, bits
    if dtype.is_floating_point:
        return _FLOAT, bits
    return (_INT if dtype.is_signed else _UINT), bits
