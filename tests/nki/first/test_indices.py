"""Index expressions, subscripts, and their bounds."""

from __future__ import annotations

import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
import numpy as np
import pytest

from neurontools.errors import NeuronToolsError


def numbers(*shape, dtype=np.float32):
    return np.arange(np.prod(shape), dtype=dtype).reshape(shape)


def loaded(subscript, source, out_shape, mask=None):
    """Return what a load of a subscript of an array gives."""

    @nki.jit(mode="simulation")
    def kernel(a):
        out = nl.ndarray(out_shape, dtype=a.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.load(subscript(a)))
        return out

    return kernel(source)


@pytest.mark.parametrize(
    ("subscript", "golden", "shape"),
    [
        (lambda a: a[2:6, 1:4], lambda a: a[2:6, 1:4], (8, 6)),
        (lambda a: a[0:8:2, 1], lambda a: a[0:8:2, 1:2], (8, 6)),
        (lambda a: a[nl.ds(3, 4), :], lambda a: a[3:7], (8, 6)),
        (lambda a: a[-1, 2:], lambda a: a[-1, 2:][:, None], (8, 6)),
        (lambda a: a[1, ..., 2], lambda a: a[1, :, 2][:, None], (4, 5, 6)),
        (lambda a: a[1], lambda a: a[1], (4, 5, 6)),
        (lambda a: a[3, 2], lambda a: a[3:4, 2:3], (8, 6)),
        (lambda a: a[nl.arange(4)[:, None], nl.arange(3)[None, :]], lambda a: a[:4, :3], (8, 6)),
        (lambda a: a[7 - nl.arange(4)[:, None], 2 * nl.arange(3)[None, :]], lambda a: a[7:3:-1, 0:6:2], (8, 6)),
        (lambda a: a[2 + nl.arange(2, 5)[:, None], 1], lambda a: a[4:7, 1:2], (8, 6)),
        (lambda a: a[nl.arange(4)[:, None] + nl.arange(3)[None, :], 0], lambda a: a[np.add.outer(range(4), range(3)), 0], (8, 6)),
        (lambda a: a[nl.mgrid[0:3, 1:4]], lambda a: a[0:3, 1:4], (8, 6)),
        (
            lambda a: a[nl.mgrid[0:4, 0:2, 0:3].p, nl.mgrid[0:4, 0:2, 0:3].x * 2, 5 - nl.mgrid[0:4, 0:2, 0:3].y],
            lambda a: a[:, 0:4:2, 5:2:-1],
            (4, 5, 6),
        ),
    ],
)  # fmt: skip
def test_a_subscript_names_the_elements_of_numpy(subscript, golden, shape):
    source = numbers(*shape)
    wanted = golden(source)
    assert loaded(subscript, source, wanted.shape).tolist() == wanted.tolist()


def test_a_vector_is_loaded_as_a_column():
    assert loaded(lambda a: a[0:5], numbers(8), (5, 1)).tolist() == [[0], [1], [2], [3], [4]]


def test_the_fields_of_mgrid():
    grid = nl.mgrid[0:2, 0:3, 1:5]
    assert [index.shape for index in grid] == [(2, 3, 4)] * 3
    assert grid.y.values()[1, 2].tolist() == [1, 2, 3, 4]
    assert (grid.p.bounds(), grid.x.bounds(), grid.y.bounds()) == ((0, 1), (0, 2), (1, 4))
    with pytest.raises(AttributeError, match="no field 'z'"):
        _ = grid.z


def test_expressions_of_numpy_numbers_stay_affine():
    index = np.int32(3) * nl.arange(4)[:, None] - np.int64(2) + 1
    assert index.values().tolist() == [[-1], [2], [5], [8]]
    assert (5 - index).values().ravel().tolist() == [6, 3, 0, -3]


def test_on_the_chip_numbers_drop_block_dimensions_and_keep_two():
    shapes = []

    @nki.jit(mode="simulation")
    def kernel():
        blocks = nl.ndarray((2, 3, nl.par_dim(16), 4, 5), dtype=nl.float32, buffer=nl.sbuf)
        shapes.append(blocks[1].shape)
        shapes.append(blocks[1, 2].shape)
        shapes.append(blocks[1, 2, :, 1].shape)
        shapes.append(blocks[1, 2, :, 1, 0].shape)
        shapes.append(blocks[1, 2, 3, 0:2, 0].shape)
        shapes.append(blocks[0, 0, nl.arange(8)[:, None], 2, 0].shape)
        shapes.append((blocks.ndim, blocks.size, blocks.dtype, blocks.itemsize))

    kernel()
    assert shapes == [
        (3, 16, 4, 5),
        (16, 4, 5),
        (16, 5),
        (16, 1),
        (1, 2),
        (8, 1),
        (5, 1920, np.float32, 4),
    ]


@pytest.mark.parametrize("chosen", [[5, 0, 3, 3], [7, 7, 7, 7]])
def test_an_index_tile_gathers_rows(chosen):
    @nki.jit(mode="simulation")
    def kernel(a, wanted):
        out = nl.ndarray((4, 6), dtype=a.dtype, buffer=nl.shared_hbm)
        rows = nl.load(wanted)
        nl.store(out, nl.load(a[rows, nl.arange(6)[None, :]]))
        return out

    source = numbers(8, 6)
    assert kernel(source, np.array(chosen, dtype=np.int32)).tolist() == source[chosen].tolist()


