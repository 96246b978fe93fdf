"""Samples of the computer during a capture: how busy its CPUs are, and its memory in use.

A sample is a record of its own row, which lasts from the sample before it; `value` is percent of all CPUs, or bytes.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import psutil

from neurontools.base.procfs import read_cpu_ticks
from neurontools.profiler.capture.format import NO_CORE
from neurontools.runtime.host_activity import HostEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    from neurontools.runtime.host_activity import HostRecord

_PERIOD_S = 0.1  # the counters of the CPUs count hundredths of a second
_IDLE = slice(3, 5)


class HostLoadSampler:
    """A thread that records samples until `stop`.

    Args:
        kinds: CPU_UTIL, HOST_MEMORY, or both.
        record: gets each sample.
    """

    def __init__(self, kinds: frozenset[HostEvent], record: Callable[[HostRecord], None]) -> None:
        self._kinds = kinds
        self._record = record
        self._ended = threading.Event()
        self._ticks = read_cpu_ticks()
        self._start_ns = time.monotonic_ns()
        self._thread = threading.Thread(target=self._run, name="host load", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Record a last sample, and no more; further calls do nothing."""
        self._ended.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(_PERIOD_S):
            self._sample()
        self._sample()

    def _sample(self) -> None:
        start_ns, self._start_ns = self._start_ns, time.monotonic_ns()
        if HostEvent.CPU_UTIL in self._kinds:
            before, self._ticks = self._ticks, read_cpu_ticks()
            passed = [new - old for new, old in zip(self._ticks, before, strict=True)]
            if sum(passed) > 0:
                busy = max(0, sum(passed) - sum(passed[_IDLE]))
                self._tell(HostEvent.CPU_UTIL, start_ns, round(100 * busy / sum(passed)))
        if HostEvent.HOST_MEMORY in self._kinds:
            self._tell(HostEvent.HOST_MEMORY, start_ns, psutil.virtual_memory().used)

    def _tell(self, kind: HostEvent, start_ns: int, value: int) -> None:
        self._record((kind, start_ns, self._start_ns, NO_CORE, "", "", value, 0))
