"""Annotations of kernels' parameters, `tensor[shape]`: read by people and ignored by launches.

With a type, `tensor[[128, 512], nl.bfloat16]`, one stands for an argument of a kernel that is only to be measured.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from neurontools.nki.dtypes import dtype_name, numpy_dtype


class TensorAnnotation:
    """An annotation such as `tensor[128, 512]`.

    Args:
        is_mutable: whether the kernel may write the parameter.
        shape: sizes by dimension, None for any.
    """

    def __init__(self, *, is_mutable: bool = False, shape: Any = None) -> None:
        self.is_mutable = is_mutable
        self.shape = shape

    def __getitem__(self, shape: Any) -> TensorAnnotation:
        return TensorAnnotation(is_mutable=self.is_mutable, shape=shape)

    def zeros(self) -> np.ndarray | None:
        """Return the argument that it stands for, None where it has no type."""
        match self.shape:
            case [list() | tuple() as sizes, dtype]:
                return np.zeros(sizes, numpy_dtype(dtype_name(dtype)))
        return None


tensor = TensorAnnotation()
mutable_tensor = TensorAnnotation(is_mutable=True)
scalar = TensorAnnotation()