def test_index_tiles_scatter_rows_and_add_up_equal_ones():
    @nki.jit(mode="simulation")
    def kernel(a, wanted):
        out = nl.ndarray((8, 6), dtype=a.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.full((8, 6), 1, dtype=a.dtype))
        columns = nl.arange(6)[None, :]
        nl.store(out[nl.load(wanted), columns], nl.load(a))
        nl.atomic_rmw(
            out[nisa.iota(nl.arange(4)[:, None] * 0, dtype=nl.int32), columns], nl.load(a), op=np.add
        )
        return out

    source = numbers(4, 6)
    wanted = np.ones((8, 6), dtype=np.float32)
    wanted[[2, 4, 6, 7]] = source
    wanted[0] += source.sum(axis=0)
    assert kernel(source, np.array([2, 4, 6, 7], dtype=np.int32)).tolist() == wanted.tolist()


def test_an_index_tile_plus_an_expression_chooses_columns_on_the_chip():
    @nki.jit(mode="simulation")
    def kernel(a, offsets):
        out = nl.ndarray((4, 3), dtype=a.dtype, buffer=nl.shared_hbm)
        tile, starts = nl.load(a), nl.load(offsets)
        rows, columns = nl.mgrid[0:4, 0:3]
        nl.store(out, nisa.tensor_copy_dynamic_src(tile[rows, starts[0, 1] + columns]))
        return out

    source = numbers(4, 8)
    assert kernel(source, np.array([[1, 4]], dtype=np.int32)).tolist() == source[:, 4:7].tolist()


def test_an_index_tile_out_of_bounds_is_an_index_error_with_the_line():
    @nki.jit(mode="simulation")
    def kernel(a):
        rows = nisa.iota(3 * nl.arange(4)[:, None], dtype=nl.int32)
        return nl.load(a[rows, nl.arange(6)[None, :]])

    with pytest.raises(IndexError) as caught:
        kernel(numbers(8, 6))
    assert str(caught.value) == "index 54 is out of bounds for axis 0 with size 48"
    assert __file__ in caught.value.__notes__[0]


def test_skipped_rows_of_a_transfer_keep_their_values():
    @nki.jit(mode="simulation")
    def kernel(a):
        rows = nisa.iota(3 * nl.arange(4)[:, None], dtype=nl.int32)
        tile = nisa.memset((4, 6), -1, dtype=a.dtype)
        out = nl.ndarray((4, 6), dtype=a.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(src=a[rows, nl.arange(6)[None, :]], dst=tile, oob_mode=nisa.oob_mode.skip)
        nl.store(out, tile)
        return out

    source = numbers(8, 6)
    assert kernel(source).tolist() == [*source[[0, 3, 6]].tolist(), [-1] * 6]


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda a: nl.load(a[nl.arange(4), 0]), "indexing tensor `a` with 1d arange is not supported"),
        (lambda a: nl.load(a[nl.arange(4)[:, None], 0:2]), "mixing basic tensor indexing"),
        (lambda a: nl.load(a[0:2, 0:2, 0:2]), "3 indices for the 2 dimensions"),
        (lambda a: nl.load(a["x"]), "str cannot be an index"),
        (lambda a: nl.load(a[4:2, :]), "the slice of dimension 0 is empty"),
        (lambda a: nl.load(a[0:9, :]), r"Out-of-bound access for tensor `a` on dimension 0: index range \[0, 8\] exceed dimension size of 8"),
        (lambda a: nl.load(a[nl.mgrid[0:4, 4:9]]), r"on dimension 1: index range \[4, 8\] exceed dimension size of 6"),
        (lambda a: nl.load(a[nl.arange(4)[:, None] - 1, 0]), r"on dimension 0: index range \[-1, 2\]"),
        (lambda a: nl.load(a[9]), r"on dimension 0: index range \[9, 9\] exceed dimension size of 8"),
        (lambda a: nl.arange(4)[:, None] * nl.arange(4)[:, None], "the product of two index expressions is not affine"),
        (lambda a: nl.arange(4)[:, None] // 2, "sums and products with numbers alone"),
        (lambda a: nl.mgrid[0:1, 0:8][1].__setitem__((0, 5), 1), "'index' tensor does not support item assignment"),
    ],
)  # fmt: skip
def test_a_wrong_subscript_names_its_line(use, message):
    @nki.jit(mode="simulation")
    def kernel(a):
        use(a)

    with pytest.raises(NeuronToolsError, match=message) as caught:
        kernel(numbers(8, 6))
    assert str(caught.value).startswith(f"{__file__}:")


def test_an_access_out_of_bounds_names_the_declaration():
    @nki.jit(mode="simulation")
    def kernel(a):
        tile = nl.ndarray((8, 4), dtype=a.dtype)
        nl.exp(tile[0:8, 2:6])

    line = kernel.func.__code__.co_firstlineno
    with pytest.raises(SyntaxError) as caught:
        kernel(numbers(8, 6))
    assert str(caught.value).splitlines() == [
        (
            f"{__file__}:{line + 3}: exp: Out-of-bound access for tensor `tile` on dimension 1: index range [2, 5] exceed"
            " dimension size of 4"
        ),
        f"note: tile declared at {__file__}:{line + 2}",
    ]
