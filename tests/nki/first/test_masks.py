"""Masks: what they select, and what instructions leave as it was."""

from __future__ import annotations

import operator

import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.errors import NeuronToolsError
from neurontools.nki.first.index import selection

COMPARISONS = [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]
terms = st.tuples(st.sampled_from(COMPARISONS), *[st.integers(-3, 3)] * 2, st.integers(-9, 9))


@given(st.lists(terms, min_size=1, max_size=3))
def test_a_mask_selects_what_numpy_selects(comparisons):
    rows, columns = nl.mgrid[0:5, 0:7]
    plain_rows, plain_columns = np.mgrid[0:5, 0:7]
    mask, wanted = True, np.ones((5, 7), dtype=bool)
    for compare, row_factor, column_factor, constant in comparisons:
        mask = compare(rows * row_factor + columns * column_factor, constant) & mask
        wanted &= compare(plain_rows * row_factor + plain_columns * column_factor, constant)
    chosen = selection(mask, (5, 7))
    made = np.full((5, 7), chosen is None)
    if chosen is not None and chosen is not False:
        made[chosen] = True
    assert made.tolist() == wanted.tolist()


def test_a_mask_of_the_first_axis_holds_for_tiles_of_more_dimensions():
    mask = nl.arange(4)[:, None] < 2
    assert selection(mask, (4, 3, 3)) == (slice(0, 2), slice(0, 3), slice(0, 3))
    assert selection(nl.arange(4)[:, None, None] < 2, (4, 1)) == (slice(0, 2), slice(0, 1))


def masked(compute, *arrays, shape=(8, 6), before=-1.0):
    """Return a tile that a kernel has filled, loaded and computed on."""

    @nki.jit(mode="simulation")
    def kernel(*tensors):
        out = nl.ndarray(shape, dtype=nl.float32, buffer=nl.shared_hbm)
        tile = nl.full(shape, before, dtype=nl.float32)
        compute(tile, *tensors)
        nl.store(out, tile)
        return out

    return kernel(*arrays)


SOURCE = np.arange(48, dtype=np.float32).reshape(8, 6)


def expected(chosen, values, before=-1.0):
    made = np.full((8, 6), before, dtype=np.float32)
    made[chosen] = values
    return made.tolist()


def test_masked_elements_keep_their_values():
    def compute(tile, a):
        rows, columns = nl.mgrid[0:8, 0:6]
        tile[rows, columns] = nl.square(nl.load(a), mask=(rows < 5) & (columns >= 2))

    assert masked(compute, SOURCE).tolist() == expected(np.s_[:5, 2:], SOURCE[:5, 2:] ** 2)


def test_a_mask_that_is_no_rectangle_selects_elements():
    def compute(tile, a):
        rows, columns = nl.mgrid[0:8, 0:6]
        tile[...] = nl.load(a[rows, columns], mask=rows > columns)

    lower = np.tril_indices(8, -1, 6)
    assert masked(compute, SOURCE).tolist() == expected(lower, SOURCE[lower])


def test_indices_may_leave_the_tensor_where_the_mask_excludes_them():
    def compute(tile, a):
        rows, columns = nl.mgrid[0:8, 0:6]
        tile[...] = nl.load(a[rows + 4, columns * 2], mask=(rows + 4 < 8) & (columns * 2 < 6))

    assert masked(compute, SOURCE).tolist() == expected(np.s_[:4, :3], SOURCE[4:, ::2])


def test_indices_of_a_mask_that_is_no_rectangle_may_leave_the_tensor():
    def compute(tile, a):
        rows, columns = nl.mgrid[0:8, 0:6]
        tile[...] = nl.load(a[rows, columns + rows], mask=columns + rows < 6)

    rows, columns = np.mgrid[0:8, 0:6]
    inside = rows + columns < 6
    assert masked(compute, SOURCE).tolist() == expected(
        inside, SOURCE[rows[inside], (rows + columns)[inside]]
    )


def test_slices_may_pass_the_end_where_the_mask_excludes_it():
    @nki.jit(mode="simulation")
    def kernel(a):
        out = nl.ndarray((10, 6), dtype=a.dtype, buffer=nl.shared_hbm)
        for tile in nl.affine_range(3):
            rows = tile * 4 + nl.arange(4)[:, None]
            loaded = nl.load(a[tile * 4 : tile * 4 + 4, :], mask=rows < 10)
            nl.store(out[nl.ds(tile * 4, 4), :], nl.exp(loaded, mask=rows < 10), mask=rows < 10)
        return out

    source = np.linspace(-1, 1, 60, dtype=np.float32).reshape(10, 6)
    assert np.allclose(kernel(source), np.exp(source))


