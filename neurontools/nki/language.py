"""The names of nki.language (second generation), and its functions for loops, program numbers and sizes."""

from __future__ import annotations

from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any

from neurontools.nki import computations, declarations
from neurontools.nki.context import affine_iterations, fail, is_running, running, whole
from neurontools.nki.declarations import hbm, private_hbm, psum, sbuf, shared_hbm
from neurontools.nki.dtypes import FLOATS, INTEGERS
from neurontools.nki.limits import chosen_target, limits_of
from neurontools.nki.memory import ON_CHIP, MemoryRegion
from neurontools.nki.objects import MOST_ITERATIONS, DynamicSlice, VirtualRegister, refuse_endless
from neurontools.nki.operators import OPERATORS
from neurontools.nki.tensor import NkiTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def is_hbm(buffer: MemoryRegion) -> bool:
    """Return whether a memory is HBM."""
    return buffer not in ON_CHIP


def is_on_chip(buffer: MemoryRegion) -> bool:
    """Return whether a memory is SBUF or PSUM."""
    return buffer in ON_CHIP


def is_psum(buffer: MemoryRegion) -> bool:
    """Return whether a memory is PSUM."""
    return buffer is MemoryRegion.psum


def is_sbuf(buffer: MemoryRegion) -> bool:
    """Return whether a memory is SBUF."""
    return buffer is MemoryRegion.sbuf


# ---- loops and programs


def ds(start: Any, size: int) -> DynamicSlice:
    """Return a slice of `size` elements from `start` on."""
    return DynamicSlice(start, size)


def _range(start: Any, stop: Any = None, step: int = 1) -> range:
    numbers = (0, start, step) if stop is None else (start, stop, step)
    first, last, step = (whole("range", "a bound", number) for number in numbers)
    if step == 0:
        fail("range", "the step is 0")
    return range(first, last, step)


def affine_range(start: Any, stop: Any = None, step: int = 1, **_options: Any) -> Iterator[int]:
    """Return the numbers of a loop that is unrolled, whose iterations the kernel declares independent."""
    return affine_iterations(_range(start, stop, step))


sequential_range = static_range = _range


def dynamic_range(start: Any, stop: Any = None, step: int = 1) -> Iterator[VirtualRegister]:
    """Return the numbers of a loop that runs on the device, as registers."""
    numbers = _range(start, stop, step)
    if numbers[MOST_ITERATIONS : MOST_ITERATIONS + 1]:
        refuse_endless("dynamic_range")
    return (VirtualRegister(number) for number in numbers)


def fori_loop(lower: Any, upper: Any, body_fun: Callable[[VirtualRegister], Any], step: int = 1) -> None:
    """Run a function for each number of a loop on the device."""
    for number in dynamic_range(lower, whole("fori_loop", "upper", upper), step):
        body_fun(number)


def while_loop(init: Any, body_fun: Callable[[VirtualRegister], VirtualRegister]) -> None:
    """Run a function while the register that it returns is not 0."""
    state = init
    for _ in range(MOST_ITERATIONS):
        if int(state) == 0:
            return
        state = body_fun(VirtualRegister(int(state)))
        if not isinstance(state, VirtualRegister):
            fail(
                "while_loop",
                f"the body returned a {type(state).__name__}, not a register",
                "return the next condition's register",
            )
    refuse_endless("while_loop")


def program_id(axis: int = 0) -> int:
    """Return the number of this program along an axis of the grid."""
    program = running().program
    return program[axis] if whole("program_id", "axis", axis) < len(program) else 0


def num_programs(axes: Any = None) -> int:
    """Return the number of programs along axes of the grid, all by default."""
    grid = running().launch.grid
    if axes is None:
        return prod(grid)
    return prod(
        grid[axis] if axis < len(grid) else 1 for axis in ((axes,) if isinstance(axes, int) else axes)
    )


def program_ndim() -> int:
    """Return the number of dimensions of the grid; 0 for a launch without one."""
    grid = running().launch.grid
    return len(grid)


@contextmanager
def no_reorder() -> Iterator[None]:
    """Keep program order: loads do not wait until they are needed."""
    running().launch.keeps_order = True
    yield


def device_print(print_prefix: str, tensor: Any) -> None:
    """Print a tensor; a trial on zeros has nothing to print."""
    if is_running() and not running().launch.checks:
        return
    print(print_prefix, tensor.array() if isinstance(tensor, NkiTensor) else tensor)  # noqa: T201


class _TileSize:
    """Sizes of the device, from the limits of its generation."""

    pmax = 128
    psum_fmax = psum_bank_fmax = 512
    psum_bank_fmax_bytes = 2048
    gemm_stationary_fmax = 128
    gemm_moving_fmax = 512
    bn_stats_fmax = 512
    psum_min_align = 4
    sbuf_min_align = 1

    @staticmethod
    def _limits() -> Any:
        return running().limits if is_running() else limits_of(chosen_target())

    @property
    def psum_num_banks(self) -> int:
        """Banks of PSUM."""
        return int(self._limits().psum_banks)

    @property
    def sbuf_size_bytes(self) -> int:
        """Bytes of SBUF."""
        return int(self._limits().sbuf_partition_bytes * self._limits().partitions)

    @property
    def sbuf_fmax(self) -> int:
        """Most float32 elements a partition of SBUF."""
        return int(self.sbuf_fmax_bytes // 4)

    @property
    def sbuf_fmax_bytes(self) -> int:
        """Bytes a partition of SBUF that kernels can use."""
        return int(self._limits().sbuf_usable_bytes)

    total_available_sbuf_size = sbuf_fmax_bytes


tile_size = _TileSize()


NAMES: dict[str, Any] = {
    **OPERATORS,
    **{name if name != "bool" else "bool_": name for name in (*FLOATS, *INTEGERS, "bool")},
    **{
        function.__name__.rstrip("_"): function
        for function in (
            is_hbm, is_on_chip, is_psum, is_sbuf, declarations.ndarray,
            declarations.zeros, declarations.ones, declarations.full, declarations.zeros_like, declarations.empty_like,
            declarations.rand, computations.random_seed, declarations.shared_constant, declarations.shared_identity_matrix, ds,
            affine_range, dynamic_range, fori_loop, while_loop, program_id,
            num_programs, program_ndim, no_reorder, device_print, computations.load,
            computations.store, computations.load_transpose2d, computations.sum, computations.max, computations.min,
            computations.prod_, computations.mean, computations.var, computations.all, computations.softmax,
            computations.rms_norm, computations.where, computations.dropout, computations.expand_dims, computations.broadcast_to,
            computations.transpose, computations.matmul, computations.gather_flattened,
        )
    },
    "sequential_range": sequential_range,
    "static_range": static_range,
    "sbuf": sbuf,
    "psum": psum,
    "hbm": hbm,
    "private_hbm": private_hbm,
    "shared_hbm": shared_hbm,
    "tile_size": tile_size,
    "range": range,
    "DynamicSlice": DynamicSlice,
}  # fmt: skip
"""What `nki.language` offers, by name."""
