"""Views of tensors name the same elements as numpy's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from neurontools.compat.nki import isa as nisa
from neurontools.compat.nki import language as nl
from neurontools.nki.launch import Kernel, run

if TYPE_CHECKING:
    from collections.abc import Callable

DATA = np.arange(4 * 6 * 8, dtype=np.float32).reshape(4, 6, 8)

VIEWS: dict[str, tuple[Callable[[Any], Any], np.ndarray]] = {
    "slice": (lambda t: t[:, 1:5:2], DATA[:, 1:5:2]),
    "integer": (lambda t: t[:, 2], DATA[:, 2]),
    "negative": (lambda t: t[:, -1, -3:], DATA[:, -1, -3:]),
    "ellipsis": (lambda t: t[..., 3], DATA[..., 3]),
    "partition keeps its dimension": (lambda t: t[2], DATA[2:3]),
    "dynamic slice": (lambda t: t[:, nl.ds(1, 3)], DATA[:, 1:4]),
    "base tensor": (lambda t: t[:, 1:5:2].base_tensor, DATA),
    "select": (lambda t: t.select(1, 4), DATA[:, 4]),
    "slice method": (lambda t: t.slice(2, 1, 7, 3), DATA[:, :, 1:7:3]),
    "permute": (lambda t: t.permute((0, 2, 1)), DATA.transpose(0, 2, 1)),
    "reshape": (lambda t: t.reshape((4, 3, 16)), DATA.reshape(4, 3, 16)),
    "reshape with a free size": (lambda t: t.reshape((4, -1)), DATA.reshape(4, -1)),
    "reshape_dim": (lambda t: t.reshape_dim(1, (2, -1)), DATA.reshape(4, 2, 3, 8)),
    "flatten_dims": (lambda t: t.flatten_dims(1, 2), DATA.reshape(4, 48)),
    "expand_dim": (lambda t: t.expand_dim(1), DATA[:, None]),
    "squeeze_dim": (lambda t: t[:, 0:1].squeeze_dim(1), DATA[:, 0]),
    "broadcast": (lambda t: t[:, 0:1].broadcast(1, 5), np.broadcast_to(DATA[:, 0:1], (4, 5, 8))),
    "rearrange": (
        lambda t: t.rearrange(("p", ("a", "b"), "c"), ("p", "b", "a", "c"), {"a": 2}),
        DATA.reshape(4, 2, 3, 8).transpose(0, 2, 1, 3),
    ),
    "access pattern": (lambda t: t.ap([[48, 4], [8, 3], [2, 4]], offset=1), DATA[:, 0:3, 1::2]),
    "other type of the same size": (lambda t: t.view(nl.int32), DATA.view(np.int32)),
    "smaller type": (lambda t: t.view(nl.uint8), DATA.view(np.uint8)),
    "views of views": (
        lambda t: t[:, 1:5].permute((0, 2, 1))[:, 2:6, 1:3],
        DATA[:, 1:5].transpose(0, 2, 1)[:, 2:6, 1:3],
    ),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(name: str) -> None:
    make, expected = VIEWS[name]

    def kernel(data: Any) -> Any:
        tile = nl.ndarray(data.shape, data.dtype)
        nisa.dma_copy(tile, data)
        view = make(tile)
        assert view.shape == expected.shape
        assert view.size == expected.size
        out = nl.ndarray(expected.shape, view.dtype, nl.shared_hbm)
        nisa.dma_copy(out, view)
        return out

    np.testing.assert_array_equal(run(Kernel(kernel), (DATA,), {}).results, expected)


def test_writes_through_a_view_reach_the_tensor_alone_where_it_names_elements() -> None:
    def kernel(data: Any) -> Any:
        tile = nl.load(data)
        nisa.memset(tile[:, 1:5:2, 0:4], -1)
        out = nl.ndarray(data.shape, data.dtype, nl.shared_hbm)
        nisa.dma_copy(out, tile)
        return out

    expected = DATA.copy()
    expected[:, 1:5:2, 0:4] = -1
    np.testing.assert_array_equal(run(Kernel(kernel), (DATA,), {}).results, expected)


def test_integers_drop_dimensions_of_tensors_in_hbm() -> None:
    def kernel(data: Any) -> Any:
        assert data[1].shape == (6, 8)
        assert data[1, 2, 3].shape == (1,)
        assert data.select(0, 2).shape == (6, 8)
        out = nl.ndarray((6, 8), data.dtype, nl.shared_hbm)
        nisa.dma_copy(out, data[1])
        return out

    np.testing.assert_array_equal(run(Kernel(kernel), (DATA,), {}).results, DATA[1])


@pytest.mark.parametrize(
    ("make", "contiguous"),
    [
        (lambda t: t, True),
        (lambda t: t[:, 1:3], True),
        (lambda t: t[:, :, 0:2], False),
        (lambda t: t.permute((0, 2, 1)), False),
    ],
)
def test_contiguity_is_that_of_each_partition(make: Callable[[Any], Any], contiguous: bool) -> None:
    def kernel(data: Any) -> None:
        view = make(nl.load(data))
        assert view.is_contiguous() is contiguous
        assert view.get_pattern() == [
            [stride, size] for stride, size in zip(view.strides, view.shape, strict=True)
        ]

    run(Kernel(kernel), (DATA,), {})


def test_a_scalar_offset_moves_a_pattern() -> None:
    def kernel(data: Any, index: Any) -> Any:
        number = nl.load(index)
        tile = nl.ndarray((6, 8), data.dtype)
        nisa.dma_copy(tile, data.ap([[8, 6], [1, 8]], scalar_offset=number, indirect_dim=0))
        again = nl.ndarray((6, 8), data.dtype)
        nisa.dma_copy(again, data.select(0, number))
        nisa.tensor_tensor(tile, tile, again, nl.add)
        out = nl.ndarray((6, 8), data.dtype, nl.shared_hbm)
        nisa.dma_copy(out, tile)
        return out

    result = run(Kernel(kernel), (DATA, np.array([[3]], np.int32)), {}).results
    np.testing.assert_array_equal(result, 2 * DATA[3])


def test_rows_of_a_tensor_in_hbm_are_selected_by_a_vector() -> None:
    def kernel(data: Any, index: Any) -> Any:
        rows = nl.load(index)
        tile = nl.ndarray((3, 6, 8), data.dtype)
        nisa.dma_copy(tile, data.vector_select(0, rows))
        out = nl.ndarray((3, 6, 8), data.dtype, nl.shared_hbm)
        nisa.dma_copy(out, tile)
        return out

    rows = np.array([[2], [0], [2]], np.int32)
    np.testing.assert_array_equal(run(Kernel(kernel), (DATA, rows), {}).results, DATA[rows[:, 0]])
