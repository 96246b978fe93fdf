"""What the daemon knows of a registered process: claims, the last good values of its page, and their JSON."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from neurontools.machine.memory import MemoryUse
from neurontools.machine.page import PageError, PageReader
from neurontools.machine.snapshot import LATENCY_BUCKETS, CoreUse, ProcessState

if TYPE_CHECKING:
    from neurontools.machine.events import Process
    from neurontools.machine.page import PageValue

EXECUTIONS = "executions"
EXECUTION_ERRORS = "execution_errors"
FLOPS = "flops"

_NO_MEMORY = MemoryUse()


class Telemetry:
    """The page of one process; reads it again only when it changed.

    Args:
        process: who it is and what it claims.
        page_fd: its page, owned by this object from now on; None when the page is lost.
    """

    __slots__ = ("_fd", "_reader", "_value", "encoded", "process", "state")

    def __init__(self, process: Process, page_fd: int | None) -> None:
        self.process = process
        self._fd = page_fd
        self._reader: PageReader | None = None
        self._value: PageValue | None = None
        if page_fd is not None:
            try:
                self._reader = PageReader(page_fd)
            except (PageError, OSError):
                pass
        self._show(stale=self._reader is None)

    @property
    def page_fd(self) -> int | None:
        """The descriptor of the page."""
        return self._fd

    def refresh(self, now_ns: int) -> None:
        """Bring `state` and `encoded` up to date; a page that can't be read keeps its last values, marked stale."""
        reader = self._reader
        if reader is None or not reader.changed():
            return
        value = reader.read(now_ns)
        if value is not None and self._is_ours(value):
            self._value = value
            self._show(stale=False)
        elif not self.state.stale:
            self._show(stale=True)

    def totals(self) -> tuple[tuple[str, int], ...]:
        """Return what the process did so far, by lifetime counter."""
        uses = self.state.cores
        executions = sum(use.executions for use in uses)
        if not executions:
            return ()
        failed = sum(count for status, count in self.state.status_counts if status)
        return (
            (EXECUTIONS, executions),
            (EXECUTION_ERRORS, failed),
            (FLOPS, sum(use.flops for use in uses)),
        )

    def close(self) -> None:
        """Close the page."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = self._reader = None

    def _is_ours(self, value: PageValue) -> bool:
        # The page is the process's to write; its claims are not.
        return tuple(use.core for use in value.cores) == self.process.cores

    def _show(self, *, stale: bool) -> None:
        process, value = self.process, self._value
        self.state = ProcessState(
            pid=process.key.pid,
            start_ticks=process.key.start_ticks,
            uid=process.uid,
            command=process.command,
            tag=process.tag,
            runtime_version=process.runtime_version,
            origin="live",
            uses_device=process.uses_device,
            cores=value.cores if value else tuple(map(_unused, process.cores)),
            host_memory=value.host_memory if value else _NO_MEMORY,
            models=value.models if value else (),
            status_counts=value.status_counts if value else (),
            latency_counts=value.latency_counts if value else (0,) * LATENCY_BUCKETS,
            registered_ns=process.registered_ns,
            stale=stale,
        )
        self.encoded = encode(self.state)


def encode(value: object) -> str:
    """Return the JSON text of a tree of dataclasses: what `to_json` gives, without making the tree of dicts first."""
    return json.dumps(value, default=_fields_of, separators=(",", ":"))


def _fields_of(value: Any) -> dict[str, object]:
    return {name: getattr(value, name) for name in value.__slots__}


def _unused(core: int) -> CoreUse:
    return CoreUse(core, 0, 0, 0, 0, executing=False, memory=_NO_MEMORY)
