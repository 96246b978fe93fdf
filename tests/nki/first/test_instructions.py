"""What each function of nki.language and nki.isa computes, against numpy."""

from __future__ import annotations

import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
import numpy as np
import pytest

from neurontools.nki.first.launch import run

RANDOM = np.random.default_rng(7)
A = RANDOM.uniform(0.1, 3, (32, 16)).astype(np.float32)
B = RANDOM.uniform(0.1, 3, (32, 16)).astype(np.float32)
C = RANDOM.uniform(0.1, 3, (32, 4, 4)).astype(np.float32)
COLUMN = A[:, :1]


def finished(compute, *arrays, **options):
    """Run a function of loaded tiles and return the results and the instructions."""

    def kernel(*tensors):
        made = compute(*[nl.load(tensor) for tensor in tensors])
        return [nl.copy(tile) for tile in made] if isinstance(made, tuple) else nl.copy(made)

    done = run(nki.jit(kernel, mode="simulation", **options), arrays, {})
    return done.results, [
        (item.opcode, item.engine) for item in done.launch.cores[0].records[len(arrays) : -1]
    ]


def softmax(x):
    shifted = np.exp(x - x.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("compute", "golden", "instructions"),
    [
        (lambda a, b, c: nl.max(a, axis=1), lambda: A.max(axis=1, keepdims=True), ["tensor_reduce"]),
        (lambda a, b, c: nl.min(a, axis=[1], keepdims=True), lambda: A.min(axis=1, keepdims=True), ["tensor_reduce"]),
        (lambda a, b, c: nl.sum(c, axis=[-2, -1]), lambda: C.sum(axis=(1, 2))[:, None], ["tensor_reduce"]),
        (lambda a, b, c: nl.sum(c, axis=1), lambda: C.sum(axis=1), ["tensor_reduce"]),
        (lambda a, b, c: nl.sum(c, axis=(1, 2), keepdims=True), lambda: C.sum(axis=(1, 2), keepdims=True), ["tensor_reduce"]),
        (lambda a, b, c: nl.prod(c, axis=2), lambda: C.prod(axis=2), ["tensor_reduce"]),
        (lambda a, b, c: nl.mean(a, axis=1), lambda: A.mean(axis=1, keepdims=True), ["tensor_reduce", "tensor_scalar"]),
        (lambda a, b, c: nl.var(a, axis=1), lambda: A.var(axis=1, keepdims=True), None),
        (lambda a, b, c: nl.all(a > 0.2, axis=1), lambda: (A > 0.2).all(axis=1, keepdims=True), None),
        (lambda a, b, c: nl.softmax(a, axis=1), lambda: softmax(A), None),
        (lambda a, b, c: nl.rms_norm(a, b[0:1, :], axis=1, n=16), lambda: A / np.sqrt((A**2).mean(axis=1, keepdims=True) + 1e-6) * B[:1], None),
        (lambda a, b, c: nl.where(a > b, a, b), lambda: np.maximum(A, B), None),
        (lambda a, b, c: nl.where(a > b, 1.0, b[:, 0:1]), lambda: np.where(A > B, 1.0, B[:, :1]), None),
        (lambda a, b, c: nl.matmul(a, b, transpose_x=True), lambda: A.T @ B, ["nc_matmul"]),
        (lambda a, b, c: nl.matmul(a, b[0:16, :]), lambda: A @ B[:16], ["nc_transpose", "tensor_copy", "nc_matmul"]),
        (lambda a, b, c: nl.transpose(a), lambda: A.T, ["nc_transpose"]),
        (lambda a, b, c: nl.transpose(a, dtype=nl.float16), lambda: A.T.astype(np.float16), None),
        (lambda a, b, c: nl.expand_dims(a, (1, 3)), lambda: A[:, None, :, None], []),
        (lambda a, b, c: nl.gather_flattened(c, nisa.iota(nl.arange(32)[:, None] * 0 + nl.arange(5)[None, :] * 3, dtype=nl.uint32)), lambda: C.reshape(32, 16)[:, 0:15:3], ["iota", "nc_n_gather"]),
        (lambda a, b, c: nl.dropout(a, rate=0.0), lambda: A, ["dropout"]),
        (lambda a, b, c: nl.dropout(a, rate=1.0, dtype=nl.float16), lambda: A * 0, None),
        (lambda a, b, c: nl.maximum(a, 1.0), lambda: np.maximum(A, 1), ["tensor_scalar"]),
        (lambda a, b, c: nl.sigmoid(a), lambda: 1 / (1 + np.exp(-A)), ["activation"]),
        (lambda a, b, c: nl.floor(a), lambda: np.floor(A), ["tensor_scalar"]),
        (lambda a, b, c: nl.reciprocal(a), lambda: 1 / A, ["reciprocal"]),
        (lambda a, b, c: nisa.nc_transpose(a), lambda: A.T, ["nc_transpose"]),
        (lambda a, b, c: nisa.nc_transpose(a, engine=nisa.vector_engine, dtype=nl.float16), lambda: A.T.astype(np.float16), ["nc_transpose", "tensor_copy"]),
        (lambda a, b, c: nisa.nc_matmul(nisa.nc_transpose(a), nisa.nc_transpose(b)), lambda: A @ B.T, ["nc_transpose", "nc_transpose", "tensor_copy", "tensor_copy", "nc_matmul"]),
        (lambda a, b, c: nisa.dma_transpose(c), lambda: C.transpose(2, 1, 0), ["dma_transpose"]),
        (lambda a, b, c: nisa.dma_transpose(a, axes=(1, 0)), lambda: A.T, ["dma_transpose"]),
        (lambda a, b, c: nisa.dma_transpose(a, dge_mode=nisa.dge_mode.swdge), lambda: A.T, ["dma_transpose"]),
        (lambda a, b, c: nisa.activation(np.exp, a, bias=b[:, 0:1], scale=-0.5), lambda: np.exp(A * -0.5 + B[:, :1]), ["activation"]),
        (lambda a, b, c: nisa.tensor_tensor(a, b, op=np.subtract), lambda: A - B, ["tensor_tensor"]),
        (lambda a, b, c: nisa.tensor_tensor(a, b[:, 0:1], op=nl.add), lambda: A + B[:, :1], ["tensor_tensor"]),
        (lambda a, b, c: nisa.tensor_scalar(a, np.subtract, b[:, 1:2], reverse0=True, op1=np.multiply, operand1=2.0), lambda: (B[:, 1:2] - A) * 2, ["tensor_scalar"]),
        (lambda a, b, c: nisa.scalar_tensor_tensor(data=a, op0=np.multiply, operand0=2.0, op1=np.add, operand1=b), lambda: A * 2 + B, ["scalar_tensor_tensor"]),
        (lambda a, b, c: nisa.tensor_tensor_scan(a, b, initial=0, op0=np.multiply, op1=np.add), lambda: scanned(A, B), ["tensor_tensor_scan"]),
        (lambda a, b, c: nisa.reciprocal(a, dtype=nl.float16), lambda: (1 / A).astype(np.float16), ["reciprocal"]),
        (lambda a, b, c: nisa.tensor_copy(c, engine=nisa.vector_engine), lambda: C, ["tensor_copy"]),
        (lambda a, b, c: nisa.memset((8, 3), 2.5, dtype=nl.float32), lambda: np.full((8, 3), 2.5), ["memset"]),
        (lambda a, b, c: nisa.iota(5 + 2 * nl.arange(4)[:, None] - nl.arange(3)[None, :], dtype=nl.int32), lambda: 5 + 2 * np.arange(4)[:, None] - np.arange(3), ["iota"]),
        (lambda a, b, c: nisa.iota(7, dtype=nl.float32), lambda: np.array([[7]]), ["iota"]),
        (lambda a, b, c: nisa.dropout(a, prob=0.0), lambda: A, ["dropout"]),
        (lambda a, b, c: nisa.tensor_reduce(np.add, c, axis=[1, 2], negate=True), lambda: -C.sum(axis=(1, 2))[:, None], ["tensor_reduce"]),
        (lambda a, b, c: nisa.tensor_partition_reduce(np.add, c), lambda: C.sum(axis=0, keepdims=True), ["tensor_partition_reduce"]),
        (lambda a, b, c: nisa.affine_select(pred=nl.arange(16)[None, :] < nl.arange(32)[:, None], on_true_tile=a, on_false_value=-7.0), lambda: np.where(np.arange(16) < np.arange(32)[:, None], A, -7), ["affine_select"]),
        (lambda a, b, c: nisa.affine_select(pred=nl.arange(16)[None, :] < 4, on_true_tile=a, on_false_value=-7.0), lambda: np.where(np.arange(16) < 4, A, -7), ["affine_select"]),
        (lambda a, b, c: nisa.affine_select(pred=False, on_true_tile=a, on_false_value=1), lambda: np.ones_like(A), ["affine_select"]),
        (lambda a, b, c: nisa.affine_select(pred=nl.arange(16)[None, :] < 99, on_true_tile=a, on_false_value=1), lambda: A, ["affine_select"]),
        (lambda a, b, c: nisa.bn_aggr(nisa.bn_stats(a)), lambda: np.stack([A.mean(axis=1), A.var(axis=1)], axis=1), ["bn_stats", "bn_aggr"]),
        (lambda a, b, c: nisa.max8(src=a), lambda: -np.sort(-A, axis=1)[:, :8], ["max8"]),
        (lambda a, b, c: nisa.nc_find_index8(data=a, vals=nisa.max8(src=a)), lambda: np.argsort(-A, axis=1)[:, :8], ["max8", "nc_find_index8"]),
        (lambda a, b, c: nisa.nc_match_replace8(data=a, vals=nisa.max8(src=a), imm=0.0), lambda: np.where(-np.sort(-A, axis=1)[:, 7:8] <= A, 0, A), ["max8", "nc_match_replace8"]),
        (lambda a, b, c: nisa.sequence_bounds(segment_ids=nisa.memset((1, 4), 2.0, dtype=nl.float32)), lambda: [[[0] * 4, [4] * 4]], ["memset", "sequence_bounds"]),
        (lambda a, b, c: nisa.local_gather(c, nisa.memset((32, 1), 6, dtype=nl.uint16), 2), lambda: np.broadcast_to(C.reshape(32, 16)[:, None, None, 6:8], (32, 1, 16, 2)), ["memset", "local_gather"]),
        (lambda a, b, c: nisa.range_select(on_true_tile=a, comp_op0=np.greater_equal, comp_op1=np.less, bound0=nisa.memset((32, 1), 3.0, dtype=nl.float32), bound1=nisa.memset((32, 1), 9.0, dtype=nl.float32), range_start=1), lambda: np.where((np.arange(1, 17) >= 3) & (np.arange(1, 17) < 9), A, nl.fp32.min), None),
    ],
)  # fmt: skip
def test_a_function_computes_what_numpy_does(compute, golden, instructions):
    results, records = finished(compute, A, B, C)
    assert results.shape == np.shape(golden())
    assert np.allclose(results.astype(np.float32), golden(), rtol=1e-4, atol=1e-6)
    if instructions is not None:
        assert [opcode for opcode, _ in records] == instructions


