"""Annotations of kernels' parameters, `tensor[shape]`: read by people and ignored by launches."""

from __future__ import annotations

from typing import Any


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


tensor = TensorAnnotation()
mutable_tensor = TensorAnnotation(is_mutable=True)
scalar = TensorAnnotation()
