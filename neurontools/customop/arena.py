"""Device memory of this process: a sparse memory file that the host maps whole, divided into blocks.

Workers get the file's descriptor and map the blocks of one call, between guard pages. A tensor lies at the end of its
block, so the first byte past it is in a guard page. All bookkeeping is on the host: a worker can damage the bytes of
tensors, nothing else. The memory is freed when no worker and no tensor uses it.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import threading
import weakref
from ctypes import memmove, memset
from functools import cache
from typing import Any, Protocol

from neurontools.customop import abi
from neurontools.customop.errors import CustomOpLibraryError

PAGE_BYTES = mmap.PAGESIZE
_SHARE_OF_RAM = 0.25
_ADDRESSES_PER_RAM = 2  # room for fragmentation; untouched addresses cost nothing
_STEP_BYTES = 16 << 20
_KEPT_FREE_BYTES = 256 << 20
_lock = threading.Lock()
_arenas: list[weakref.ref[Arena]] = []


class Block(Protocol):
    """A piece of device memory and a Python buffer; it is freed with its last reference.

    Args:
        arena: the arena that it belongs to.
        offset: its offset in the file, a multiple of the page size.
        nbytes: its size, a multiple of the page size.
        address: its address in this process.
        held: whether it holds a tensor that programs can see.
    """

    arena: Arena
    offset: int
    nbytes: int
    address: int
    held: bool


class Arena:
    """The device memory of one process.

    Raises:
        CustomOpLibraryError: the system refuses it.
    """

    def __init__(self) -> None:
        ram = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self.nbytes = _ADDRESSES_PER_RAM * ram // _STEP_BYTES * _STEP_BYTES
        self.fd = -1
        try:
            self.fd = sealed_memory("neuron-customop-memory", self.nbytes)
            self._map = mmap.mmap(self.fd, self.nbytes)
        except OSError as error:
            if self.fd >= 0:
                os.close(self.fd)
            raise CustomOpLibraryError(
                f"cannot reserve memory for custom operators: {error.strerror}",
                "raise ulimit -f and ulimit -v",
            ) from error
        anchor = ctypes.c_char.from_buffer(self._map)
        self.base = ctypes.addressof(anchor)
        del anchor
        self._lock = threading.RLock()  # a block may be freed during `allocate`, in the same thread
        self._free: dict[int, list[int]] = {}
        self._without_pages: dict[int, list[int]] = {}
        self._end = 0
        self._used_bytes = 0
        self._free_bytes = 0
        self._held = 0
        self.retired = False

    def allocate(self, nbytes: int, *, held: bool = False) -> Block:
        """Return a block of at least `nbytes` bytes; its content is undefined.

        Args:
            nbytes: required size.
            held: whether it will hold a tensor that programs can see.

        Raises:
            CustomOpLibraryError: all blocks together would exceed a quarter of this computer's memory.
        """
        size = block_bytes(nbytes)
        with self._lock:
            kept = self._free.get(size)
            if kept:
                self._free_bytes -= size
                offset = kept.pop()
            else:
                offset = self._fresh(size)
            self._used_bytes += size
            self._held += held
            address = self.base + offset
            block: Any = _block_type(size).from_address(address)
            block.arena, block.offset, block.address, block.held = self, offset, address, held
            return block  # type: ignore[no-any-return]

    def free(self, block: Block) -> None:
        """Free a block; its pages are kept for the next block of its size, up to a limit."""
        size = block.nbytes
        with self._lock:
            if self.retired:
                return
            self._used_bytes -= size
            self._held -= block.held
            if self._free_bytes + size <= _KEPT_FREE_BYTES:
                self._free_bytes += size
                self._free.setdefault(size, []).append(block.offset)
            else:
                self._map.madvise(mmap.MADV_REMOVE, block.offset, size)
                self._without_pages.setdefault(size, []).append(block.offset)

    def forked(self, *, child: bool) -> None:
        """Retire the arena if the other side of a fork can see its tensors: neither side may reuse their bytes.

        The tensors stay shared; their pages are freed when both sides have dropped them.
        """
        if child:
            self._lock = threading.RLock()
        if child or self._held:
            self.retired = True

    def __del__(self) -> None:
        if hasattr(self, "_map"):
            self._map.close()
            os.close(self.fd)

    def _fresh(self, size: int) -> int:
        total = self._used_bytes + self._free_bytes + size
        limit = memory_limit_bytes()
        if total > limit and self._free_bytes:
            self._drop_free()
            total = self._used_bytes + size
        if total > limit:
            raise CustomOpLibraryError(
                f"tensors of custom operators need {total} bytes, the limit is a quarter of this "
                f"computer's memory ({limit} bytes)",
                "use smaller or fewer tensors",
            )
        empty = self._without_pages.get(size)
        if empty:
            return empty.pop()
        if self._end + size > self.nbytes:
            raise CustomOpLibraryError(
                "custom-operator memory is too fragmented", "restart the Python process"
            )
        self._end += size
        return self._end - size

    def _drop_free(self) -> None:
        for size, offsets in self._free.items():
            for offset in offsets:
                self._map.madvise(mmap.MADV_REMOVE, offset, size)
            self._without_pages.setdefault(size, []).extend(offsets)
        self._free.clear()
        self._free_bytes = 0


def sealed_memory(name: str, nbytes: int) -> int:
    """Return a descriptor of anonymous memory of a fixed size: access past the end of a truncated file is a SIGBUS.

    Raises:
        OSError: the system refuses it.
    """
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(fd)
        raise
    return fd


def process_arena() -> Arena:
    """Return this process's arena, created if there is none.

    Raises:
        CustomOpLibraryError: the system refuses it.
    """
    with _lock:
        arena = _current()
        if arena is None or arena.retired:
            arena = Arena()
            _arenas[:] = [weakref.ref(arena)]
        return arena


def holds(address: int) -> bool:
    """Return whether an address is in this process's arena."""
    arena = _current()
    return arena is not None and not arena.retired and 0 <= address - arena.base < arena.nbytes