def scanned(factors, summands):
    state, out = np.zeros(32, dtype=np.float32), np.empty_like(factors)
    for column in range(16):
        state = factors[:, column] * state + summands[:, column]
        out[:, column] = state
    return out


def test_instructions_write_a_second_result_beside_their_own():
    def compute(a, b):
        sums, largest = (nl.ndarray((32, 2), dtype=nl.float32) for _ in range(2))
        whole = nisa.activation_reduce(np.exp, a, reduce_op=np.add, reduce_res=sums[:, 1], bias=b[:, 0:1])
        scaled = nisa.tensor_scalar_reduce(
            data=a, op0=np.multiply, operand0=2.0, reduce_op=np.max, reduce_res=largest[:, 0]
        )
        return whole, sums[:, 1:2], scaled, largest[:, 0:1]

    results, _ = finished(compute, A, B)
    wanted = np.exp(A + B[:, :1])
    for made, golden in zip(
        results,
        (wanted, wanted.sum(axis=1, keepdims=True), 2 * A, 2 * A.max(axis=1, keepdims=True)),
        strict=True,
    ):
        assert np.allclose(made, golden, rtol=1e-5)


@pytest.mark.parametrize(
    ("start", "command", "golden"),
    [
        (None, nisa.reduce_cmd.reset_reduce, lambda: np.cumsum(2 * A, axis=1)),
        (3.0, nisa.reduce_cmd.load_reduce, lambda: 3 + np.cumsum(2 * A, axis=1)),
        (A[:, :1], nisa.reduce_cmd.load_reduce, lambda: A[:, :1] + np.cumsum(2 * A, axis=1)),
    ],
)
def test_a_running_reduction_starts_with_a_number_or_a_column(start, command, golden):
    def compute(a, b):
        first = b[:, 0:1] if isinstance(start, np.ndarray) else start
        made = nl.ndarray((32, 16), dtype=nl.float32)
        nisa.tensor_scalar_cumulative(
            src=a, dst=made, op0=np.multiply, op1=np.add, imm0=2.0, imm1=first, reduce_cmd=command
        )
        return made

    results, _ = finished(compute, A, A)
    assert np.allclose(results, golden(), rtol=1e-5)


