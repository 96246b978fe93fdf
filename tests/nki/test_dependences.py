"""Dependences between the iterations of `affine_range`, and elements that were never written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from neurontools.compat.nki import isa as nisa
from neurontools.compat.nki import jit
from neurontools.compat.nki import language as nl
from neurontools.nki.errors import KernelError
from neurontools.nki.launch import run
from tests.nki.launches import launch_of, line_of, ones


def _tile(columns: int = 64, buffer: Any = nl.sbuf, name: str = "") -> Any:
    return nl.ndarray((128, columns), nl.float32, buffer, name)


def _part(tensor: Any, number: int) -> Any:
    return tensor[number * 128 : number * 128 + 128]


@jit
def _recurrence(x: Any, loop: Any = nl.affine_range) -> Any:
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    state = _tile(name="state")
    nisa.memset(dst=state, value=0.0)
    for number in loop(4):  # loop
        tile = _tile()
        nisa.dma_copy(dst=tile, src=_part(x, number))
        result = _tile()
        nisa.tensor_tensor(dst=result, data1=tile, data2=state, op=nl.add)  # read
        nisa.activation(dst=state, op=nl.tanh, data=result)  # write
        nisa.dma_copy(dst=_part(out, number), src=result)
    return out


def test_a_value_of_another_iteration_is_named_with_loop_write_and_read() -> None:
    (warning,) = launch_of(_recurrence, ones(512, 64)).warnings
    assert (warning.kind, warning.location.line) == ("carried", line_of(_recurrence, "# loop"))
    assert f":{line_of(_recurrence, '# write')} writes state, and tensor_tensor at " in warning.message
    assert f":{line_of(_recurrence, '# read')} reads it in another iteration; use nl.seq" in warning.message


@pytest.mark.parametrize("loop", [range, nl.sequential_range, nl.static_range])
def test_other_loops_may_carry_values(loop: Any) -> None:
    assert launch_of(_recurrence, ones(512, 64), loop=loop).warnings == []


def _add(total: Any, tile: Any) -> None:
    nisa.tensor_tensor(dst=total, data1=total, data2=tile, op=nl.add)


def _maximum(total: Any, tile: Any) -> None:
    nisa.tensor_tensor(dst=total, data1=tile, data2=total, op=nl.maximum)


def _scaled_add(total: Any, tile: Any) -> None:
    nisa.scalar_tensor_tensor(dst=total, data=tile, op0=nl.multiply, operand0=2.0, op1=nl.add, operand1=total)


def _halves(total: Any, tile: Any) -> None:
    for columns in (slice(0, 32), slice(32, 64)):
        _add(total[:, columns], tile[:, columns])


def _column(total: Any, tile: Any) -> None:
    for column in range(64):
        nisa.tensor_scalar(dst=total[:, column], data=total[:, column], op0=nl.add, operand0=tile[:, column])


def _decay(total: Any, tile: Any) -> None:
    nisa.scalar_tensor_tensor(dst=total, data=total, op0=nl.multiply, operand0=0.5, op1=nl.add, operand1=tile)


def _scaled_total(total: Any, tile: Any) -> None:
    _add(total, tile)
    nisa.tensor_scalar(dst=total, data=total, op0=nl.multiply, operand0=0.5, op1=nl.add, operand1=1.0)


def _power(total: Any, tile: Any) -> None:
    nisa.tensor_tensor(dst=total, data1=tile, data2=total, op=nl.power)


def _through_copy(total: Any, tile: Any) -> None:
    result = _tile()
    nisa.tensor_tensor(dst=result, data1=total, data2=tile, op=nl.add)
    nisa.tensor_copy(dst=total, src=result)


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(
    ("join", "is_sum"),
    [
        *[(join, True) for join in (_add, _maximum, _scaled_add, _halves, _column)],
        *[(join, False) for join in (_decay, _scaled_total, _power, _through_copy)],
    ],
)
def test_sums_may_go_on_in_other_iterations_until_they_are_read(
    join: Any, is_sum: bool, inside: bool
) -> None:
    @jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        total = _tile()
        nisa.memset(dst=total, value=1.0)
        for number in nl.affine_range(4):
            tile = _tile()
            nisa.dma_copy(dst=tile, src=_part(x, number))
            join(total, tile)
            if inside:
                nisa.dma_copy(dst=_part(out, number), src=total)
        for number in range(0 if inside else 4):
            nisa.dma_copy(dst=_part(out, number), src=total)
        return out

    kinds = [warning.kind for warning in launch_of(kernel, ones(512, 64)).warnings]
    assert kinds == ([] if is_sum and not inside else ["carried"])


def test_sums_of_products_may_go_on() -> None:
    @jit
    def kernel(a: Any, b: Any) -> Any:
        out = nl.ndarray((128, 64), nl.float32, nl.shared_hbm)
        total, result = _tile(buffer=nl.psum), _tile()
        for number in nl.affine_range(4):
            left, right = _tile(128), _tile()
            nisa.dma_copy(dst=left, src=_part(a, number))
            nisa.dma_copy(dst=right, src=_part(b, number))
            nisa.nc_matmul(dst=total, stationary=left, moving=right, accumulate=number > 0)
        nisa.tensor_copy(dst=result, src=total)
        nisa.dma_copy(dst=out, src=result)
        return out

    assert launch_of(kernel, ones(512, 128), ones(512, 64)).warnings == []


@pytest.mark.parametrize("is_read_after", [False, True])
def test_iterations_may_share_a_scratch_that_nothing_reads_after_the_loop(is_read_after: bool) -> None:
    @jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        scratch = _tile(name="scratch")
        for number in nl.affine_range(4):
            nisa.dma_copy(dst=scratch, src=_part(x, number))
            nisa.dma_copy(dst=_part(out, number), src=scratch)
        if is_read_after:
            nisa.dma_copy(dst=_part(out, 0), src=scratch)
        return out

    found = [warning for warning in launch_of(kernel, ones(512, 64)).warnings if warning.kind == "carried"]
    assert len(found) == is_read_after
    assert all(
        "writes scratch, and dma_copy at " in item.message and "overwrites it" in item.message
        for item in found
    )


def test_iterations_that_write_one_place_of_a_result_are_named() -> None:
    @jit
    def kernel(x: Any, step: int) -> Any:
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        for number in nl.affine_range(4):
            tile = _tile()
            nisa.dma_copy(dst=tile, src=_part(x, number))
            nisa.dma_copy(dst=_part(out, number * step), src=tile)  # store
        return out

    found = launch_of(kernel, ones(512, 64), step=0).warnings
    (warning,) = [warning for warning in found if warning.kind == "carried"]
    assert f":{line_of(kernel, '# store')} overwrites it in another iteration" in warning.message
    assert launch_of(kernel, ones(512, 64), step=1).warnings == []


@pytest.mark.parametrize("outer", [nl.affine_range, nl.sequential_range])
@pytest.mark.parametrize("inner", [nl.affine_range, nl.sequential_range])
def test_the_loop_whose_iterations_depend_is_named(outer: Any, inner: Any) -> None:
    @jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        first, second = _tile(), _tile()
        nisa.memset(dst=first, value=0.0)
        for row in outer(2):  # outer
            nisa.tensor_copy(dst=second, src=first)
            for column in inner(2):  # inner
                tile = _tile()
                nisa.dma_copy(dst=tile, src=_part(x, row * 2 + column))
                _through_copy(second, tile)
                nisa.dma_copy(dst=_part(out, row * 2 + column), src=tile)
            nisa.activation(dst=first, op=nl.tanh, data=second)
        return out

    lines = {warning.location.line for warning in launch_of(kernel, ones(512, 64)).warnings}
    expected = {
        line_of(kernel, text)
        for loop, text in ((outer, "# outer"), (inner, "# inner"))
        if loop is nl.affine_range
    }
    assert lines == expected


@pytest.mark.parametrize("ends_early", [False, True])
def test_a_loop_may_read_what_the_loop_before_has_written(ends_early: bool) -> None:
    @jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        tiles = [_tile() for _ in range(4)]
        for number in nl.affine_range(8):
            if ends_early and number == 4:
                break
            nisa.dma_copy(dst=tiles[number % 4], src=_part(x, number % 4))
            if number == 3:
                break
        for number in nl.affine_range(4):
            nisa.dma_copy(dst=_part(out, number), src=tiles[3 - number])
        return out

    assert launch_of(kernel, ones(512, 64)).warnings == []


@pytest.mark.parametrize("parts", [1, 2, 64])
@pytest.mark.parametrize("dtype", [nl.float32, nl.bfloat16])
@pytest.mark.parametrize("missing", [0, 1])
def test_dependences_are_exact_to_the_element(parts: int, dtype: Any, missing: int) -> None:
    @jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        scratch = _tile(name="scratch")
        for number in nl.affine_range(4):
            tile, result = _tile(), _tile()
            nisa.dma_copy(dst=tile, src=_part(x, number))
            for part in range(parts):  # interleaved columns, as elements of another type
                columns = slice(part, 64, parts)
                source, target = tile.view(dtype), scratch.view(dtype)
                for half in range(source.shape[1] // 64):
                    of = slice(columns.start + 64 * half, 64 * half + 64, parts)
                    if not (missing and number == 2 and part == parts - 1):
                        nisa.tensor_copy(dst=target[:, of], src=source[:, of])
            nisa.tensor_copy(dst=result, src=scratch)
            nisa.dma_copy(dst=_part(out, number), src=result)
        return out

    kinds = {warning.kind for warning in launch_of(kernel, ones(512, 64)).warnings}
    assert kinds == ({"carried"} if missing else set())


def test_a_list_of_numbers_is_no_loop() -> None:
    assert list(nl.affine_range(3)) == [0, 1, 2]
    assert list(nl.affine_range(1, 7, 3)) == [1, 4]


# ---- elements that were never written


@pytest.mark.parametrize("transpose", ["nc_matmul", "nc_transpose"])
@pytest.mark.parametrize("used", [8, 16])
def test_a_transpose_may_move_columns_that_nothing_uses(transpose: str, used: int) -> None:
    @jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray((used, 128), nl.float32, nl.shared_hbm)
        tile = _tile(128)
        nisa.dma_copy(dst=tile[:, 0:8], src=x)
        turned, copied, result = (
            _tile(128, nl.psum),
            _tile(128, name="copied"),
            nl.ndarray((used, 128), nl.float32),
        )
        if transpose == "nc_matmul":
            identity = nl.shared_identity_matrix(128, nl.float32)
            nisa.nc_matmul(dst=turned, stationary=tile, moving=identity, is_transpose=True)
        else:
            nisa.nc_transpose(dst=turned, data=tile)
        nisa.tensor_copy(dst=copied, src=turned)  # read
        nisa.tensor_scalar(dst=result, data=copied[0:used], op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=out, src=result)
        return out

    found = launch_of(kernel, ones(128, 8)).warnings
    if used == 8:
        assert found == []
    else:
        (warning,) = found
        assert (warning.kind, warning.location.line) == ("unwritten", line_of(kernel, "# read"))
        assert warning.message.startswith(
            "src: 15360 of 16384 elements were never written (psum declared at "
        )


_CHAINS = {
    "copy": nisa.tensor_copy,
    "scalar": lambda dst, src: nisa.tensor_scalar(dst, src, op0=nl.add, operand0=1.0),
    "tile": lambda dst, src: nisa.tensor_tensor(dst, src, src, op=nl.add),
}


@pytest.mark.parametrize("name", _CHAINS)
@pytest.mark.parametrize("overwritten", [True, False])
def test_results_of_unwritten_elements_may_be_overwritten(name: str, overwritten: bool) -> None:
    @jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray((128, 64), nl.float32, nl.shared_hbm)
        tile, between, result = _tile(name="tile"), _tile(), _tile()
        nisa.dma_copy(dst=tile[0:64], src=x[0:64])
        _CHAINS[name](between, tile)  # read
        nisa.tensor_scalar(dst=result, data=between, op0=nl.multiply, operand0=2.0)
        if overwritten:
            nisa.tensor_copy(dst=result[64:128], src=result[0:64])
        nisa.dma_copy(dst=out, src=result)
        return out

    found = launch_of(kernel, ones(128, 64)).warnings
    assert [item.kind for item in found] == ([] if overwritten else ["unwritten"])
    assert all(
        "4096 of 8192 elements were never written (tile declared at " in item.message for item in found
    )


def test_results_of_unwritten_elements_keep_their_tensor_incomplete() -> None:
    @jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray((128, 64), nl.float32, nl.shared_hbm)
        tile, total = _tile(), _tile()
        nisa.memset(dst=total, value=0.0)
        nisa.dma_copy(dst=tile[0:64], src=x[0:64])
        nisa.tensor_tensor(dst=total, data1=total, data2=tile, op=nl.add)  # read
        nisa.dma_copy(dst=out, src=total)
        return out

    (warning,) = launch_of(kernel, ones(128, 64)).warnings
    assert (warning.kind, warning.location.line) == ("unwritten", line_of(kernel, "# read"))


@pytest.mark.parametrize(("rows", "is_named"), [((0, 16), False), ((), True)])
def test_cores_of_gpsimd_without_work_read_nothing(rows: tuple[int, ...], is_named: bool) -> None:
    @jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray((1, 65), nl.int32, nl.shared_hbm)
        tile, places = _tile(), nl.ndarray((128, 65), nl.int32)
        for row in rows:
            nisa.dma_copy(dst=tile[row : row + 1], src=x[row : row + 1])
        nisa.nonzero_with_count(dst=places, src=tile)
        nisa.dma_copy(dst=out, src=places[0:1])
        return out

    kinds = [warning.kind for warning in launch_of(kernel, ones(128, 64)).warnings]
    assert kinds == (["unwritten"] if is_named else [])


def test_warnings_come_with_the_error_that_they_explain(capsys: pytest.CaptureFixture[str]) -> None:
    @jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        number = nl.ndarray((1, 1), nl.int32)
        copied = nl.ndarray((1, 1), nl.int32)
        nisa.tensor_copy(dst=copied, src=number)
        nisa.dma_copy(dst=out.ap([[64, 1], [1, 64]], scalar_offset=copied), src=x[0:1])
        return out

    with pytest.raises(KernelError, match="index 4 of row 0 is out of bounds, 4 rows"):
        run(kernel, (ones(4, 64),), {})
    assert "warning: src: 1 of 1 elements were never written (number declared at " in capsys.readouterr().err


def test_a_row_that_ends_behind_the_tensor_is_out_of_bounds() -> None:
    @jit
    def kernel(x: Any, index: Any) -> Any:
        out = nl.ndarray((2, 64), x.dtype, nl.shared_hbm)
        number, tile = nl.ndarray((1, 1), nl.int32), nl.ndarray((2, 64), nl.float32)
        nisa.dma_copy(dst=number, src=index)
        nisa.dma_copy(dst=tile, src=x.ap([[64, 2], [1, 64]], scalar_offset=number))
        nisa.dma_copy(dst=out, src=tile)
        return out

    assert launch_of(kernel, ones(4, 64), np.array([[2]], np.int32)).warnings == []
    with pytest.raises(
        KernelError, match="src: index 3 of row 1 is out of bounds, the row ends behind the tensor"
    ):
        launch_of(kernel, ones(4, 64), np.array([[3]], np.int32))
