"""Kernels that come with the first generation."""

import numpy as np
import pytest
from neuronxcc.nki import simulate_kernel
from neuronxcc.nki._private_kernels.cumsum import cumsum


@pytest.mark.parametrize("shape", [(1, 1), (2, 640), (128, 2048), (130, 2049)])
def test_cumsum_adds_along_rows(shape: tuple[int, int]) -> None:
    numbers = np.random.default_rng(0).random(shape, dtype=np.float32)
    sums = np.zeros_like(numbers)
    simulate_kernel(cumsum, numbers, sums, axis=1)
    np.testing.assert_allclose(sums, np.cumsum(numbers, 1, dtype=np.float64), rtol=1e-5)


def test_cumsum_of_columns_is_refused() -> None:
    numbers = np.ones((2, 2), np.float32)
    with pytest.raises(AssertionError, match="transpose the matrix"):
        simulate_kernel(cumsum, numbers, numbers, axis=0)