def test_instructions_that_write_to_tiles_of_the_kernel():
    def compute(a, b):
        chosen, copied, shuffled, largest = (nl.full((32, 16), -1, dtype=nl.float32) for _ in range(4))
        truth = nl.greater(a, b, dtype=nl.uint8)
        nisa.select_reduce(
            dst=chosen,
            predicate=truth,
            on_true=a,
            on_false=9.0,
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
            reduce_res=largest[:, 3],
        )
        nisa.tensor_copy_predicated(src=a, dst=copied, predicate=truth, reverse_pred=True)
        nisa.nc_stream_shuffle(
            src=a, dst=shuffled, shuffle_mask=[255, *[(lane + 1) % 32 for lane in range(1, 32)]]
        )
        nisa.dma_copy(dst=largest[:, 0:1], src=b[:, 0:1])
        columns = nisa.iota(5, dtype=nl.int32) + nl.arange(2)[None, :]
        nisa.tensor_copy_dynamic_dst(dst=largest[nl.arange(32)[:, None], columns], src=a[:, 0:2])
        return chosen, copied, shuffled, largest

    (chosen, copied, shuffled, largest), _ = finished(compute, A, B)
    assert np.allclose(chosen, np.where(A > B, A, 9))
    assert np.allclose(copied, np.where(A > B, -1, A))
    assert np.allclose(shuffled, np.concatenate([np.full((1, 16), -1), A[2:], A[:1]]))
    wanted = np.full((32, 16), -1, dtype=np.float32)
    wanted[:, 3], wanted[:, 0], wanted[:, 5:7] = np.where(A > B, A, 9).max(axis=1), B[:, 0], A[:, :2]
    assert np.allclose(largest, wanted)


