"""What the daemon knows of a registered process: claims, the last good values of its page, and their JSON."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from neurontools.machine.fast_values import fast_constructor
from neurontools.machine.hardware import CoreTotals
from neurontools.machine.memory import MemoryUse
from neurontools.machine.pages.page import PageError, PageReader, PageValue
from neurontools.machine.snapshot import LATENCY_BUCKETS, CoreUse, ProcessState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.machine.events import Process

EXECUTIONS = "executions"
EXECUTION_ERRORS = "execution_errors"
FLOPS = "flops"

_COUNTERS = (EXECUTIONS, EXECUTION_ERRORS, FLOPS)
COUNTERS = len(_COUNTERS)
_NO_MEMORY = MemoryUse()
_process_state = fast_constructor(ProcessState)


class Telemetry:
    """The page of one process; reads it again only when it changed.

    Args:
        process: who it is and what it claims.
        page_fd: its page, owned by this object from now on; None when the page is lost.
    """

    __slots__ = ("_encoded", "_fd", "_origin", "_reader", "_value", "counts", "process", "state")

    state: ProcessState
    counts: tuple[int, int, int]

    def __init__(self, process: Process, page_fd: int | None) -> None:
        self.process = process
        self._fd = page_fd
        self._origin = process.origin
        self._encoded: str | None = None
        self._reader: PageReader | None = None
        self._value: PageValue | None = None
        if page_fd is not None:
            self._reader = _reader_of(page_fd, process)
        self._show(stale=self._reader is None)

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
        value = reader.read(now_ns)
        if value is None:
            if self.state.stale:
                return
            if self._value is None:
                self._salvage()
            else:
                self._show(stale=True)
        elif value is not self._value or self.state.stale:
            self._value = value
            self._show(stale=False)

    def take_last(self, now_ns: int) -> None:
        """Bring `state` up to date for the last time: nobody writes the page any more, perhaps since amid a change."""
        self.refresh(now_ns)
        if self.state.stale:
            self._salvage()

    def totals(self) -> tuple[tuple[str, int], ...]:
        """Return what the process did so far, by lifetime counter."""
        return named_counts(self.counts)

    def core_totals(self) -> tuple[CoreTotals, ...]:
        """Return what the process did so far, by core; nothing of cores on which it did nothing."""
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

    def _salvage(self) -> None:
        value = self._reader.salvage() if self._reader else None
        if value is not None:
            self._value = value
        self._show(stale=True)

    def _show(self, *, stale: bool) -> None:
        process, value = self.process, self._value
        if value is None:
            value = _nothing(process.cores)
        key, (user_ns, system_ns) = process.key, value.cpu_ns
        self.state = _process_state(
            key.pid,
            key.start_ticks,
            process.uid,
            process.command,
            process.tag,
            process.runtime_version,
            self._origin,
            process.uses_device,
            value.cores,
            value.host_memory,
            value.models,
            value.status_counts,
            value.latency_counts,
            process.registered_ns,
            stale,
            user_ns,
            system_ns,
        )
        self.counts = _counts(value)
        self._encoded = None


def named_counts(counts: Sequence[int]) -> tuple[tuple[str, int], ...]:
    """Return counts of executions, failed ones and flops by lifetime counter; nothing without an execution."""
    return tuple(zip(_COUNTERS, counts, strict=True)) if counts[0] else ()


def encode(value: object) -> str:
    """Return the JSON text of a tree of dataclasses: what `to_json` gives, without making the tree of dicts first."""
    return json.dumps(value, default=_fields_of, separators=(",", ":"))


def _fields_of(value: Any) -> dict[str, object]:
    return {name: getattr(value, name) for name in value.__slots__}


def _reader_of(page_fd: int, process: Process) -> PageReader | None:
    try:
        reader = PageReader(page_fd)
    except (PageError, OSError):
        return None
    # The page is the process's to write; its claims are not.
    return reader if reader.cores == process.cores else None


def _counts(value: PageValue) -> tuple[int, int, int]:
    uses = value.cores
    if len(uses) == 1:
        (use,) = uses
        executions, flops, failures = use.executions, use.flops, use.failures
    else:
        executions, flops = sum([use.executions for use in uses]), sum([use.flops for use in uses])
        failures = value.status_counts
    failed = sum([count for status, count in failures if status]) if failures else 0
    return executions, failed, flops


def _nothing(cores: tuple[int, ...]) -> PageValue:
    uses = tuple([CoreUse(core, 0, 0, 0, 0, executing=False, memory=_NO_MEMORY) for core in cores])
    return PageValue(uses, _NO_MEMORY, (), (), (0,) * LATENCY_BUCKETS, (0,) * len(cores))
