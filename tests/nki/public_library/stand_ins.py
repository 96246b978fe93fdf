"""What the tests of the public kernel library import and this project has not: data types of a closed package.

Used by `plugin.py` alone. `neuron_dtypes` is a thin layer over ml_dtypes in those tests.
"""

from __future__ import annotations

import sys
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

from neurontools.nki.dtypes import dtype_name, packed_dtype
from neurontools.nki.instructions.matrix import unpack

_ELEMENTS = {
    "float8_e4m3fn_x4": ml_dtypes.float8_e4m3fn,
    "float8_e5m2_x4": ml_dtypes.float8_e5m2,
    "float4_e2m1fn_x4": ml_dtypes.float4_e2m1fn,
}


def _static_cast(values: Any, dtype: Any) -> Any:
    """Return values as elements of a type, four to an element of packed types."""
    values = np.asarray(values)
    packed = values.dtype.names
    if packed:
        if dtype == packed[0] or np.dtype(dtype).names == packed:
            return values
        values = _unpack(values, packed[0])
    if isinstance(dtype, str) and dtype in _ELEMENTS:
        return _pack(values, dtype)
    wanted = np.dtype(getattr(ml_dtypes, dtype, dtype)) if isinstance(dtype, str) else np.dtype(dtype)
    return _pack(values, wanted.names[0]) if wanted.names else values.astype(wanted)


def _pack(values: Any, name: str) -> Any:
    element = _ELEMENTS[name]
    largest = float(ml_dtypes.finfo(element).max)
    parts = np.clip(values.astype(np.float32), -largest, largest).astype(element).view(np.uint8)
    parts = parts.reshape(*parts.shape[:-1], -1, 4)
    if name == "float4_e2m1fn_x4":
        bits = sum(parts[..., k].astype(np.uint16) << np.uint16(4 * k) for k in range(4))
        return np.ascontiguousarray(bits).view(packed_dtype(name))
    return np.ascontiguousarray(parts).view(np.uint32)[..., 0].copy().view(packed_dtype(name))


def _unpack(values: Any, name: str) -> Any:
    plain = values.view(np.uint16 if name == "float4_e2m1fn_x4" else np.uint32)
    return unpack(plain, name).reshape(*values.shape[:-1], -1)


def _is_float(dtype: Any) -> bool:
    return "float" in np.dtype(dtype).name


def neuron_dtypes() -> ModuleType:
    """Return the stand-in for the package of data types."""
    made = ModuleType("neuron_dtypes")
    for name in ("bfloat16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"):
        setattr(made, name, np.dtype(getattr(ml_dtypes, name)))
    for name in _ELEMENTS:
        setattr(made, name, packed_dtype(name))
    made.static_cast = _static_cast  # type: ignore[attr-defined]
    made.sizeinbytes = lambda dtype: np.dtype(dtype).itemsize  # type: ignore[attr-defined]
    made.finfo = ml_dtypes.finfo  # type: ignore[attr-defined]
    made.is_float_type = _is_float  # type: ignore[attr-defined]
    return made


class _Anything(ModuleType):
    """A module whose names are classes that take anything."""

    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Exception,), {"__init__": lambda self, *args, **options: None})


class _Finder(Loader):
    """Finds the packages that the library uses to reach devices and clouds."""

    @staticmethod
    def find_spec(name: str, _path: Any = None, _target: Any = None) -> ModuleSpec | None:
        """Return a spec for a module of one of those packages."""
        return (
            ModuleSpec(name, _Finder(), is_package=True) if _REMOTE & {name, name.partition(".")[0]} else None
        )

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return a module with every name."""
        return _Anything(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing."""


_REMOTE = frozenset(
    {
        "aws_embedded_metrics",
        "boto3",
        "botocore",
        "fabric",
        "fabric2",
        "paramiko",
        "plotext",
        "pytest_html",
        "test.utils.test_orchestrator",
    }
)


def name_packed_types() -> None:
    """Let the library's reference of quantization take types of arrays: it asks for their names by `str`."""
    from nkilib_src.nkilib.core.utils import mx_torch_common

    mx_torch_common.str = dtype_name


def install() -> None:
    """Make the stand-ins importable."""
    sys.modules["neuron_dtypes"] = neuron_dtypes()
    for name in _ELEMENTS:
        np.sctypeDict[name] = packed_dtype(name)  # so that numpy takes the name for a type
    sys.meta_path.insert(0, _Finder)