def test_random_numbers_repeat_with_their_seed():
    def compute(a):
        nl.random_seed(nisa.memset((1, 1), 5, dtype=nl.int32))
        first = nl.rand((4, 8))
        nl.random_seed(5)
        return first, nl.rand((4, 8)), nl.rand((4, 8))

    (first, second, third), _ = finished(compute, A)
    assert first.tolist() == second.tolist() != third.tolist()
    assert ((first >= 0) & (first < 1)).all()


def test_products_of_pairs_of_rows():
    def compute(a, b):
        return nisa.nc_matmul(a, b, perf_mode="double_row_gen3")

    left = np.ones((32, 2, 3), dtype=nl.float8_e5m2)
    right = RANDOM.uniform(-2, 2, (32, 2, 5)).astype(nl.float8_e5m2)
    made, _ = finished(compute, left, right)
    assert np.allclose(made, np.einsum("kpm,kpn->mn", left.astype(np.float32), right.astype(np.float32)))


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda a: nisa.tensor_tensor(a, a[0:1, :], op=nl.add), r"number of partitions \(dimension 0 size of a tile\) mismatch in parameters \(data1\[32, 16\], data2\[1, 16\]\)"),
        (lambda a: nisa.activation(nl.exp, a, bias=nisa.memset((32, 1), 1, dtype=nl.int8)), "Bias parameter of activation or activation_reduce must be a vector of type"),
        (lambda a: nisa.activation(nl.exp, a, bias=1.5), "Bias parameter of activation"),
        (lambda a: nisa.activation(nl.exp, a, scale=nisa.memset((32, 1), 1, dtype=nl.float16)), "Scale parameter of activation must be a scalar or vector of type float32"),
        (lambda a: nisa.activation(nl.exp, a, scale=a), r"scale has shape \(32, 16\), must be a number or \(32, 1\)"),
        (lambda a: nisa.affine_select(pred=a, on_true_tile=a, on_false_value=0), "pred is a Tile, not a comparison"),
        (lambda a: nisa.nc_matmul(nl.ndarray((32, 16), dtype=nl.float32, buffer=nl.psum), a), "stationary is in PSUM, must be in SBUF"),
        (lambda a: nisa.tensor_copy(a[nl.arange(4)[:, None], nisa.iota(20, dtype=nl.int32)]), "index 20 is out of bounds"),
        (lambda a: nl.copy(a).__setitem__(..., a[nl.arange(32)[:, None], nisa.iota(2, dtype=nl.int32) + nl.arange(16)[None, :] * 0]), "copying indirect memory references is not natively supported"),
        (lambda a: nl.atomic_rmw(nl.ndarray((32, 16), dtype=nl.float32, buffer=nl.hbm), a, op=np.max), "only np.add is supported"),
        (lambda a: nl.loop_reduce(a, op="add", loop_indices=[]), "op is 'add', not an operator"),
    ],
)  # fmt: skip
def test_a_wrong_operand_is_refused(use, message):
    with pytest.raises((AssertionError, IndexError), match=message):
        finished(use, A)