def memory_limit_bytes() -> int:
    """Return the limit for tensors of custom operators: a quarter of this computer's memory."""
    return int(_SHARE_OF_RAM * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def block_bytes(nbytes: int) -> int:
    """Round a size up, so growing tensors reuse mappings: powers of two, then multiples of 16 MiB."""
    size = PAGE_BYTES
    while size < nbytes and size < _STEP_BYTES:
        size *= 2
    return size if nbytes <= size else (nbytes + _STEP_BYTES - 1) // _STEP_BYTES * _STEP_BYTES


@cache
def _block_type(nbytes: int) -> Any:
    members = {
        "__slots__": ("address", "arena", "held", "offset"),
        "__del__": lambda block: block.arena.free(block),
        "nbytes": nbytes,
    }
    return type("Block", (ctypes.c_char * nbytes,), members)


def _current() -> Arena | None:
    return _arenas[0]() if _arenas else None


def _after_fork(*, child: bool) -> None:
    global _lock  # noqa: PLW0603
    arena = _current()
    if arena is not None:
        arena.forked(child=child)
    if child:
        _lock = threading.Lock()  # another thread may have held it


os.register_at_fork(
    after_in_child=lambda: _after_fork(child=True), after_in_parent=lambda: _after_fork(child=False)
)


class Staging:
    """Copies of tensors for one worker: a block per argument and one for the output, reused by the next call.

    Args:
        arena: allocates the blocks.
        fresh_memory: byte that fills the output and what lies before tensors, None to leave it as it is.
    """

    def __init__(self, arena: Arena, fresh_memory: int | None) -> None:
        self._arena = arena
        self._fresh_memory = fresh_memory
        self._blocks: list[Block | None] = [None] * abi.SLOTS
        self.copied_in = 0  # number of `write` calls; tests check that nothing was copied

    def block(self, slot: int, nbytes: int) -> Block:
        """Return a slot's block of at least `nbytes` bytes.

        Raises:
            CustomOpLibraryError: the limit is reached.
        """
        block = self._blocks[slot]
        if block is None or block.nbytes < nbytes:
            self._blocks[slot] = block = None  # frees the old block first
            self._blocks[slot] = block = self._arena.allocate(nbytes)
        return block

    def write(self, slot: int, address: int, nbytes: int) -> Block:
        """Copy bytes of this process to the end of a slot's block, and return it."""
        block = self._blocks[slot]
        if block is None or block.nbytes < nbytes:
            block = self.block(slot, nbytes)
        self.freshen(block)
        memmove(block.address + block.nbytes - nbytes, address, nbytes)
        self.copied_in += 1
        return block

    def output(self, nbytes: int) -> Block:
        """Return the block for an output of `nbytes` bytes."""
        block = self.block(abi.OUTPUT_SLOT, nbytes)
        self.freshen(block)
        return block

    def freshen(self, block: Block) -> None:
        """Fill a block as fresh memory is filled."""
        if self._fresh_memory is not None:
            memset(block.address, self._fresh_memory, block.nbytes)

    def read(self, slot: int, address: int, nbytes: int) -> None:
        """Copy the end of a slot's block to an address of this process."""
        block = self.block(slot, nbytes)
        memmove(address, block.address + block.nbytes - nbytes, nbytes)

    def close(self) -> None:
        """Free all blocks."""
        self._blocks = [None] * abi.SLOTS
