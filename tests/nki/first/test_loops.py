"""Loops, sums in PSUM, and reductions over loops."""

from __future__ import annotations

import neuronxcc.nki as nki
import neuronxcc.nki.compiler as ncc
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
import numpy as np
import pytest

from neurontools.nki.first.launch import run
from neurontools.nki.program import duration_ns, program_of

SOURCE = np.arange(64, dtype=np.float32).reshape(16, 4) / 8


def finished(kernel, *arrays):
    return run(nki.jit(kernel, mode="simulation"), arrays, {})


def opcodes(done):
    return [record.opcode for record in done.launch.cores[0].records]


@pytest.mark.parametrize("loop", [nl.affine_range, nl.sequential_range, nl.static_range])
def test_the_numbers_of_loops(loop):
    seen = []

    def kernel():
        seen.extend([list(loop(3)), list(loop(np.int64(1), 4)), list(loop(0, 9, 4))])
        for number in loop(2):
            seen.extend([(number * 128, number + 1, 7 // (number + 1), isinstance(number, int))])

    finished(kernel)
    assert seen == [[0, 1, 2], [1, 2, 3], [0, 4, 8], (0, 1, 7, True), (128, 2, 3, True)]


def test_directives_of_loops_are_accepted():
    def kernel():
        assert list(nl.affine_range(2, precise_schedule=True)) == [0, 1]
        assert list(nl.affine_range(2, directives=ncc.multi_buffer(2))) == [0, 1]

    finished(kernel)


@pytest.mark.parametrize("declared", [nl.zeros, nl.ndarray])
@pytest.mark.parametrize("whole", [True, False])
def test_products_are_added_up_in_psum(declared, whole):
    def kernel(a):
        out = nl.ndarray((4, 4), dtype=nl.float32, buffer=nl.shared_hbm)
        total = declared((4, 4), nl.float32, buffer=nl.psum)
        for tile in nl.affine_range(4):
            rows = nl.load(a[nl.ds(tile * 4, 4), :])
            if whole:
                total += nisa.nc_matmul(rows, rows)
            else:
                total[:, 0:2] += nisa.nc_matmul(rows, rows[:, 0:2])
                total[:, 2:4] += nisa.nc_matmul(rows, rows[:, 2:4])
        nl.store(out, total)
        return out

    done = finished(kernel, SOURCE)
    assert np.allclose(done.results, SOURCE.T @ SOURCE)
    products = [record for record in done.launch.cores[0].records if record.opcode == "nc_matmul"]
    assert {access.allocation.label for record in products for access in record.writes} == {"total"}
    assert [record.options["accumulate"] for record in products] == [
        declared is nl.zeros or number >= (1 if whole else 2) for number in range(len(products))
    ]
    assert done.launch.warnings == []
    assert "memset" not in opcodes(done)
    assert "tensor_tensor" not in opcodes(done)


def test_the_first_sum_of_a_tile_in_psum_overwrites():
    def kernel(a):
        out = nl.ndarray((16, 4), dtype=nl.float32, buffer=nl.shared_hbm)
        total = nl.ndarray((16, 4), dtype=nl.float32, buffer=nl.psum)
        loaded = nl.load(a)
        total += loaded
        total += loaded
        nl.store(out, total)
        return out

    assert finished(kernel, SOURCE).results.tolist() == (2 * SOURCE).tolist()


def test_sums_in_sbuf_add_to_what_is_there():
    def kernel(a):
        out = nl.ndarray((4, 4), dtype=nl.float32, buffer=nl.shared_hbm)
        total = nl.full((nl.par_dim(4), 4), 1, dtype=nl.float32)
        for tile in nl.affine_range(4):
            total[...] += nl.load(a[nl.ds(tile * 4, 4), :])
        total *= 2
        total -= total
        total += 3.5
        nl.store(out, total)
        return out

    done = finished(kernel, SOURCE)
    assert done.results.tolist() == [[3.5] * 4] * 4
    assert opcodes(done).count("tensor_tensor") == 5


def reduced(inner, mask=lambda outer, inner: None, op=np.add):
    """Return the kernel of a reduction over an outer loop of tiles that an inner loop numbers."""

    def kernel(a):
        out = nl.ndarray((2, 4, 4), dtype=nl.float32, buffer=nl.shared_hbm)
        totals = nl.zeros((2, nl.par_dim(4), 4), dtype=nl.float32)
        for outer in nl.affine_range(2):
            for number in inner(2):
                tile = nl.load(a[nl.ds((outer * 2 + number) * 4, 4), :])
                totals[number, :, :] = nl.loop_reduce(
                    tile, op=op, loop_indices=[outer], dtype=nl.float32, mask=mask(outer, number)
                )
        for number in nl.affine_range(2):
            nl.store(out[number], totals[number])
        return out

    return kernel


TILES = SOURCE.reshape(2, 2, 4, 4)


@pytest.mark.parametrize("inner", [nl.affine_range, nl.sequential_range, nl.static_range, range])
@pytest.mark.parametrize(("op", "golden"), [(np.add, np.sum), (np.max, np.max), (np.minimum, np.min)])
def test_a_reduction_over_a_loop_has_a_total_for_each_number_of_others(inner, op, golden):
    assert np.allclose(finished(reduced(inner, op=op), SOURCE).results, golden(TILES, axis=0))


def test_a_reduction_over_a_loop_leaves_out_what_masks_exclude():
    kernel = reduced(nl.affine_range, mask=lambda outer, number: outer >= number)
    assert finished(kernel, SOURCE).results.tolist() == [
        TILES[:, 0].sum(axis=0).tolist(),
        TILES[1, 1].tolist(),
    ]


def test_a_reduction_over_a_loop_adds_up_masked_elements():
    kernel = reduced(nl.affine_range, mask=lambda outer, number: nl.arange(4)[:, None] < 2 + outer)
    wanted = TILES.sum(axis=0)
    wanted[:, 2:] = TILES[1, :, 2:]
    wanted[:, 3:] = 0
    assert finished(kernel, SOURCE).results.tolist() == wanted.tolist()


def test_a_reduction_begins_anew_with_each_run_of_its_loop():
    def kernel(a):
        out = nl.ndarray((2, 4, 4), dtype=nl.float32, buffer=nl.shared_hbm)
        for outer in nl.affine_range(2):
            for inner in nl.affine_range(2):
                tile = nl.load(a[nl.ds((outer * 2 + inner) * 4, 4), :])
                total = nl.loop_reduce(tile, op=np.add, loop_indices=(inner,))
            nl.store(out[outer], total)
        return out

    assert finished(kernel, SOURCE).results.tolist() == TILES.sum(axis=1).tolist()


def test_a_reduction_over_two_loops_and_one_called_from_two_lines():
    def add(tile, loops):
        return nl.loop_reduce(tile, op=np.add, loop_indices=loops)

    def kernel(a):
        out = nl.ndarray((2, 4, 4), dtype=nl.float32, buffer=nl.shared_hbm)
        for outer in nl.affine_range(2):
            for inner in nl.affine_range(2):
                tile = nl.load(a[nl.ds((outer * 2 + inner) * 4, 4), :])
                total = add(tile, [outer, inner])
                twice = add(tile * 2, [outer, inner])
        nl.store(out[0], total)
        nl.store(out[1], twice)
        return out

    wanted = TILES.sum(axis=(0, 1))
    assert finished(kernel, SOURCE).results.tolist() == [wanted.tolist(), (2 * wanted).tolist()]


def test_a_loop_that_ends_with_break_leaves_no_trace():
    def kernel(a):
        out = nl.ndarray((4, 4), dtype=nl.float32, buffer=nl.shared_hbm)
        for outer in nl.affine_range(4):
            for inner in nl.affine_range(4):
                if inner == 1:
                    break
            total = nl.loop_reduce(nl.load(a[nl.ds(outer * 4, 4), :]), op=np.add, loop_indices=[outer])
        nl.store(out, total)
        return out

    assert finished(kernel, SOURCE).results.tolist() == SOURCE.reshape(4, 4, 4).sum(axis=0).tolist()


def test_addresses_that_python_adds_up_are_those_of_the_first_iteration():
    def kernel(a):
        address = 0
        for _ in nl.affine_range(3):
            for part in nl.static_range(2):
                nl.ndarray(
                    (4, 8), dtype=nl.float32, buffer=ncc.sbuf.mod_alloc(base_addr=address), name=f"part{part}"
                )
                address += 32

    done = finished(kernel, SOURCE)
    assert [item.address for item in done.launch.allocations if item.address] == [(0, 0), (0, 32)] * 3


def test_an_instruction_that_iterations_repeat_takes_its_time_once():
    def kernel(source, is_inside, changes):
        tile = nl.load(source)
        total = nl.zeros(tile.shape, dtype=tile.dtype)
        if not is_inside:
            square = nisa.tensor_tensor(tile, tile, op=nl.multiply)
        for _ in nl.sequential_range(3):
            if is_inside:
                square = nisa.tensor_tensor(tile, tile, op=nl.multiply)
            total += square
            if changes:
                tile[...] = nisa.tensor_scalar(tile, np.add, 1.0)
        result = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.shared_hbm)
        nl.store(result, total)
        return result

    def products(*options):
        launch = run(nki.jit(kernel, mode="simulation"), (SOURCE, *options), {}).launch
        core = launch.cores[0]
        names = [one.opcode for one in program_of(core).instructions]
        return names.count("TENSOR_TENSOR"), duration_ns(launch)

    assert products(True, False) == products(False, False) == (4, products(False, False)[1])
    assert products(True, True)[0] == 6  # three products and three sums
