"""Every limit of the documents is an error that names file, line, operand, and the operand's declaration."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from neurontools.compat.nki import isa as nisa
from neurontools.compat.nki import language as nl
from neurontools.nki.errors import KernelError, KernelUsageError
from neurontools.nki.launch import Kernel, jit, run

if TYPE_CHECKING:
    from collections.abc import Callable


def f32(*shape: int, buffer: Any = nl.sbuf, **options: Any) -> Any:
    """Return a tile of float32, zeros where that is possible."""
    made = nl.ndarray(shape, nl.float32, buffer, **options)
    if buffer is nl.sbuf:
        nisa.memset(made, 0)
    return made


def hbm(*shape: int) -> Any:
    """Return a tensor in HBM that is not written."""
    return nl.ndarray(shape, nl.float32, nl.shared_hbm)


def psum(*shape: int) -> Any:
    """Return a tile in PSUM."""
    return nl.ndarray(shape, nl.float32, nl.psum)


def tile(dtype: str, *shape: int) -> Any:
    """Return a tile of another type."""
    made = nl.ndarray(shape, dtype)
    nisa.memset(made, 0)
    return made


def packed() -> Any:
    """Return a tile of packed elements."""
    return tile(nl.float8_e5m2_x4, 4, 4)


VIOLATIONS: dict[str, tuple[Callable[[], Any], str]] = {
    "partitions": (lambda: f32(129, 4), "partition dimension 129 exceeds maximum 128"),
    "one dimension": (lambda: f32(128), r"shape \(128,\) has 1 dimensions"),
    "size of SBUF": (lambda: f32(128, 60000), "240000 bytes a partition, SBUF has 229376 on trn2"),
    "size of PSUM": (lambda: psum(128, 4097), "16388 bytes a partition, PSUM has 16384"),
    "PSUM address": (lambda: f32(128, 4, buffer=nl.psum, address=(0, 100)), "must be a multiple of 2048"),
    "address past the end": (lambda: f32(128, 4, address=(0, 229370)), "ends at byte 229386 of 229376"),
    "address of partitions": (lambda: f32(100, 4, address=(64, 0)), "partitions 64 to 163 do not exist"),
    "negative size": (lambda: f32(128, 0), r"shape \(128, 0\)"),
    "moving columns": (lambda: nisa.nc_matmul(psum(64, 600), f32(128, 64), f32(128, 600)), "moving has 600 free elements, at most 512 on trn2"),
    "stationary columns": (lambda: nisa.nc_matmul(psum(128, 4), f32(128, 130), f32(128, 4)), "stationary has 130 free elements, at most 128"),
    "contracted dimension": (lambda: nisa.nc_matmul(psum(64, 4), f32(128, 64), f32(64, 4)), "stationary has 128 partitions, moving has 64"),
    "product into SBUF": (lambda: nisa.nc_matmul(f32(64, 4), f32(128, 64), f32(128, 4)), "dst is in SBUF, must be in PSUM"),
    "product of PSUM": (lambda: nisa.nc_matmul(psum(64, 4), psum(128, 64), f32(128, 4)), "stationary is in PSUM, must be in SBUF"),
    "mixed types": (lambda: nisa.nc_matmul(psum(64, 4), f32(128, 64), tile(nl.bfloat16, 128, 4)), "float32 goes with float32 alone"),
    "integers in products": (lambda: nisa.nc_matmul(psum(64, 4), tile(nl.int32, 128, 64), tile(nl.int32, 128, 4)), "stationary is int32"),
    "result type": (lambda: nisa.nc_matmul(nl.ndarray((64, 4), nl.bfloat16, nl.psum), f32(128, 64), f32(128, 4)), "dst is bfloat16, must be float32 on trn2"),
    "result shape": (lambda: nisa.nc_matmul(psum(64, 8), f32(128, 64), f32(128, 4)), "dst has 64 partitions of 8, the product has 64 of 4"),
    "bank of PSUM": (lambda: nisa.nc_matmul(psum(64, 1024)[:, 300:700], f32(128, 64), f32(128, 400)), "crosses a bank of 2048 bytes"),
    "tile position": (lambda: nisa.nc_matmul(psum(4, 4), f32(32, 4), f32(32, 4), tile_position=(48, 0), tile_size=(32, 128)), "row tile of 32 from 48 on"),
    "double row types": (lambda: nisa.nc_matmul(psum(4, 4), f32(128, 2, 4), f32(128, 2, 4), perf_mode=nisa.matmul_perf_mode.double_row), "double_row multiplies float8"),
    "transpose on Vector": (lambda: nisa.nc_transpose(f32(64, 64), f32(64, 64), engine=nisa.engine.vector), "transposes at most 32 x 32"),
    "transpose type": (lambda: nisa.nc_transpose(tile(nl.bfloat16, 32, 32), f32(32, 32)), "dst is bfloat16, must be float32"),
    "start partition": (lambda: nisa.tensor_copy(f32(32, 4), f32(128, 4)[16:48]), "src has 32 partitions from partition 16 on"),
    "64 partitions from 32": (lambda: nisa.tensor_copy(f32(64, 4), f32(128, 4)[32:96]), "engines access that many from 0, 64"),
    "elements": (lambda: nisa.tensor_copy(f32(64, 4), f32(64, 5)), "src has 5 elements a partition, dst has 4"),
    "partitions differ": (lambda: nisa.tensor_copy(f32(64, 4), f32(32, 4)), "src has 32 partitions, dst has 64"),
    "two operands in PSUM": (lambda: nisa.tensor_tensor(f32(4, 4), psum(4, 4), psum(4, 4), nl.add), "data1 and data2 are both in PSUM"),
    "GpSimd and PSUM": (lambda: nisa.tensor_copy(f32(4, 4), psum(4, 4), engine=nisa.engine.gpsimd), "gpsimd engine cannot access PSUM"),
    "power in PSUM": (lambda: nisa.tensor_tensor(f32(4, 4), psum(4, 4), f32(4, 4), nl.power), "gpsimd engine cannot access PSUM"),
    "engine": (lambda: nisa.tensor_copy(f32(4, 4), f32(4, 4), engine=nisa.engine.tensor), "does not run on the tensor engine"),
    "bits of floats": (lambda: nisa.tensor_tensor(f32(4, 4), f32(4, 4), f32(4, 4), nl.bitwise_and), "bitwise_and works on integers, not on float32"),
    "mixed operators": (lambda: nisa.tensor_scalar(tile(nl.int32, 4, 4), tile(nl.int32, 4, 4), nl.bitwise_and, 1, op1=nl.add, operand1=1), "not both operators on bits"),
    "scalar operand": (lambda: nisa.tensor_scalar(f32(4, 4), f32(4, 4), nl.add, f32(4, 4)), r"operand0 has shape \(4, 4\), must be a number or \(4, 1\)"),
    "Scalar engine's operators": (lambda: nisa.tensor_scalar(f32(4, 4), f32(4, 4), nl.maximum, 1.0, engine=nisa.engine.scalar), "scalar engine of trn2 has no maximum"),
    "no operator": (lambda: nisa.tensor_tensor(f32(4, 4), f32(4, 4), f32(4, 4), "add"), "op is 'add', not an operator"),
    "no activation": (lambda: nisa.activation(f32(4, 4), nl.maximum, f32(4, 4)), "maximum does not run as an activation function"),
    "reduced axis": (lambda: nisa.tensor_reduce(f32(4, 4), nl.add, f32(4, 4, 4), 1), "must be the last free dimensions"),
    "partition reduced": (lambda: nisa.tensor_reduce(f32(4, 1), nl.add, f32(4, 4), 0), "must be the last free dimensions"),
    "no reduction": (lambda: nisa.tensor_reduce(f32(4, 1), nl.power, f32(4, 4), 1), "power does not reduce"),
    "bn_stats": (lambda: nisa.bn_stats(f32(4, 6), f32(4, 513)), "data has 513 elements a partition, at most 512"),
    "bn_aggr": (lambda: nisa.bn_aggr(f32(4, 2), f32(4, 7)), "must be a multiple of 3"),
    "max8": (lambda: nisa.max8(f32(4, 8), f32(4, 7)), "src has 7 elements a partition, must have 8 to 16384"),
    "pattern": (lambda: nisa.iota(tile(nl.int32, 4, 8), [[1, 4]]), "pattern has 4 elements, dst has 8"),
    "pattern dimensions": (lambda: nisa.iota(tile(nl.int32, 4, 1), [[1, 1]] * 5), "pattern has 5 dimensions, at most 4"),
    "range_select": (lambda: nisa.range_select(f32(4, 4), f32(4, 4), nl.less, nl.less, f32(4, 1), f32(4, 1), on_false_value=0.0), "must be the smallest float32"),
    "shuffle mask": (lambda: nisa.nc_stream_shuffle(f32(32, 4), f32(32, 4), [0] * 31), "shuffle_mask has 31 entries"),
    "gather partitions": (lambda: nisa.local_gather(f32(8, 8), f32(8, 8), tile(nl.uint16, 8, 1)), "same multiple of 16"),
    "gather index type": (lambda: nisa.local_gather(f32(16, 16), f32(16, 8), tile(nl.int32, 16, 1)), "index is int32, must be uint16"),
    "gather index": (lambda: nisa.nc_n_gather(f32(4, 1), f32(4, 4), _filled(nl.uint32, 9, 4, 1)), "an index is 9, data has 4"),
    "copy out of PSUM": (lambda: nisa.dma_copy(f32(4, 4), psum(4, 4)), "src is in PSUM"),
    "copy of other size": (lambda: nisa.dma_copy(f32(4, 4), f32(4, 5)), "src has 20 elements"),
    "hardware descriptors": (lambda: nisa.dma_copy(tile(nl.bfloat16, 4, 4), f32(4, 4), dge_mode=nisa.dge_mode.hwdge), "hardware descriptors keep the type"),
    "transposed shape": (lambda: nisa.dma_transpose(f32(4, 8), f32(4, 8)), r"dst has shape \(4, 8\), the transpose of \(4, 8\) has \(8, 4\)"),
    "transposed axes": (lambda: nisa.dma_transpose(f32(8, 4), f32(4, 8), axes=(0, 1)), r"axes \(0, 1\) of 2 dimensions"),
    "dma_compute operator": (lambda: nisa.dma_compute(f32(4, 4), [f32(4, 4)], nl.multiply), "only nl.add is supported"),
    "dma_compute sources": (lambda: nisa.dma_compute(f32(4, 4), [f32(4, 4)] * 17, nl.add), "17 sources, at most 16"),
    "memset range": (lambda: nisa.memset(tile(nl.int32, 4, 4), 1 << 40), "1099511627776 cannot be held by int32"),
    "memset sign": (lambda: nisa.memset(tile(nl.uint8, 4, 4), -1), "-1 cannot be held by uint8"),
    "memset of numpy": (lambda: nisa.memset(tile(nl.int16, 4, 4), np.int64(70000)), "70000 cannot be held by int16"),
    "memset nan": (lambda: nisa.memset(tile(nl.int32, 4, 4), float("nan")), "nan cannot be held by int32"),
    "memset fraction": (lambda: nisa.memset(tile(nl.int32, 4, 4), 0.5), "0.5 cannot be held by int32"),
    "memset packed": (lambda: nisa.memset(nl.ndarray((4, 4), nl.float8_e4m3fn_x4), 1), "fills float8_e4m3fn_x4 with 0 alone"),
    "packed elements": (lambda: nisa.tensor_tensor(packed(), packed(), packed(), nl.add), "does not take packed elements, dst is float8_e5m2_x4"),
    "packed operand": (lambda: nisa.tensor_scalar(f32(4, 4), f32(4, 4), nl.add, packed()[:, 0:1]), "packed elements, operand0 is"),
    "packed function": (lambda: nisa.activation(packed(), nl.exp, f32(4, 4)), "does not take packed elements, dst is"),
    "packed after a copy": (lambda: (copied := packed(), nisa.tensor_copy(copied, copied), nisa.reciprocal(copied, copied)), "packed elements, dst is"),
    "packed reduction": (lambda: nisa.tensor_reduce(f32(4, 1), nl.add, packed(), axis=1), "packed elements, data is"),
    "packed predicate": (lambda: nisa.tensor_copy_predicated(packed(), packed(), tile(nl.uint8, 4, 4)), "packed elements, dst is"),
    "packed sum of transfers": (lambda: nisa.dma_compute(packed(), [packed()], nl.add), r"packed elements, srcs\[0\] is"),
    "packed product": (lambda: nisa.nc_matmul(psum(4, 4), packed(), packed()), "packed elements, stationary is"),
    "packed in nl": (lambda: nl.add(packed(), packed()), "packed elements, dst is"),
    "copy to packed": (lambda: nisa.tensor_copy(packed(), f32(4, 4)), "does not convert packed elements, src is float32 and dst"),
    "copy from packed": (lambda: nisa.dma_copy(f32(4, 4), packed()), "does not convert packed elements, src is float8_e5m2_x4"),
    "predicate type": (lambda: nisa.tensor_copy_predicated(f32(4, 4), f32(4, 4), f32(4, 4)), "predicate is float32"),
    "only on trn3": (lambda: nisa.exponential(f32(4, 4), f32(4, 4)), "needs trn3, this is trn2"),
    "packed products": (lambda: nisa.quantize_mx(f32(4, 4), f32(4, 4), f32(4, 4)), "needs trn3"),
    "float8_e4m3fn": (lambda: nisa.nc_matmul(psum(4, 4), tile(nl.float8_e4m3fn, 4, 4), tile(nl.float8_e4m3fn, 4, 4)), "float8_e4m3fn needs trn3"),
    "random state": (lambda: nisa.rand_get_state(tile(nl.uint32, 4, 5)), "is 6 of uint32 a partition"),
    "random floats": (lambda: nisa.rng(f32(4, 4)), "must be an integer type"),
    "seed": (lambda: nisa.set_rng_seed(tile(nl.int32, 1, 2)), "must be one 32-bit number"),
    "register": (lambda: nisa.register_load(5, tile(nl.int32, 1, 1)), "dst is a int, not a register"),
    "register load": (lambda: nisa.register_load(nisa.register_alloc(), tile(nl.int32, 1, 2)), "src has 2 elements, must have one"),
    "exchange on one core": (lambda: nisa.sendrecv(f32(4, 4), f32(4, 4), 1, 1, 0), "the kernel runs on one core"),
    "exchange rank": (lambda: nisa.sendrecv(f32(4, 4), f32(4, 4), 2, 1, 0), "send_to_rank is 2, must be 0 or 1"),
    "index": (lambda: f32(4, 4)[:, 4], "index 4 of dimension 1 is out of bounds, its size is 4"),
    "slice": (lambda: f32(4, 4)[:, 2:5], "2:5 of dimension 1 is out of bounds"),
    "empty slice": (lambda: f32(4, 4)[:, 2:2], "2:2 of dimension 1 is empty"),
    "reversed slice": (lambda: hbm(4, 4)[:, 3:2], "3:2 of dimension 1 is empty"),
    "empty slice past the end": (lambda: hbm(4, 4)[5:5], "5:5 of dimension 0 is empty"),
    "empty slice by its method": (lambda: hbm(4, 4).slice(1, 2, 2), "2:2 of dimension 1 is empty"),
    "copy of nothing": (lambda: nisa.dma_copy(hbm(4, 4)[4:4], hbm(4, 4)[nl.ds(2, 0)]), r"a view of shape \(0, 4\) is empty"),
    "too many indices": (lambda: f32(4, 4)[0, 0, 0], "3 indices for 2 dimensions"),
    "assignment": (lambda: f32(4, 4).__setitem__(0, 1), "tensors are written by instructions"),
    "pattern past the end": (lambda: nisa.tensor_copy(f32(4, 8), f32(4, 4).ap([[4, 4], [1, 8]])), "are out of bounds, it has 16"),
    "reshape": (lambda: f32(4, 4).reshape((4, 5)), r"\(4, 5\) has 20 elements"),
    "reshape of a view": (lambda: f32(4, 4, 4)[:, :, 0:2].reshape((4, 8)), "with gaps has no shape"),
    "partitions reordered": (lambda: f32(4, 4).permute((1, 0)), "the partition dimension stays the first"),
    "broadcast": (lambda: f32(4, 4).broadcast(1, 8), "dimension 1 has size 4, not 1"),
    "loop without end": (lambda: nl.while_loop(nisa.register_alloc(1), lambda r: r), "more than 100000 iterations"),
    "unknown type": (lambda: nl.ndarray((4, 4), "float7"), "unknown data type of a kernel: 'float7'"),
}  # fmt: skip


def _filled(dtype: str, value: int, *shape: int) -> Any:
    made = nl.ndarray(shape, dtype)
    nisa.memset(made, value)
    return made


@pytest.mark.parametrize("name", VIOLATIONS)
def test_limits(name: str) -> None:
    violate, message = VIOLATIONS[name]
    with pytest.raises(Exception, match=message) as caught:
        run(Kernel(violate), (), {})
    if isinstance(caught.value, KernelError):
        assert re.match(rf"{re.escape(__file__)}:\d+: ", str(caught.value))


def test_the_error_names_the_line_the_operand_and_its_declaration() -> None:
    @jit
    def kernel() -> None:
        rhs_tile = nl.ndarray((128, 600), nl.float32)
        nisa.memset(rhs_tile, 0)
        weights = nl.zeros((128, 128), nl.float32)
        product = nl.ndarray((128, 600), nl.float32, nl.psum)
        nisa.nc_matmul(product, weights, rhs_tile)

    with pytest.raises(KernelError) as caught:
        kernel()
    lines = [
        number for number, line in enumerate(Path(__file__).read_text().splitlines(), 1) if "rhs_tile" in line
    ]
    assert str(caught.value) == (
        f"{__file__}:{lines[2]}: nc_matmul: moving has 600 free elements, at most 512 on trn2\n"
        f"note: rhs_tile declared at {__file__}:{lines[0]}"
    )
    assert caught.value.remedy == "tile it by 512 columns"


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("nc_matmul", lambda: nisa.nc_matmul(psum(64, 600), f32(128, 64), f32(128, 600))),
        ("exponential", lambda: nisa.exponential(f32(4, 4), f32(4, 4))),
        (
            "float8_e4m3fn",
            lambda: nisa.nc_matmul(psum(4, 4), tile(nl.float8_e4m3fn, 4, 4), tile(nl.float8_e4m3fn, 4, 4)),
        ),
    ],
)
def test_trn3_has_more(target: Callable[[str], None], name: str, step: Callable[[], Any]) -> None:
    del name
    target("trn3")
    run(Kernel(lambda: (step(),)), (), {})


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (
            lambda: nisa.activation(f32(4, 4), nl.copy, f32(4, 4), bias=1.0),
            "bias is a number, on trn1 it must be a tensor",
        ),
        (lambda: nisa.tensor_copy(f32(4, 4), f32(4, 4), engine=nisa.engine.scalar), "scalar engine of trn1"),
        (lambda: nisa.core_barrier(f32(4, 4), (0, 1)), "needs trn2, this is trn1"),
    ],
)
def test_trn1_has_less(target: Callable[[str], None], step: Callable[[], Any], message: str) -> None:
    target("trn1")
    with pytest.raises(KernelError, match=message):
        run(Kernel(step), (), {})


def test_functions_outside_of_kernels_say_so() -> None:
    with pytest.raises(KernelUsageError, match="work in kernels alone"):
        nl.zeros((4, 4), nl.float32)


def test_an_unknown_target_is_named(target: Callable[[str], None]) -> None:
    target("trn9")
    with pytest.raises(Exception, match="unknown target 'trn9' of a kernel"):
        jit(lambda: None)()


def test_grids_of_the_first_generation_are_refused() -> None:
    with pytest.raises(KernelUsageError, match="takes 1 or 2 cores"):
        jit(lambda: None)[4, 4]


def test_elements_beyond_a_dynamic_index_are_named() -> None:
    @jit
    def kernel(data: Any, rows: Any) -> None:
        index = nl.load(rows)
        gathered = nl.ndarray((2, 4), nl.float32)
        nisa.dma_copy(gathered, data.ap([[4, 2], [1, 4]], vector_offset=index))

    with pytest.raises(KernelError, match="src: index 9 of row 1 is out of bounds, 8 rows"):
        kernel(np.zeros((8, 4), np.float32), np.array([[1], [9]], np.int32))


OPERATOR_SLOTS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "tensor_tensor op": lambda t, c, op: nisa.tensor_tensor(t, t, t, op=op),
    "tensor_scalar op0": lambda t, c, op: nisa.tensor_scalar(t, t, op0=op, operand0=1.0),
    "tensor_scalar op1": lambda t, c, op: nisa.tensor_scalar(t, t, op0=nl.add, operand0=1.0, op1=op, operand1=1.0),
    "scalar_tensor_tensor op0": lambda t, c, op: nisa.scalar_tensor_tensor(t, t, op, 1.0, nl.add, t),
    "scalar_tensor_tensor op1": lambda t, c, op: nisa.scalar_tensor_tensor(t, t, nl.add, 1.0, op, t),
    "tensor_tensor_scan op0": lambda t, c, op: nisa.tensor_tensor_scan(t, t, t, 1.0, op, nl.add),
    "tensor_tensor_scan op1": lambda t, c, op: nisa.tensor_tensor_scan(t, t, t, 1.0, nl.add, op),
    "tensor_scalar_cumulative op1": lambda t, c, op: nisa.tensor_scalar_cumulative(t, t, nl.add, op, 1.0),
    "tensor_scalar_reduce reduce_op": lambda t, c, op: nisa.tensor_scalar_reduce(t, t, nl.add, 1.0, op, c),
    "tensor_reduce op": lambda t, c, op: nisa.tensor_reduce(c, op, t, axis=1),
    "tensor_partition_reduce op": lambda t, c, op: nisa.tensor_partition_reduce(t[0:1], op, t),
    "activation reduce_op": lambda t, c, op: nisa.activation_reduce(t, nl.exp, t, op, c),
}  # fmt: skip
UNARY_SLOTS = {"tensor_scalar op0", "tensor_scalar op1", "scalar_tensor_tensor op0"}


def with_operator(slot: str, operator: Any) -> Callable[[], Any]:
    """Return a kernel with one instruction, which is given an operator."""

    def kernel() -> Any:
        data = f32(8, 4)
        OPERATOR_SLOTS[slot](data, f32(8, 1), operator)
        out = nl.ndarray(data.shape, data.dtype, nl.shared_hbm)
        nl.store(out, data)
        return out

    return kernel


@pytest.mark.parametrize("slot", OPERATOR_SLOTS)
def test_activation_functions_are_no_operators(slot: str) -> None:
    for function in (nl.exp, nl.gelu, nl.sqrt, np.tanh):
        with pytest.raises(KernelError, match="an activation function and not an operator"):
            run(Kernel(with_operator(slot, function)), (), {})


@pytest.mark.parametrize("slot", OPERATOR_SLOTS)
def test_operators_of_one_operand_go_with_a_scalar_alone(slot: str) -> None:
    for operator in (nl.abs, nl.rsqrt, nl.square, nl.relu):
        kernel = Kernel(with_operator(slot, operator))
        if slot in UNARY_SLOTS:
            run(kernel, (), {})
        else:
            with pytest.raises(KernelError, match=r"one operand|does not reduce|must be add"):
                run(kernel, (), {})
