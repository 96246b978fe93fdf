"""A registered process as the daemon sees it: claims, the last good values of its page, and their JSON."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from neurontools.machine.codec import encode
from neurontools.machine.hardware import CoreTotals
from neurontools.machine.memory import MemoryUse
from neurontools.machine.pages.page import PageError, PageReader
from neurontools.machine.snapshot import LATENCY_BUCKETS, CoreUse, ModelState, ProcessState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.machine.events import Process

EXECUTIONS = "executions"
EXECUTION_ERRORS = "execution_errors"
FLOPS = "flops"

_COUNTERS = (EXECUTIONS, EXECUTION_ERRORS, FLOPS)
COUNTERS = len(_COUNTERS)


class Telemetry:
    """The page of one process; read again only when it changed.

    Args:
        process: the process and its claims.
        page_fd: its page, owned by this object from now on; None when the page is lost.
    """

    __slots__ = ("_encoded", "_fd", "_has_been_read", "_origin", "_reader", "counts", "process", "state")

    state: ProcessState
    counts: tuple[int, int, int]

    def __init__(self, process: Process, page_fd: int | None) -> None:
        self.process = process
        self._fd = page_fd
        self._origin = process.origin
        self._encoded: str | None = None
        self._reader: PageReader | None = None
        self._has_been_read = False
        if page_fd is not None:
            self._reader = _reader_of(page_fd, process)
        self._show(self._reader or _LostPage(process.cores), stale=self._reader is None)

    @property
    def page_fd(self) -> int | None:
        """The descriptor of the page."""
        return self._fd

    @property
    def encoded(self) -> str:
        """The JSON text of `state`."""
        if self._encoded is None:
            self._encoded = encode(self.state)
        return self._encoded

    def refresh(self, now_ns: int) -> None:
        """Bring `state` up to date; a page that can't be read keeps its last values, marked stale."""
        reader = self._reader
        if reader is None:
            return
        changed = reader.refresh(now_ns)
        if changed is not None:
            if changed or self.state.stale:
                self._has_been_read = True
                self._show(reader, stale=False)
        elif not self.state.stale:
            if not self._has_been_read:
                self._has_been_read = reader.salvage()
            self._show(reader, stale=True)

    def take_last(self, now_ns: int) -> None:
        """Bring `state` up to date for the last time: the writer has exited, perhaps in the middle of a change."""
        self.refresh(now_ns)
        reader = self._reader
        if reader is not None and self.state.stale and reader.salvage():
            self._show(reader, stale=True)

    def totals(self) -> tuple[tuple[str, int], ...]:
        """Return what the process did so far, by lifetime counter."""
        return named_counts(self.counts)

    def core_totals(self) -> tuple[CoreTotals, ...]:
        """Return what the process did so far, by core; without cores on which it did nothing."""
        return tuple(
            CoreTotals(
                use.core,
                use.busy_ns,
                use.executions,
                use.flops,
                use.gpsimd_ns,
                use.model_loads,
                use.failures,
            )
            for use in self.state.cores
            if use.executions or use.model_loads
        )

    def close(self) -> None:
        """Close the page."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = self._reader = None

    def _show(self, page: PageReader | _LostPage, *, stale: bool) -> None:
        process = self.process
        key, (user_ns, system_ns) = process.key, page.cpu_ns
        self.state = ProcessState(
            key.pid,
            key.start_ticks,
            process.uid,
            process.command,
            process.tag,
            process.runtime_version,
            self._origin,
            process.uses_device,
            page.uses,
            page.host_memory,
            page.models,
            page.status_counts,
            page.latency_counts,
            process.registered_ns,
            stale,
            user_ns,
            system_ns,
        )
        self.counts = page.counts
        self._encoded = None


class _LostPage:
    """Stands for a page that can't be opened: no activity."""

    def __init__(self, cores: tuple[int, ...]) -> None:
        memory = MemoryUse()
        self.uses = tuple([CoreUse(core, 0, 0, 0, 0, executing=False, memory=memory) for core in cores])
        self.host_memory = memory
        self.models: tuple[ModelState, ...] = ()
        self.status_counts: tuple[tuple[int, int], ...] = ()
        self.latency_counts = (0,) * LATENCY_BUCKETS
        self.cpu_ns = (0, 0)
        self.counts = (0, 0, 0)


def named_counts(counts: Sequence[int]) -> tuple[tuple[str, int], ...]:
    """Return counts of executions, failed ones and flops by lifetime counter; nothing without an execution."""
    return tuple(zip(_COUNTERS, counts, strict=True)) if counts[0] else ()


def _reader_of(page_fd: int, process: Process) -> PageReader | None:
    try:
        reader = PageReader(page_fd)
    except (PageError, OSError):
        return None
    # The page is the process's to write; its claims are not.
    return reader if reader.cores == process.cores else None
