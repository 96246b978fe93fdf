"""Declarations, assignments, operators and types of tiles."""

from __future__ import annotations

import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
import numpy as np
import pytest

from neurontools.errors import NeuronToolsError
from neurontools.nki.first.dtypes import promoted
from neurontools.nki.first.launch import run

SOURCE = np.arange(48, dtype=np.float32).reshape(8, 6) + 1


def finished(kernel, *arrays):
    return run(nki.jit(kernel, mode="simulation"), arrays, {})


def records(done):
    return [
        (item.opcode, [access.allocation.label for access in item.writes])
        for item in done.launch.cores[0].records
    ]


def test_the_last_instruction_writes_to_the_tile_that_it_is_assigned_to():
    def kernel(a):
        out = nl.ndarray((8, 6), dtype=a.dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray((8, 6), dtype=a.dtype)
        copied = nl.ndarray((8, 6), dtype=a.dtype)
        tile[:, 0:3] = nl.load(a[:, 0:3])
        tile[:, 3:6] = nl.exp(tile[:, 0:3])
        copied[...] = tile
        copied[...] = copied
        nl.store(out, copied)
        return out

    done = finished(kernel, SOURCE)
    assert np.allclose(done.results, np.concatenate([SOURCE[:, :3], np.exp(SOURCE[:, :3])], axis=1))
    assert records(done) == [
        ("dma_copy", ["tile"]),
        ("activation", ["tile"]),
        ("tensor_copy", ["copied"]),
        ("dma_copy", ["out"]),
    ]


def test_the_tensor_engine_writes_to_psum_alone():
    def kernel(a):
        loaded = nl.load(a)
        inside, outside = (
            nl.ndarray((6, 6), dtype=nl.float32, buffer=nl.psum),
            nl.ndarray((6, 6), dtype=nl.float32),
        )
        inside[...] = nisa.nc_matmul(loaded, loaded)
        outside[...] = nisa.nc_matmul(loaded, loaded)
        return outside

    done = finished(kernel, SOURCE)
    assert [opcode for opcode, _ in records(done)] == ["dma_copy", "nc_matmul", "nc_matmul", "tensor_copy"]
    assert np.allclose(done.results, SOURCE.T @ SOURCE)


def test_an_assignment_repeats_columns_and_converts_types():
    def kernel(a):
        tile = nl.ndarray((8, 6), dtype=nl.int32)
        tile[...] = nl.load(a[:, 0:1]) / 2
        tile[0:1, 5] = 9
        return tile

    done = finished(kernel, SOURCE)
    wanted = np.repeat(np.rint(SOURCE[:, :1] / 2), 6, axis=1)
    wanted[0, 5] = 9
    assert done.results.dtype == np.int32
    assert done.results.tolist() == wanted.tolist()


def test_block_dimensions_number_tiles():
    def kernel(a):
        out = nl.ndarray((2, nl.par_dim(4), 6), dtype=a.dtype, buffer=nl.shared_hbm)
        blocks = nl.ndarray((2, nl.par_dim(4), 6), dtype=a.dtype)
        for block in nl.affine_range(2):
            blocks[block] = nl.load(a[nl.ds(block * 4, 4), :])
            blocks[block, :, 0:3] += 10
            nl.store(out[block], nl.copy(blocks[block]))
        return out

    wanted = SOURCE.reshape(2, 4, 6).copy()
    wanted[:, :, :3] += 10
    done = finished(kernel, SOURCE)
    assert done.results.tolist() == wanted.tolist()
    blocks = [item for item in done.launch.allocations if item.label == "blocks"]
    assert [(item.shape, item.partition_bytes) for item in blocks] == [((4, 6), 24)] * 2


def test_whole_block_tensors_are_filled():
    def kernel():
        blocks = nl.ndarray((2, nl.par_dim(4), 3), dtype=nl.float32)
        blocks[...] = 0
        like = nl.zeros_like(blocks)
        assert like.shape == (2, 4, 3)
        return blocks[1], like[0], nl.empty_like(blocks[0], dtype=nl.int8).dtype == nl.int8

    first, second, same = finished(kernel).results
    assert (first.tolist(), second.tolist(), same) == ([[0] * 3] * 4, [[0] * 3] * 4, True)


@pytest.mark.parametrize(
    ("compute", "golden"),
    [
        (lambda x, y: x + y, lambda x, y: x + y),
        (lambda x, y: x - 2.5, lambda x, y: x - 2.5),
        (lambda x, y: 2.5 - x, lambda x, y: 2.5 - x),
        (lambda x, y: x * np.float32(3), lambda x, y: x * 3),
        (lambda x, y: 1 / x, lambda x, y: 1 / x),
        (lambda x, y: x / y, lambda x, y: x / y),
        (lambda x, y: x % 5, lambda x, y: x % 5),
        (lambda x, y: x**2, lambda x, y: x**2),
        (lambda x, y: -abs(-x), lambda x, y: -x),
        (lambda x, y: x > 20, lambda x, y: x > 20),
        (lambda x, y: x <= y, lambda x, y: x <= y),
        (lambda x, y: (x == y) | (x != y), lambda x, y: np.ones_like(x)),
        (lambda x, y: x + y[:, 0:1], lambda x, y: x + y[:, :1]),
        (lambda x, y: y[0:1, :] * x, lambda x, y: x * y[:1]),
        (lambda x, y: x[:, 0:1] - y, lambda x, y: x[:, :1] - y),
        (lambda x, y: y.expand_dims(2) + x.reshape((8, 6, 1)), lambda x, y: (x + y)[:, :, None]),
        (lambda x, y: x.broadcast_to((8, 6)), lambda x, y: x),
        (lambda x, y: x[:, 0:1].broadcast_to((8, 4)), lambda x, y: np.repeat(x[:, :1], 4, axis=1)),
        (lambda x, y: nl.broadcast_to(x[0:1, :], shape=(8, 6)), lambda x, y: np.repeat(x[:1], 8, axis=0)),
        (lambda x, y: nl.sum(x, axis=1) + y[:, 1:2], lambda x, y: x.sum(axis=1, keepdims=True) + y[:, 1:2]),
        (lambda x, y: nl.multiply(x, y, dtype=nl.float16), lambda x, y: (x * y).astype(np.float16)),
        (lambda x, y: nl.mod(x, 4, nl.int32), lambda x, y: x % 4),
        (lambda x, y: nl.exp(data=x * 0), lambda x, y: np.ones_like(x)),
        (lambda x, y: nisa.nc_matmul(x, y) + nisa.nc_matmul(y, x), lambda x, y: x.T @ y + y.T @ x),
        (lambda x, y: nl.copy(x).view(nl.int32), lambda x, y: x.view(np.int32)),
        (lambda x, y: x.assert_shape((8, 6)), lambda x, y: x),
        (lambda x, y: x.astype(nl.int32) & 3, lambda x, y: x.astype(np.int32) & 3),
        (lambda x, y: ~x.astype(nl.int32) << 1, lambda x, y: ~x.astype(np.int32) << 1),
        (lambda x, y: nl.add(x, nl.arange(8)[:, None]), lambda x, y: x + np.arange(8)[:, None]),
    ],
)  # fmt: skip
def test_operators_of_tiles_are_those_of_numpy(compute, golden):
    def kernel(a, b):
        return nl.copy(compute(nl.load(a), nl.load(b)))

    other = SOURCE[::-1].copy()
    made = finished(kernel, SOURCE, other).results
    assert np.allclose(made.astype(np.float32), golden(SOURCE, other).astype(np.float32))


@pytest.mark.parametrize(
    ("first", "second", "result"),
    [
        ("int32", "float16", "float16"),
        ("uint16", "tfloat32", "tfloat32"),
        ("float32", "tfloat32", "float32"),
        ("float32", "bfloat16", "float32"),
        ("float16", "bfloat16", "float32"),
        ("float8_e4m3", "float16", "float16"),
        ("float8_e4m3", "bfloat16", "bfloat16"),
        ("float8_e4m3", "float8_e5m2", "bfloat16"),
        ("int16", "int32", "int32"),
        ("uint8", "uint16", "uint16"),
        ("uint16", "int32", "int32"),
        ("int8", "uint8", "int16"),
        ("int8", "uint16", "int32"),
        ("int32", "uint32", "float32"),
        ("bool", "int8", "int16"),
    ],
)
def test_types_are_promoted_as_documented(first, second, result):
    assert promoted(first, second) == promoted(second, first) == result


def test_the_types_of_results():
    seen = []

    def kernel(a):
        whole, half = nl.load(a, dtype=nl.int8), nl.load(a, dtype=nl.float16)
        seen.extend(
            tile.dtype
            for tile in (whole + 2, half * 1.2, half * np.float16(2), whole + whole, whole / 3, half > 1, half + whole, nl.sum(half, axis=1), nl.load(a, dtype=nl.bfloat16))
        )  # fmt: skip

    finished(kernel, SOURCE)
    assert seen == [
        np.int32,
        np.float32,
        np.float16,
        np.int8,
        np.float32,
        np.bool_,
        np.float16,
        np.float16,
        nl.bfloat16,
    ]


def test_what_a_tensor_tells():
    def kernel(a):
        tile = nl.ndarray((4, 5), dtype=nl.bfloat16, buffer=nl.psum, name="mine")
        assert (a.shape, a.ndim, a.size, a.itemsize, len(a), a.on_chip) == ((8, 6), 2, 48, 4, 8, False)
        assert (tile.buffer is nl.psum, tile.name, tile.label, tile.itemsize) == (
            True,
            "mine",
            "bfloat16 mine[4, 5]",
            2,
        )
        assert repr(tile).startswith("mine: bfloat16 (4, 5) in psum, address left to the compiler\n[[nan ")
        assert a.buffer is nl.shared_hbm
        assert np.dtype(tile.dtype).itemsize == 2
        assert {tile: 1}[tile] == 1

    finished(kernel, SOURCE)


def test_types_of_one_byte_are_read_from_other_bytes():
    def kernel(a):
        return nl.load(a.view(nl.float8_e5m2), dtype=nl.float32), nl.load(a.view(nl.int8))

    source = np.array([[1, 2.5, -4, 0.5]] * 2, dtype=nl.float8_e5m2)
    for mode in ("simulation", "baremetal"):
        values, bits = run(nki.jit(kernel, mode=mode), (source.view(np.uint8),), {}).results
        assert values.tolist() == source.astype(np.float32).tolist()
        assert bits.tolist() == source.view(np.int8).tolist()


def test_one_element_is_loaded_and_stored():
    def kernel(a):
        out = nl.ndarray((2, 3), dtype=nl.float32, buffer=nl.shared_hbm)
        nl.store(out, 0)
        nl.store(out[1, 2], nl.load(a[7, 5]) + nl.load(a[0, 0:1]))
        return out

    assert finished(kernel, SOURCE).results.tolist() == [[0, 0, 0], [0, 0, 49]]


def test_an_optional_argument_is_asked_for_by_its_truth():
    def kernel(x, offset=None):
        tile = nl.load(x)
        return nl.load(offset) + tile if offset else tile

    assert np.array_equal(finished(kernel, SOURCE).results, SOURCE)
    assert np.array_equal(finished(kernel, SOURCE, SOURCE).results, 2 * SOURCE)


def test_constants_are_tensors_in_hbm():
    def kernel():
        array = nl.shared_constant(np.array([[1, 2], [3, 4]], dtype=np.int8), dtype=nl.bfloat16)
        assert not array.on_chip
        return nl.load(array, dtype=nl.float32), nl.load(nl.shared_identity_matrix(3))

    constant, identity = finished(kernel).results
    assert (constant.tolist(), identity.tolist()) == ([[1, 2], [3, 4]], np.eye(3).tolist())


@pytest.mark.parametrize(
    ("use", "kind", "message"),
    [
        (lambda a: nl.zeros((129, 2), dtype=nl.float32), SyntaxError, "number of partitions 129 exceed architecture limitation of 128."),
        (lambda a: nl.load(a.reshape((48, 1)).broadcast_to((48, 1)).reshape((8, 6))) and None, ValueError, "Cannot evaluate truth value"),
        (lambda a: nl.add(nl.ndarray((2, nl.par_dim(8), 4), dtype=nl.float32), 32), AssertionError, r"Failed to infer tile from tensor 'float32 \[2, 8, 4\]'"),
        (lambda a: nl.ndarray((2, nl.par_dim(8), 4), dtype=nl.float32)[0:1, :, :], AssertionError, "Failed to infer tile"),
        (lambda a: nl.ndarray((2, nl.par_dim(8), 4), dtype=nl.float32)[2], SyntaxError, r"on dimension 0: index range \[2, 2\] exceed dimension size of 2"),
        (lambda a: nl.full((8, 4), 1.0, dtype=nl.float32, buffer=nl.shared_hbm), AssertionError, "Creating HBM tensor with init value is not supported"),
        (lambda a: nl.zeros((8, 1), dtype=nl.float32).__setitem__(..., nl.load(a)), SyntaxError, r"shape \[8, 1\] of parameter 'a' is smaller than other parameter shapes b\[8, 6\]"),
        (lambda a: nl.store(nl.ndarray((8, 2), dtype=nl.float32, buffer=nl.hbm), nl.load(a)), SyntaxError, r"shape \[8, 2\] of parameter 'dst' is smaller"),
        (nl.exp, AssertionError, r"operand `float32 a\[8, 6\]` is in HBM, must be in SBUF or PSUM"),
        (lambda a: nl.ndarray((8, 6), dtype=nl.float32, buffer=nl.hbm).__setitem__(..., nl.load(a)), AssertionError, "write it with nl.store|is in HBM"),
        (lambda a: nl.load(nl.load(a)), AssertionError, "is on the chip, must be in HBM"),
        (lambda a: list(nl.load(a)), AssertionError, "a tensor cannot be iterated over"),
        (lambda a: nl.load(a) + nl.zeros((3, 6), dtype=nl.float32), AssertionError, r"shapes \(8, 6\) and \(3, 6\) do not broadcast"),
        (lambda a: nl.load(a).assert_shape((8, 7)), AssertionError, "does not match the expected shape"),
        (lambda a: nl.exp("a"), AssertionError, "an operand is a str, not a tile"),
        (lambda a: nl.transpose(nl.zeros((8, 2, 2), dtype=nl.float32)), SyntaxError, "exceed max supported number of dimensions of 2"),
        (lambda a: nl.transpose(nl.zeros((8, 200), dtype=nl.float32)), SyntaxError, "size of dimension 1 in .* of 'transpose' exceed architecture limitation of 128"),
        (lambda a: nl.ndarray((8, 6), dtype="int7"), NeuronToolsError, "unknown data type of a kernel: 'int7'"),
        (lambda a: nl.ndarray((8, 6), dtype=nl.float32, buffer="sbuf"), AssertionError, "'sbuf' is not a memory"),
        (lambda a: nl.sum(nl.load(a), axis=0), AssertionError, "the partition dimension is not reduced"),
    ],
)  # fmt: skip
def test_a_wrong_use_is_refused_in_the_words_of_the_documentation(use, kind, message):
    def kernel(a):
        return use(a)

    with pytest.raises(kind, match=message) as caught:
        finished(kernel, SOURCE)
    assert isinstance(caught.value, NeuronToolsError)
