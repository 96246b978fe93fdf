"""torch_neuronx.testing.validation: whether results of the device are close to those of the CPU.

A relative tolerance is one of the largest expected value, as in the compiler's own comparisons, not of each value.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from neurontools.compat.structures import to_cpu
from neurontools.compat.unsupported import missing_names

_TOLERANCES = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
}


__getattr__ = missing_names(__name__)


class AllCloseSummary(NamedTuple):
    """What `neuron_allclose` returns. Errors are the largest ones, an index is the position of a value in the tensor."""

    allclose: bool
    num_mismatches: int
    max_rel_error: float
    max_abs_error: float
    max_rel_error_index: tuple[int, ...]
    max_abs_error_index: tuple[int, ...]


def neuron_allclose(
    actual: torch.Tensor, expected: torch.Tensor, rtol: float | None = None, atol: float | None = None
) -> AllCloseSummary:
    """Compare two tensors of one shape; the default tolerances are torch's for the data type.

    Raises:
        ValueError: the shapes differ.
    """
    if actual.shape != expected.shape:
        raise ValueError(f"shapes {list(actual.shape)} and {list(expected.shape)} differ")
    default_rtol, default_atol = _TOLERANCES.get(actual.dtype, (0.0, 0.0))
    wanted = expected.detach().cpu().double()
    errors = (actual.detach().cpu().double() - wanted).abs().nan_to_num(torch.inf)
    largest = wanted.abs().max().item() if wanted.numel() else 0.0
    limit = (default_atol if atol is None else atol) + (default_rtol if rtol is None else rtol) * largest
    mismatches = int((errors > limit).sum())
    relative = errors / max(largest, torch.finfo(torch.float64).tiny)
    return AllCloseSummary(
        mismatches == 0, mismatches, _maximum(relative), _maximum(errors), _place(relative), _place(errors)
    )


def custom_allclose(
    expected: torch.Tensor, actual: torch.Tensor, atol: float = 0.0, rtol: float = 1e-5
) -> tuple[bool, float]:
    """Return whether two tensors are close, and their largest error relative to the largest expected value."""
    summary = neuron_allclose(actual, expected, rtol, atol)
    return summary.allclose, summary.max_rel_error


def assert_close(actual: Any, expected: Any, **options: Any) -> None:
    """Compare as `torch.testing.assert_close` does; tensors may be on the device or on the CPU.

    Raises:
        AssertionError: they are not close.
    """
    torch.testing.assert_close(to_cpu(actual), to_cpu(expected), **options)


def _maximum(errors: torch.Tensor) -> float:
    return errors.max().item() if errors.numel() else 0.0


def _place(errors: torch.Tensor) -> tuple[int, ...]:
    if not errors.numel():
        return ()
    return tuple(map(int, torch.unravel_index(errors.argmax(), errors.shape)))
