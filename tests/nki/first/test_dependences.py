"""Dependences between the iterations of `affine_range`, unwritten elements and equal indices in the first generation."""

from __future__ import annotations

import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
import numpy as np
import pytest

from neurontools.nki.first.launch import run

ROWS = np.ones((512, 64), np.float32)


def warnings_of(kernel, *arrays):
    return run(nki.jit(kernel, mode="simulation"), arrays, {}).launch.warnings


def line_of(kernel, text):
    import inspect

    lines, start = inspect.getsourcelines(kernel)
    return start + next(number for number, line in enumerate(lines) if text in line)


def part(tensor, number):
    return tensor[number * 128 : number * 128 + 128, 0:64]


@pytest.mark.parametrize("is_named", [False, True])
@pytest.mark.parametrize("loop", [nl.affine_range, nl.sequential_range, nl.static_range, range])
def test_a_value_of_another_iteration_is_named_with_loop_write_and_read(loop, is_named):
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        state = nl.zeros((128, 64), dtype=nl.float32)
        for number in loop(4):  # loop
            result = nl.add(nl.load(part(x, number)), state)  # read
            if is_named:
                state = nl.tanh(result)  # write
            else:
                state[...] = nl.tanh(result)  # assignment
            nl.store(part(out, number), result)
        return out

    found = warnings_of(kernel, ROWS)
    if loop is not nl.affine_range:
        assert found == []
        return
    (warning,) = found
    assert (warning.kind, warning.location.line) == ("carried", line_of(kernel, "# loop"))
    assert f":{line_of(kernel, '# write' if is_named else '# assignment')} writes state" in warning.message
    assert f":{line_of(kernel, '# read')} reads it in another iteration" in warning.message


def add(total, tile):
    total += tile


def assign_sum(total, tile):
    total[...] = nl.add(total, tile)


def assign_maximum(total, tile):
    total[...] = nl.maximum(tile, total)


def decay(total, tile):
    total[...] = nl.add(nl.multiply(total, 0.5), tile)


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(
    ("join", "is_sum"), [(add, True), (assign_sum, True), (assign_maximum, True), (decay, False)]
)
def test_sums_may_go_on_in_other_iterations_until_they_are_read(join, is_sum, inside):
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        total = nl.zeros((128, 64), dtype=nl.float32)
        for number in nl.affine_range(4):
            join(total, nl.load(part(x, number)))
            if inside:
                nl.store(part(out, number), total)
        for number in range(0 if inside else 4):
            nl.store(part(out, number), total)
        return out

    kinds = {warning.kind for warning in warnings_of(kernel, ROWS)}
    assert kinds == (set() if is_sum and not inside else {"carried"})


def test_sums_of_products_may_go_on():
    def kernel(x):
        out = nl.ndarray((64, 64), dtype=x.dtype, buffer=nl.shared_hbm)
        total = nl.zeros((64, 64), dtype=nl.float32, buffer=nl.psum)
        for number in nl.affine_range(4):
            tile = nl.load(part(x, number))
            total += nl.matmul(tile, tile, transpose_x=True)
        nl.store(out, total)
        return out

    assert warnings_of(kernel, ROWS) == []


@pytest.mark.parametrize("loop", [nl.affine_range, nl.sequential_range])
@pytest.mark.parametrize("step", [0, 1])
def test_iterations_must_write_to_different_places(loop, step):
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        tiles = nl.ndarray((4, nl.par_dim(128), 64), dtype=x.dtype, buffer=nl.sbuf)
        for number in nl.affine_range(4):
            tiles[number] = nl.load(part(x, number))
        for number in loop(4):
            tiles[number * step] = 0  # write
        for number in nl.affine_range(4):
            nl.store(part(out, number), tiles[number])
        return out

    found = [warning for warning in warnings_of(kernel, ROWS) if warning.kind == "carried"]
    if loop is nl.affine_range and step == 0:
        assert f":{line_of(kernel, '# write')} overwrites it in another iteration" in found[0].message
    else:
        assert found == []


@pytest.mark.parametrize("source", ["nothing", "a part", "what a mask leaves out"])
def test_a_tensor_that_nothing_has_written_is_named_where_it_is_read(source):
    def kernel(x):
        out = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)  # declaration
        if source == "a part":
            tile[:, 0:32] = nl.load(x[0:128, 0:32])
        if source == "what a mask leaves out":
            tile[...] = nl.load(part(x, 0), mask=nl.program_id(0) > 0)
        nl.store(out, nl.multiply(tile, 2.0))  # use
        return out

    found = warnings_of(kernel, ROWS)
    if source == "nothing":
        (warning,) = found
        assert (warning.kind, warning.location.line) == ("unwritten", line_of(kernel, "# use"))
        assert f"(tile declared at {__file__}:{line_of(kernel, '# declaration')})" in warning.message
    else:
        assert found == []


@pytest.mark.parametrize("copies", [nl.store, lambda target, value: nisa.dma_copy(dst=target, src=value)])
@pytest.mark.parametrize("step", [0, 1])
def test_equal_indices_of_a_scatter_are_named(copies, step):
    def kernel(x):
        out = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.load(x[0:128, 0:64]))
        index = nisa.iota(step * nl.arange(64)[:, None], dtype=np.int32)
        copies(out[index, nl.arange(64)[None, :]], nl.load(x[128:192, 0:64]))
        return out

    kinds = [warning.kind for warning in warnings_of(kernel, ROWS)]
    assert kinds == ([] if step else ["scatter"])


def test_a_scatter_that_adds_may_have_equal_indices():
    def kernel(x):
        out = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.load(x[0:128, 0:64]))
        index = nisa.iota(0 * nl.arange(128)[:, None], dtype=np.int32)
        value = nl.load(x[128:256, 0:64])
        nisa.dma_copy(dst=out[index, nl.arange(64)[None, :]], src=value, dst_rmw_op=np.add)
        return out

    assert warnings_of(kernel, ROWS) == []
