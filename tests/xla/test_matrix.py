"""Every feature gives the same bits as the CPU: when it is learned, when it is replayed, and after both."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from neurontools.xla import api
from tests.xla.features import derivatives, networks, storages, tensors  # noqa: F401  # each registers its features
from tests.xla.features.feature import FEATURES, torch_warns

# Cells of recurrent layers add their biases after the matrix product, as torch lets devices do.
TOLERANCES = {"recurrent": 1e-5, "jagged_attention": 1e-6}


def flat(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value.detach().cpu()]
    if isinstance(value, dict):
        value = list(value.items())
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return [leaf for item in value for leaf in flat(item)]
    return [value]


def assert_same(got: Any, wanted: Any, tolerance: float = 0.0) -> None:
    left, right = flat(got), flat(wanted)
    assert len(left) == len(right)
    for position, (a, b) in enumerate(zip(left, right, strict=True)):
        if isinstance(b, torch.Tensor):
            assert a.dtype == b.dtype, position
            assert a.shape == b.shape, position
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
        else:
            assert a == b, position


@torch_warns
@pytest.mark.parametrize("name", FEATURES)
def test_gives_the_same_bits_as_the_cpu(name: str, machine: Any) -> None:
    function = FEATURES[name]
    torch.manual_seed(0)
    wanted = function("cpu")
    for _ in range(3):
        torch.manual_seed(0)
        got = function("xla")
        api.mark_step()
        assert_same(got, wanted, TOLERANCES.get(name, 0.0))
