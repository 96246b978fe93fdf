"""Addresses that kernels choose."""

from __future__ import annotations

import neuronxcc.nki as nki
import neuronxcc.nki.compiler as ncc
import neuronxcc.nki.language as nl
import numpy as np
import pytest

from neurontools.nki.first.launch import run


def addresses(*declarations):
    """Return the addresses of the tiles of tensors that a kernel declares."""

    def kernel():
        for declare in declarations:
            declare()

    done = run(nki.jit(kernel), (), {})
    return [item.address for item in done.launch.allocations]


def declared(shape, buffer, dtype=nl.float32):
    return lambda: nl.ndarray(shape, dtype=dtype, buffer=buffer)


@pytest.mark.parametrize(
    ("shape", "buffer", "places"),
    [
        ((128, 512), ncc.sbuf.mod_alloc(base_addr=1024), [(0, 1024)]),
        ((4, nl.par_dim(128), 512), ncc.sbuf.mod_alloc(base_addr=64, num_free_tiles=(2,)), [(0, 64), (0, 2112)] * 2),
        ((2, nl.par_dim(32), 8), ncc.sbuf.mod_alloc(base_addr=0, base_partition=32, num_par_tiles=(2,)), [(32, 0), (64, 0)]),
        ((2, 2, nl.par_dim(4), 8), ncc.sbuf.mod_alloc(base_addr=0, num_free_tiles=(1, 2)), [(0, 0), (0, 32)] * 2),
        ((3, nl.par_dim(128), 512), ncc.psum.mod_alloc(base_bank=2, num_bank_tiles=(2,)), [(0, 4096), (0, 6144), (0, 4096)]),
        ((2, nl.par_dim(128), 8), ncc.sbuf.alloc(lambda idx, pdim_size, fdim_size: (pdim_size - 128, idx[0] * fdim_size * 3)), [(0, 0), (0, 96)]),
        ((2, nl.par_dim(128), 8), ncc.psum.alloc(lambda idx, pdim_size, fdim_size: ({(0,): 7, (1,): 5}[idx], 0, 0)), [(0, 14336), (0, 10240)]),
        ((128, 8), ncc.sbuf.auto_alloc(), [None]),
        ((128, 8), nl.psum, [None]),
    ],
)  # fmt: skip
def test_tiles_are_where_the_kernel_places_them(shape, buffer, places):
    assert addresses(declared(shape, buffer)) == places


def test_memories_have_one_name_in_both_modules():
    assert (ncc.sbuf, ncc.psum) == (nl.sbuf, nl.psum)
    assert repr(nl.sbuf) == "nl.sbuf"


@pytest.mark.parametrize(
    ("shape", "buffer", "message"),
    [
        ((128, 512), ncc.sbuf.mod_alloc(base_addr=229376), r"address \(0, 229376\): ends at byte 231424 of 229376 a partition"),
        ((64, 8), ncc.sbuf.mod_alloc(base_addr=0, base_partition=96), r"partitions 96 to 159 do not exist"),
        ((128, 512), ncc.psum.mod_alloc(base_bank=8), "has 2048 bytes from byte 0 of bank 8 on, PSUM has 8 banks of 2048 bytes"),
        ((128, 513), ncc.psum.mod_alloc(base_bank=0), "has 2052 bytes from byte 0 of bank 0 on"),
        ((2, nl.par_dim(8), 8), ncc.sbuf.mod_alloc(base_addr=0, num_free_tiles=(1, 1)), "2 numbers of tiles for 1 block dimensions"),
    ],
)  # fmt: skip
def test_an_address_that_does_not_exist_is_refused_at_its_line(shape, buffer, message):
    with pytest.raises(AssertionError, match=message) as caught:
        addresses(declared(shape, buffer))
    assert str(caught.value).startswith(f"{__file__}:")


def test_a_placed_tensor_has_no_initial_value():
    with pytest.raises(AssertionError, match="with init value is not supported in allocated NKI kernels"):
        addresses(lambda: nl.zeros((8, 8), dtype=nl.float32, buffer=ncc.sbuf.mod_alloc(base_addr=0)))


def test_hints_to_the_compiler_leave_a_kernel_as_it_is():
    @ncc.enable_stack_allocator(log_level=10)
    @ncc.skip_middle_end_transformations
    @ncc.force_auto_alloc
    @nki.jit
    def kernel(a):
        with ncc.no_reorder(), ncc.allocation_scope():
            return nl.load(a)

    assert kernel(np.ones((4, 4), dtype=np.float32)).sum() == 16


@pytest.mark.parametrize("placed", [False, True])
def test_tensors_that_do_not_fit_are_spilled_unless_the_kernel_places_them(placed):
    def kernel(a):
        def buffer(tile):
            return ncc.sbuf.mod_alloc(base_addr=tile * 64) if placed else nl.sbuf

        tiles = [nl.ndarray((4, 16), dtype=nl.float32, buffer=buffer(tile)) for tile in range(4)]
        large = [nl.ndarray((4, 16384), dtype=nl.float32) for _ in range(4)]
        for tile in tiles + large:
            tile[:, 0:16] = nl.load(a)
        out = nl.ndarray((8, 4, 16), dtype=nl.float32, buffer=nl.shared_hbm)
        for tile in tiles + large:
            tile[:, 0:16] = nl.add(
                tile[:, 0:16], tiles[0][:, 0:16]
            )  # all are needed before the first is stored
        for number, tile in enumerate(tiles + large):
            nl.store(out[number], tile[:, 0:16])
        return out

    source = np.ones((4, 16), dtype=np.float32)
    if placed:
        with pytest.raises(AssertionError, match=r"SBUF overflow: \d+ bytes a partition"):
            run(nki.jit(kernel), (source,), {})
        return
    done = run(nki.jit(kernel), (source,), {})
    assert done.results.sum() == 64 * (2 + 7 * 3)
    assert [item.kind for item in done.launch.warnings] == ["spill"]
