"""What each instruction computes, against numpy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest

from neurontools.compat.nki import isa as nisa
from neurontools.compat.nki import language as nl
from neurontools.nki.launch import jit
from tests.nki.kernels import on_tiles

if TYPE_CHECKING:
    from collections.abc import Callable

RANDOM = np.random.default_rng(3)
A = RANDOM.standard_normal((64, 32), dtype=np.float32)
B = RANDOM.standard_normal((64, 32), dtype=np.float32)
POSITIVE = np.abs(A) + np.float32(0.1)
COLUMN = RANDOM.standard_normal((64, 1), dtype=np.float32)
INTEGERS = RANDOM.integers(-1000, 1000, (64, 32), dtype=np.int32)

ELEMENTWISE: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...], Any]] = {
    "tensor_copy": (nisa.tensor_copy, (A,), A),
    "memset": (lambda d, a: nisa.memset(d, 2.5), (A,), np.full_like(A, 2.5)),
    "tensor_tensor add": (lambda d, a, b: nisa.tensor_tensor(d, a, b, nl.add), (A, B), A + B),
    "tensor_tensor maximum": (
        lambda d, a, b: nisa.tensor_tensor(d, a, b, nl.maximum),
        (A, B),
        np.maximum(A, B),
    ),
    "tensor_tensor less": (
        lambda d, a, b: nisa.tensor_tensor(d, a, b, nl.less),
        (A, B),
        (A < B).astype(np.float32),
    ),
    "tensor_tensor power": (
        lambda d, a, b: nisa.tensor_tensor(d, a, b, nl.power),
        (POSITIVE, B),
        POSITIVE**B,
    ),
    "tensor_tensor of numpy's function": (
        lambda d, a, b: nisa.tensor_tensor(d, a, b, np.multiply),
        (A, B),
        A * B,
    ),
    "tensor_scalar": (
        lambda d, a: nisa.tensor_scalar(d, a, nl.multiply, 2.0, op1=nl.add, operand1=1.0),
        (A,),
        A * 2 + 1,
    ),
    "tensor_scalar reversed": (
        lambda d, a: nisa.tensor_scalar(d, a, nl.subtract, 1.0, reverse0=True),
        (A,),
        1 - A,
    ),
    "tensor_scalar of a column": (
        lambda d, a, c: nisa.tensor_scalar(d, a, nl.subtract, c),
        (A, COLUMN),
        A - COLUMN,
    ),
    "tensor_scalar unary": (
        lambda d, a: nisa.tensor_scalar(d, a, nl.rsqrt, None),
        (POSITIVE,),
        1 / np.sqrt(POSITIVE),
    ),
    "scalar_tensor_tensor": (
        lambda d, a, b: nisa.scalar_tensor_tensor(d, a, nl.multiply, 3.0, nl.subtract, b, reverse1=True),
        (A, B),
        B - A * 3,
    ),
    "reciprocal": (nisa.reciprocal, (POSITIVE,), 1 / POSITIVE),
    "activation exp": (
        lambda d, a, c: nisa.activation(d, nl.exp, a, bias=c, scale=0.5),
        (A, COLUMN),
        np.exp(A * 0.5 + COLUMN),
    ),
    "activation gelu": (
        lambda d, a: nisa.activation(d, nl.gelu, a),
        (A,),
        np.vectorize(lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))))(A),
    ),
    "activation silu": (lambda d, a: nisa.activation(d, nl.silu, a), (A,), A / (1 + np.exp(-A))),
    "iota": (
        lambda d, a: nisa.iota(d, [[4, 8], [1, 4]], offset=5, channel_multiplier=100),
        (INTEGERS,),
        5 + 100 * np.arange(64)[:, None] + np.arange(32)[None, :],
    ),
    "affine_select": (
        lambda d, a: nisa.affine_select(d, [[-1, 32]], 1, a, -9.0, nl.greater_equal),
        (A,),
        np.where(np.arange(64)[:, None] - np.arange(32)[None, :] >= 0, A, -9),
    ),
    "tensor_tensor_scan": (
        lambda d, a, b: nisa.tensor_tensor_scan(d, a, b, 0.0, nl.multiply, nl.add),
        (np.full_like(A, 0.5), B),
        None,
    ),
    "int32 keeps all bits": (
        lambda d, a: nisa.tensor_tensor(d, a, a, nl.add),
        (np.full((64, 32), 123456789, np.int32),),
        np.full((64, 32), 246913578, np.int32),
    ),
    "right_shift has no sign": (
        lambda d, a: nisa.tensor_scalar(d, a, nl.right_shift, 28),
        (np.full((64, 32), -1, np.int32),),
        np.full((64, 32), 15, np.int32),
    ),
    "bitwise_and": (lambda d, a: nisa.tensor_scalar(d, a, nl.bitwise_and, 7), (INTEGERS,), INTEGERS & 7),
}


def _scan(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    out, state = np.empty_like(b), np.zeros(b.shape[0], np.float32)
    for column in range(b.shape[1]):
        state = a[:, column] * state + b[:, column]
        out[:, column] = state
    return out


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise(name: str) -> None:
    step, arrays, expected = ELEMENTWISE[name]
    wanted = _scan(*arrays) if expected is None else expected
    np.testing.assert_allclose(on_tiles(step, *arrays), wanted, rtol=2e-6, atol=2e-6)


REDUCTIONS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...], tuple[int, ...], np.ndarray]] = {
    "tensor_reduce add": (
        lambda d, a: nisa.tensor_reduce(d, nl.add, a, 1),
        (A,),
        (64, 1),
        A.sum(1, keepdims=True),
    ),
    "tensor_reduce negated maximum": (
        lambda d, a: nisa.tensor_reduce(d, nl.maximum, a, (1,), negate=True),
        (A,),
        (64, 1),
        -A.max(1, keepdims=True),
    ),
    "tensor_partition_reduce": (
        lambda d, a: nisa.tensor_partition_reduce(d, nl.add, a),
        (A,),
        (1, 32),
        A.sum(0, keepdims=True),
    ),
    "max8": (nisa.max8, (A,), (64, 8), -np.sort(-A, axis=1)[:, :8]),
    "transpose on the Vector engine": (
        lambda d, a: nisa.nc_transpose(d, a[0:32, 0:32]),
        (A,),
        (32, 32),
        A[:32, :32].T,
    ),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str) -> None:
    step, arrays, shape, expected = REDUCTIONS[name]
    np.testing.assert_allclose(on_tiles(step, *arrays, shape=shape), expected, rtol=2e-6, atol=1e-5)


def test_products_add_up_in_psum() -> None:
    left = RANDOM.standard_normal((64, 16), dtype=np.float32)

    def step(dst: Any, a: Any, b: Any) -> None:
        nisa.nc_matmul(dst, a, b)
        nisa.nc_matmul(dst, a, b)

    result = on_tiles(step, left, A, shape=(16, 32), buffer=nl.psum)
    np.testing.assert_allclose(result, 2 * (left.T @ A), rtol=1e-5)


def test_the_first_product_overwrites_where_the_kernel_says_so() -> None:
    def step(dst: Any, a: Any) -> None:
        for number in range(3):
            nisa.nc_matmul(dst, a, a, accumulate=number > 1)

    np.testing.assert_allclose(on_tiles(step, A, shape=(32, 32), buffer=nl.psum), 2 * (A.T @ A), rtol=1e-5)


def test_transposes_keep_infinities() -> None:
    values = A.copy()
    values[3, 4], values[5, 6] = np.inf, np.nan
    result = on_tiles(
        lambda d, a: nisa.nc_transpose(d, a, engine=nisa.engine.tensor),
        values,
        shape=(32, 64),
        buffer=nl.psum,
    )
    np.testing.assert_array_equal(result, values.T)


def test_double_row_contracts_256() -> None:
    eight = RANDOM.standard_normal((128, 2, 4)).astype(ml_dtypes.float8_e4m3)

    def step(dst: Any, a: Any) -> None:
        nisa.nc_matmul(dst, a, a, perf_mode=nisa.matmul_perf_mode.double_row)

    wide = eight.astype(np.float32).reshape(256, 4)
    np.testing.assert_allclose(
        on_tiles(step, eight, shape=(4, 4), dtype=nl.float32, buffer=nl.psum), wide.T @ wide, rtol=1e-5
    )


def test_find_and_replace_serve_equal_values_from_opposite_ends() -> None:
    data = np.array([[1, 2, 3, 4, 8, 8, 8, 8, 8, 8, 8]], np.float32)
    values = np.array([[3, 8, 8, 8, 8, 8, 8, 8]], np.float32)
    found = on_tiles(nisa.nc_find_index8, data, values, shape=(1, 8), dtype=nl.uint32)
    assert found.tolist() == [[2, 4, 5, 6, 7, 8, 9, 10]]

    def replace(dst: Any, a: Any, v: Any) -> None:
        nisa.nc_match_replace8(nl.ndarray(a.shape, a.dtype), a, v, -1.0, dst_idx=dst)

    places = on_tiles(replace, data, values, shape=(1, 8), dtype=nl.uint32)
    assert places.tolist() == [[2, 10, 9, 8, 7, 6, 5, 4]]


def test_find_marks_values_that_are_missing() -> None:
    data, values = np.zeros((1, 8), np.float32), np.arange(1, 9, dtype=np.float32)[None]
    found = on_tiles(nisa.nc_find_index8, data, values, shape=(1, 8), dtype=nl.uint16)
    assert set(found[0].tolist()) == {0xFFFF}


def test_bn_statistics_join_to_mean_and_variance() -> None:
    def step(dst: Any, a: Any) -> None:
        statistics = nl.ndarray((64, 12), nl.float32)
        nisa.bn_stats(statistics[:, 0:6], a[:, 0:20])
        nisa.bn_stats(statistics[:, 6:12], a[:, 20:32])
        nisa.bn_aggr(dst, statistics)

    expected = np.stack([A.mean(1), A.var(1)], axis=1)
    np.testing.assert_allclose(on_tiles(step, A, shape=(64, 2)), expected, rtol=1e-4, atol=1e-6)


def test_sums_continue_in_the_registers_of_the_scalar_engine() -> None:
    def step(dst: Any, a: Any) -> None:
        out = nl.ndarray(a.shape, a.dtype)
        nisa.activation(out, nl.copy, a, reduce_cmd=nisa.reduce_cmd.reset_reduce)
        nisa.activation(out, nl.square, a, reduce_res=dst, reduce_cmd=nisa.reduce_cmd.reduce)

    expected = (A + A * A).sum(1, keepdims=True)
    np.testing.assert_allclose(on_tiles(step, A, shape=(64, 1)), expected, rtol=1e-5, atol=1e-5)


def test_range_select_writes_the_smallest_number_elsewhere() -> None:
    low, high = np.full((64, 1), 3, np.float32), np.full((64, 1), 7, np.float32)

    def step(dst: Any, a: Any, lower: Any, upper: Any) -> None:
        nisa.range_select(dst, a, nl.greater_equal, nl.less, lower, upper)

    result = on_tiles(step, A, low, high)
    np.testing.assert_array_equal(result[:, 3:7], A[:, 3:7])
    assert (result[:, :3] == np.finfo(np.float32).min).all()
    assert (result[:, 7:] == np.finfo(np.float32).min).all()


def test_shuffle_moves_partitions_within_quadrants() -> None:
    mask = [*range(31, 0, -1), 255]

    def step(dst: Any, a: Any) -> None:
        nisa.memset(dst, 0)
        nisa.nc_stream_shuffle(dst, a, mask)

    result = on_tiles(step, A)
    np.testing.assert_array_equal(result[0], A[31])
    np.testing.assert_array_equal(result[32], A[63])
    assert (result[[31, 63]] == 0).all()


def test_nonzero_reads_and_writes_every_sixteenth_partition() -> None:
    values = np.zeros((32, 8), np.float32)
    values[0, [1, 2, 5]] = 1

    def step(dst: Any, a: Any) -> None:
        nisa.memset(dst, 7)
        nisa.nonzero_with_count(dst, a, index_offset=16)

    result = on_tiles(step, values, shape=(32, 9), dtype=nl.int32)
    assert result[0].tolist() == [17, 18, 21, -1, -1, -1, -1, -1, 3]
    assert result[16].tolist() == [-1] * 8 + [0]
    assert (result[1:16] == 7).all()


def test_gather_and_scatter_by_rows() -> None:
    table = RANDOM.standard_normal((50, 16), dtype=np.float32)
    rows = np.array([[7], [3], [49], [0]], np.int32)

    @jit
    def kernel(data: Any, indices: Any) -> Any:
        index, tile = nl.load(indices), nl.ndarray((4, 16), nl.float32)
        nisa.dma_copy(tile, data.ap([[16, 4], [1, 16]], vector_offset=index))
        out = nl.ndarray((50, 16), nl.float32, nl.shared_hbm)
        nisa.dma_copy(out, nl.zeros((50, 16), nl.float32))
        nisa.dma_copy(out.ap([[16, 4], [1, 16]], vector_offset=index), tile)
        return out

    expected = np.zeros_like(table)
    expected[rows[:, 0]] = table[rows[:, 0]]
    np.testing.assert_array_equal(kernel(table, rows), expected)


def test_rows_out_of_bounds_are_left_out_on_demand() -> None:
    rows = np.array([[1], [99]], np.int32)

    def step(dst: Any, indices: Any, data: Any) -> None:
        out = nl.ndarray((64, 32), nl.float32, nl.private_hbm)
        nisa.dma_copy(out, data)
        nisa.memset(dst, 5)
        nisa.dma_copy(dst, out.ap([[32, 2], [1, 32]], vector_offset=indices), oob_mode=nisa.oob_mode.skip)

    result = on_tiles(step, rows, A, shape=(2, 32), dtype=nl.float32)
    np.testing.assert_array_equal(result[0], A[1])
    assert (result[1] == 5).all()


def test_local_gather_takes_the_indices_of_its_sixteen_partitions() -> None:
    index = RANDOM.integers(0, 32, (32, 2), dtype=np.uint16)
    data = A[:32]
    result = on_tiles(nisa.local_gather, data, index, shape=(32, 32))
    for start in (0, 16):
        wanted = index[start : start + 16].T.reshape(-1)
        np.testing.assert_array_equal(result[start : start + 16], data[start : start + 16][:, wanted])


def test_microscaling_survives_the_round_trip(target: Callable[[str], None]) -> None:
    target("trn3")
    values = RANDOM.standard_normal((32, 64)).astype(ml_dtypes.bfloat16)

    def step(dst: Any, a: Any) -> None:
        packed, scale = nl.ndarray((32, 16), nl.float8_e4m3fn_x4), nl.ndarray((32, 16), nl.uint8)
        nisa.quantize_mx(packed, a, scale)
        nisa.nc_matmul_mx(dst, packed, packed, scale, scale)

    wide = values.astype(np.float32).reshape(32, 16, 4)
    expected = np.einsum("kmi,kni->mn", wide, wide)
    result = on_tiles(step, values, shape=(16, 16), dtype=nl.float32, buffer=nl.psum)
    assert np.abs(result - expected).max() < 0.05 * np.abs(expected).max()


CASTS = [
    (nl.int8, [1.5, 2.5, -0.5, 300.0, -300.0], [2, 2, 0, 127, -128]),
    (nl.uint8, [0.5, 1.5, -3.0, 255.4, 1e9], [0, 2, 0, 255, 255]),
    (nl.bfloat16, [1.00390625, 1.01171875, 3e38], [1.0, 1.015625, 3.004e38]),
    (nl.float8_e4m3, [239.0, 17.0, 0.001953125], [240.0, 16.0, 0.001953125]),
    (nl.tfloat32, [1.00048828125, 1.00146484375], [1.0, 1.001953125]),
]


@pytest.mark.parametrize(("dtype", "values", "expected"), CASTS, ids=[str(dtype) for dtype, _, _ in CASTS])
def test_results_are_rounded_to_nearest_even_and_integers_saturate(
    dtype: str, values: list[float], expected: list[float]
) -> None:
    array = np.array([values], np.float32)
    result = on_tiles(nisa.tensor_copy, array, dtype=dtype).astype(np.float32)
    np.testing.assert_allclose(result, [expected], rtol=2e-3)


def test_low_precision_is_kept_in_float32_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NKI_PRECISE_FP", "0")
    value = np.array([[1.001]], np.float32)
    result = on_tiles(nisa.tensor_copy, value, dtype=nl.bfloat16)
    assert float(result[0, 0]) == pytest.approx(1.001, abs=1e-6)


def test_random_numbers_repeat_with_their_seed() -> None:
    seed = np.array([[7]], np.int32)

    def step(dst: Any, s: Any) -> None:
        nisa.set_rng_seed(s)
        nisa.rng(dst)

    first, second = (on_tiles(step, seed, shape=(8, 64), dtype=nl.uint32) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert len(np.unique(first)) > 500
