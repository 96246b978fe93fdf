"""How values of narrow types are read, and what elements hold that no instruction has written."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from neurontools.compat.nki import isa as nisa
from neurontools.compat.nki import jit
from neurontools.compat.nki import language as nl
from neurontools.nki.dtypes import to_float32
from neurontools.nki.locations import UserLine
from neurontools.nki.memory import Allocation, MemoryRegion, Storage
from neurontools.nki.tensor import NkiTensor
from tests.nki.launches import launch_of


@pytest.mark.parametrize(
    ("codes", "dtype"),
    [
        (np.arange(1 << 16, dtype=np.uint16), np.float16),
        (np.arange(1 << 16, dtype=np.uint16), ml_dtypes.bfloat16),
        (np.arange(1 << 8, dtype=np.uint8), ml_dtypes.float8_e4m3),
        (np.arange(1 << 8, dtype=np.uint8), ml_dtypes.float8_e4m3fn),
        (np.arange(1 << 8, dtype=np.uint8), ml_dtypes.float8_e5m2),
    ],
)
@pytest.mark.parametrize("is_finite", [True, False])
def test_every_number_of_a_narrow_type_is_read_exactly(codes: Any, dtype: Any, is_finite: bool) -> None:
    values = codes.view(dtype)
    wide = values.astype(np.float32)
    chosen = np.isfinite(wide) if is_finite else slice(None)
    for part, golden in ((values[chosen], wide[chosen]), (values[chosen][::3], wide[chosen][::3])):
        made = to_float32(part)
        assert np.array_equal(made, golden, equal_nan=True)
        assert np.array_equal(np.signbit(made), np.signbit(golden))


def _tensor(dtype: str) -> NkiTensor:
    allocation = Allocation(MemoryRegion.sbuf, (2, 4), dtype, UserLine("kernel.py", 1))
    return NkiTensor((2, 4), dtype, Storage(allocation))


@pytest.mark.parametrize(
    ("dtype", "unwritten"), [("float32", np.nan), ("bfloat16", np.nan), ("int32", 4), ("uint8", 4)]
)
def test_elements_that_nothing_has_written_hold_the_same_numbers_whatever_is_written_first(
    dtype: str, unwritten: float
) -> None:
    whole, part, by_part = _tensor(dtype), _tensor(dtype), _tensor(dtype)
    assert np.array_equal(whole.array().astype(np.float32), np.full((2, 4), unwritten), equal_nan=True)
    part[:, 1:3].write(np.ones((2, 2), np.float32))
    golden = np.full((2, 4), unwritten)
    golden[:, 1:3] = 1
    assert np.array_equal(part.array().astype(np.float32), golden, equal_nan=True)
    by_part.write(np.arange(8, dtype=np.float32).reshape(2, 4))
    by_part[:, 0:1].write(np.full((2, 1), 9, np.float32))
    assert by_part.array().astype(np.float32).tolist() == [[9, 1, 2, 3], [9, 5, 6, 7]]


def test_a_view_is_written_only_where_all_of_it_is() -> None:
    tensor = _tensor("float32")
    assert tensor.written() is False
    tensor[:, 0:2].write(np.ones((2, 2), np.float32))
    assert tensor[:, 0:2].written() is True
    assert np.array_equal(tensor[:, 1:3].written(), [[True, False], [True, False]])
    tensor[:, 2:4].write(np.ones((2, 2), np.float32))
    assert tensor[:, 1:3].written() is True


def test_arguments_are_in_hbm_by_either_name() -> None:
    @jit
    def kernel(x: Any) -> Any:
        assert x.buffer == nl.hbm == nl.shared_hbm
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer="hbm")
        tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
        nisa.dma_copy(dst=out, src=tile)
        return out

    assert launch_of(kernel, np.ones((2, 4), np.float32)).warnings == []