@pytest.mark.parametrize("mask", [False, np.bool_(0), nl.arange(8)[:, None] > 9])
def test_an_instruction_whose_mask_is_false_does_not_run(mask):
    counts = []

    def compute(tile, a):
        loaded = nl.load(a, mask=mask)
        product = nisa.nc_matmul(nl.add(loaded, 1, mask=mask), loaded, mask=mask)
        tile[:, 0:6] = nl.max(loaded, axis=1, keepdims=True, mask=mask)
        tile[0:6, :] += product
        nl.store(a, loaded, mask=mask)
        nisa.dma_copy(dst=tile, src=a, mask=mask)
        nisa.tensor_copy_predicated(dst=tile, src=tile, predicate=tile, mask=mask)
        nl.random_seed(3, mask=mask)
        counts.append(len(running().records))

    from neurontools.nki.context import running

    assert set(masked(compute, SOURCE).ravel()) == {-1}
    assert counts == [1]


@pytest.mark.parametrize("mask", [True, None, nl.arange(8)[:, None] < 9])
def test_a_mask_that_holds_everywhere_changes_nothing(mask):
    def compute(tile, a):
        tile[...] = nl.load(a, mask=mask)

    assert masked(compute, SOURCE).tolist() == SOURCE.tolist()


def test_masked_elements_do_not_count_in_reductions():
    def compute(tile, a):
        rows, columns = nl.mgrid[0:8, 0:6]
        loaded = nl.load(a)
        tile[:, 0] = nl.sum(loaded, axis=1, mask=columns < 4)
        tile[:, 1] = nisa.tensor_reduce(np.max, loaded, axis=1, mask=(rows < 3) & (columns < 2), negate=True)
        tile[:, 2] = nl.min(loaded, axis=1, mask=columns >= rows)
        tile[:, 3] = nl.mean(loaded, axis=1, mask=rows < 2)

    made = masked(compute, SOURCE)
    assert made[:, 0].tolist() == SOURCE[:, :4].sum(axis=1).tolist()
    assert made[:, 1].tolist() == [-1, -7, -13, -1, -1, -1, -1, -1]
    assert made[:6, 2].tolist() == np.diag(SOURCE).tolist()
    assert made[:, 3].tolist() == [2.5, 8.5, -1, -1, -1, -1, -1, -1]


def test_stores_of_masked_elements_alone():
    @nki.jit(mode="simulation")
    def kernel(a):
        rows, columns = nl.mgrid[0:8, 0:6]
        out = nl.ndarray((8, 6), dtype=a.dtype, buffer=nl.shared_hbm)
        nl.store(out, 7)
        nl.store(out[rows, columns], nl.load(a), mask=(rows >= 2) & (columns < 3))
        nl.store(out[rows, columns], nl.load(a) * -1, mask=rows == columns)
        return out

    wanted = np.full((8, 6), 7, dtype=np.float32)
    wanted[2:, :3] = SOURCE[2:, :3]
    np.fill_diagonal(wanted[:6], -np.diag(SOURCE))
    assert kernel(SOURCE).tolist() == wanted.tolist()


def test_a_conjunction_with_and_is_the_second_mask():
    def compute(tile, a):
        rows, columns = nl.mgrid[0:8, 0:6]
        tile[...] = nl.load(a, mask=(rows < 99 and columns < 2))

    assert masked(compute, SOURCE).tolist() == expected(np.s_[:, :2], SOURCE[:, :2])


def test_masked_products_contract_the_selected_rows():
    def compute(tile, a):
        rows, columns = nl.mgrid[0:8, 0:6]
        loaded = nl.load(a)
        tile[0:6, :] = nl.matmul(loaded, loaded, transpose_x=True, mask=(rows < 3) & (columns < 2))

    made = masked(compute, SOURCE)
    assert made[:6, :2].tolist() == (SOURCE[:3].T @ SOURCE[:3, :2]).tolist()
    assert set(made[:6, 2:].ravel()) == {-1}


def test_masks_of_transposes_are_those_of_the_source():
    def compute(tile, a):
        rows, columns = nl.mgrid[0:8, 0:6]
        tile[0:6, :] = nl.load_transpose2d(a[0:6, :], mask=(rows[0:6] < 2) & (columns[0:6] < 3))

    assert masked(compute, SOURCE).tolist() == expected(np.s_[:3, :2], SOURCE[:2, :3].T)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (lambda rows, columns: (rows < 2) | (columns < 2), "comparisons are joined by `&` alone"),
        (lambda rows, columns: ~(rows < 2), "Unsupported expression in mask"),
        (lambda rows, columns: "rows", "Unsupported expression in mask: a str"),
        (lambda rows, columns: nl.arange(9)[:, None] < 2, r"has shape \(9, 1\), the tile has \(8, 6\)"),
        (
            lambda rows, columns: nl.mgrid[0:8, 0:6, 0:2][0] < 2,
            r"has 3 dimensions, the tile has the shape \(8, 6\)",
        ),
    ],
)
def test_a_wrong_mask_is_refused(mask, message):
    def compute(tile, a):
        nl.exp(tile, mask=mask(*nl.mgrid[0:8, 0:6]))

    with pytest.raises(NeuronToolsError, match=message):
        masked(compute, SOURCE)


def test_the_condition_of_an_if_must_not_depend_on_indices():
    def compute(tile, a):
        if nl.arange(8)[:, None]:
            pass

    with pytest.raises(
        ValueError, match=r"Control-flow depending on `nl\.arange` or `nl\.mgrid` is not supported"
    ):
        masked(compute, SOURCE)
