"""Where tensors of the first generation are: memories, and addresses that the kernel chooses (`nki.compiler`).

Sources: AWS Neuron documentation 2.26, "nki.compiler" and "NKI Direct Allocation Developer Guide".
"""

from __future__ import annotations

from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any

from neurontools.nki.context import fail, running
from neurontools.nki.memory import MemoryRegion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class KernelBuffer:
    """A memory, as kernels name it: `nl.sbuf` and `nki.compiler.sbuf` are the same.

    Args:
        region: the memory.
    """

    __slots__ = ("region",)

    def __init__(self, region: MemoryRegion) -> None:
        self.region = region

    def __repr__(self) -> str:
        return f"nl.{self.region.value}"

    def __reduce__(self) -> tuple[Any, ...]:
        return buffer_of, (self.region,)

    def address(self, numbers: tuple[int, ...], partitions: int, free_bytes: int) -> tuple[int, int] | None:
        """Return first partition and byte offset of a tile, None where the compiler chooses."""
        del numbers, partitions, free_bytes
        return None


class ChipBuffer(KernelBuffer):
    """SBUF or PSUM."""

    __slots__ = ()

    def auto_alloc(self) -> KernelBuffer:
        """Let the compiler choose addresses."""
        return self

    def alloc(self, func: Callable[..., Any]) -> KernelBuffer:
        """Take addresses from a function of a tile's numbers, its partitions and its bytes a partition."""
        return Placed(self.region, func)

    def mod_alloc(
        self,
        *,
        base_addr: int = 0,
        base_bank: int = 0,
        base_partition: int = 0,
        num_bank_tiles: tuple[int, ...] = (),
        num_par_tiles: tuple[int, ...] = (),
        num_free_tiles: tuple[int, ...] = (),
    ) -> KernelBuffer:
        """Place tiles one after the other, and reuse the places after as many as are given."""

        def place(idx: tuple[int, ...], pdim_size: int, fdim_size: int) -> tuple[int, ...]:
            partition = base_partition + _slot(idx, num_par_tiles) * pdim_size
            byte = base_addr + _slot(idx, num_free_tiles) * fdim_size
            if self.region is MemoryRegion.psum:
                return base_bank + _slot(idx, num_bank_tiles), partition, byte
            return partition, byte

        return Placed(self.region, place)


class Placed(KernelBuffer):
    """A memory with the addresses that a kernel chooses.

    Args:
        region: SBUF or PSUM.
        function: returns the place of a tile.
    """

    __slots__ = ("_function",)

    def __init__(self, region: MemoryRegion, function: Callable[..., Any]) -> None:
        super().__init__(region)
        self._function = function

    def address(self, numbers: tuple[int, ...], partitions: int, free_bytes: int) -> tuple[int, int] | None:
        """Return first partition and byte offset of a tile."""
        place = tuple(
            int(item) for item in self._function(idx=numbers, pdim_size=partitions, fdim_size=free_bytes)
        )
        if self.region is MemoryRegion.sbuf:
            return place[0], place[1]
        limits = running().limits
        bank, partition, byte = place
        if bank >= limits.psum_banks or byte + free_bytes > limits.psum_bank_bytes:
            fail(
                "alloc",
                f"tile {numbers} has {free_bytes} bytes from byte {byte} of bank {bank} on, PSUM has {limits.psum_banks}"
                f" banks of {limits.psum_bank_bytes} bytes",
                "reuse banks: num_bank_tiles says how many the tensor has",
            )
        return partition, bank * limits.psum_bank_bytes + byte


def _slot(numbers: tuple[int, ...], sizes: tuple[int, ...]) -> int:
    """Return the place of a tile among those of a shape, which repeat."""
    sizes = tuple(sizes) or (1,) * len(numbers)
    if not numbers:  # public kernels give numbers for a tensor that is one tile, too
        return 0
    if len(sizes) != len(numbers):
        fail(
            "mod_alloc",
            f"{len(sizes)} numbers of tiles for {len(numbers)} block dimensions",
            "give one for each, or none",
        )
    return sum(
        number % size * prod(sizes[dim + 1 :])
        for dim, (number, size) in enumerate(zip(numbers, sizes, strict=True))
    )


sbuf, psum = ChipBuffer(MemoryRegion.sbuf), ChipBuffer(MemoryRegion.psum)
private_hbm, shared_hbm = KernelBuffer(MemoryRegion.private_hbm), KernelBuffer(MemoryRegion.shared_hbm)
hbm = private_hbm
_BUFFERS = {buffer.region: buffer for buffer in (sbuf, psum, private_hbm, shared_hbm)}


def buffer_of(region: MemoryRegion) -> KernelBuffer:
    """Return the name of a memory."""
    return _BUFFERS.get(region, private_hbm)


def as_buffer(value: Any) -> KernelBuffer:
    """Return the memory that a kernel means; SBUF where it names none."""
    if value is None:
        return sbuf
    if isinstance(value, MemoryRegion):
        return buffer_of(value)
    if not isinstance(value, KernelBuffer):
        fail(
            "buffer",
            f"{value!r} is not a memory",
            "use nl.sbuf, nl.psum, nl.private_hbm, nl.shared_hbm or nki.compiler",
        )
    return value


# ---- hints to the compiler, which keeps program order here


def directive(func: Any = None, **_options: Any) -> Any:
    """Return a kernel as it is: a hint to the compiler."""
    return func if func is not None else lambda kernel: kernel


def enable_stack_allocator(func: Any = None, log_level: int = 50) -> Any:
    """Return the kernel: addresses are chosen by life here."""
    return directive(func, log_level=log_level)


def force_auto_alloc(func: Any = None) -> Any:
    """Return a kernel whose addresses the compiler chooses."""
    return directive(func)


def skip_middle_end_transformations(func: Any = None) -> Any:
    """Return the kernel: nothing is transformed here."""
    return directive(func)


def multi_buffer(factor: int = 2) -> int:
    """Return a directive of loops: how many buffers a tensor gets."""
    return factor


@contextmanager
def no_reorder() -> Iterator[None]:
    """Keep program order, which is always kept."""
    yield


allocation_scope = no_reorder
