"""A recording as a source: lines that neuron-monitor wrote, real or simulated, as snapshots."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Self

from neurontools.base.files import open_input
from neurontools.errors import NeuronToolsError
from neurontools.monitor.codec import DamagedLineError, not_lines, parse_line
from neurontools.monitor.report import SystemGroup
from neurontools.sources.reported_machine import ReportedMachine, unknown_process

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.machine.snapshot import HardwareCounters, Snapshot

_RECORDED = "recorded"
_SNIFFED = 64
_LONGEST_LINE_BYTES = 64 << 20
_ERRORS = b'"' + SystemGroup.HARDWARE_COUNTERS.encode() + b'"'


class RecordingError(NeuronToolsError):
    """A file that is not a recording of neuron-monitor."""


class RecordingSource:
    """The lines of a file as snapshots; a line that is cut off or damaged ends it, with a notice.

    Args:
        path: the file.

    Raises:
        RecordingError: it can't be read.
    """

    live = False

    def __init__(self, path: str) -> None:
        self.name = f"file:{os.path.basename(path)}"
        self.notices: tuple[str, ...] = ()
        self._path = path
        try:
            with open_input(path) as file:
                # The lines carry no dates; the last one is as old as the file.
                self._ended_unix_s = os.fstat(file.fileno()).st_mtime
                problem = not_lines(file.read(_SNIFFED))
        except OSError as error:
            raise RecordingError(
                f"cannot read the recording {path}: {error.strerror}", "use a file of neuron-monitor's lines"
            ) from error
        if problem is not None:
            raise RecordingError(f"cannot read the recording {path}: {problem[0]}", problem[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing stays open."""

    def snapshot(self) -> Snapshot:
        """Return the machine as it was at the end.

        Raises:
            RecordingError: there is no line that can be used.
        """
        last: Snapshot | None = None
        for snapshot in self.snapshots():
            last = snapshot
        if last is None:
            raise self._empty()
        return last

    def watch(self, period_s: float) -> Iterator[Snapshot]:
        """Yield the snapshot of each line, one every `period_s` seconds whatever the lines say they cover.

        Raises:
            RecordingError: there is no line that can be used.
        """
        found = False
        for snapshot in self.snapshots():
            if found:
                time.sleep(period_s)
            found = True
            yield snapshot
        if not found:
            raise self._empty()

    def snapshots(self) -> Iterator[Snapshot]:
        """Yield the snapshot of each line without waiting.

        Raises:
            RecordingError: the file can't be read.
        """
        reported = _reported_machine()
        reported.errors.update(self._first_errors())
        for number, line in enumerate(self._lines(), start=1):
            try:
                report = parse_line(line)
            except DamagedLineError as error:
                problem = (
                    f"which is not a report ({error.message})" if line.endswith(b"\n") else "which is cut off"
                )
                self._notice(f"{self._path}: stopped at line {number}, {problem}")
                return
            reported.take(report)
            if reported.hardware.neuron_device_count:
                yield reported.snapshot(
                    self.name.removeprefix("file:"),
                    "recording",
                    taken_unix_s=self._ended_unix_s + reported.clock_s,
                    started_unix_s=self._ended_unix_s,
                )

    def _first_errors(self) -> dict[int, HardwareCounters]:
        """Return the memory errors of the first line that has them: before it they are unknown, not 0."""
        reported = _reported_machine()
        for line in self._lines():
            if _ERRORS in line:
                try:
                    reported.take(parse_line(line))
                except DamagedLineError:
                    break
                if reported.errors:
                    break
        return reported.errors

    def _lines(self) -> Iterator[bytes]:
        try:
            with open_input(self._path) as file:
                while line := file.readline(_LONGEST_LINE_BYTES):
                    if line.strip():
                        yield line
        except OSError as error:
            raise RecordingError(f"cannot read the recording {self._path}: {error.strerror}") from error

    def _notice(self, text: str) -> None:
        if text not in self.notices:
            self.notices += (text,)

    def _empty(self) -> RecordingError:
        message = (
            self.notices[0] if self.notices else f"{self._path} has no line of neuron-monitor with devices"
        )
        return RecordingError(message, "record one with: neuron-monitor > FILE")


def _reported_machine() -> ReportedMachine:
    return ReportedMachine(lambda pid, tag: unknown_process(pid, tag, _RECORDED))
