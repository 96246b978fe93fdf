"""Recordings: files of the lines that neuron-monitor prints, unchanged."""

from __future__ import annotations

import io
import json
import os
import stat
import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, cast

from neurontools.base.files import open_input, remove_quietly, write_all
from neurontools.errors import NeuronToolsError
from neurontools.monitor.codec import DamagedLineError, not_lines, parse_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_MAX_LINE_BYTES = 64 << 20
_SNIFFED = 64
# neuron-monitor's own default (AWS Neuron documentation, neuron-monitor user guide).
_DEFAULT_PERIOD_S = 5.0
_MAX_PERIOD_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class RecordedLine:
    """A line of a recording: its bytes, end of line included, and its time after the first.

    `next_s` is the time of the next line, if there is one.
    """

    number: int
    data: bytes
    time_s: float
    next_s: float


@dataclass(frozen=True, slots=True)
class DamagedLine:
    """A line that is not neuron-monitor's; `cut` for an incomplete last line."""

    number: int
    reason: str
    cut: bool = False

    def __str__(self) -> str:
        what = "incomplete, skipped: the file ends here" if self.cut else f"skipped: {self.reason}"
        return f"line {self.number}: {what}"


def read_recording(file: IO[bytes]) -> Iterator[RecordedLine | DamagedLine]:
    """Yield the lines of a recording, for a damaged line its damage."""
    return parse_lines(_lines(file))


def parse_lines(lines: Iterable[bytes]) -> Iterator[RecordedLine | DamagedLine]:
    """Yield the lines of a monitor with their times, for a damaged line its damage."""
    timer = LineTimer()
    for number, data in enumerate(lines, 1):
        try:
            if len(data) > _MAX_LINE_BYTES:
                raise DamagedLineError(f"longer than {_MAX_LINE_BYTES} bytes")  # noqa: TRY301  reported as any damage
            parse_line(data)
            time_s = timer.time_s(json.loads(data))
        except DamagedLineError as error:
            reason = error.message.removeprefix("damaged line: ")
            yield DamagedLine(number, reason, cut=not data.endswith(b"\n"))
        else:
            yield RecordedLine(number, data, time_s, time_s + timer.interval_s)


def replay(
    file: IO[bytes],
    write: Callable[[bytes], None],
    on_damage: Callable[[DamagedLine], None],
    *,
    speed: float | None = 1.0,
    again: bool = False,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[int, int]:
    """Write the lines of a recording, byte for byte, at their original pace.

    Args:
        file: the recording.
        write: called with each line.
        on_damage: called with each skipped line.
        speed: a factor of the original pace; None: without waiting.
        again: wait after the last line as between the last two, for another replay.
        clock: monotonic seconds.
        sleep: waits for some seconds.

    Returns:
        The number of lines written, and of damaged lines other than an incomplete last one.
    """
    start_s = clock()
    next_s = 0.0
    written = damaged = 0
    for line in read_recording(file):
        if isinstance(line, DamagedLine):
            damaged += not line.cut
            on_damage(line)
            continue
        if speed is not None:
            sleep(max(0.0, start_s + line.time_s / speed - clock()))
        write(line.data)
        next_s = line.next_s
        written += 1
    if again and speed is not None:
        sleep(max(0.0, start_s + next_s / speed - clock()))
    return written, damaged


def record(
    lines: Iterable[bytes],
    out: IO[bytes],
    *,
    count: int | None = None,
    duration_s: float | None = None,
    on_line: Callable[[int, float], None] | None = None,
    on_damage: Callable[[DamagedLine], None] = lambda _: None,
) -> tuple[int, int]:
    """Write the lines of a monitor into a recording, each as it arrives; incomplete lines are skipped.

    Args:
        lines: the lines, with their ends.
        out: flushed after each line.
        count: maximum number of lines.
        duration_s: maximum length in seconds, by the periods in the lines.
        on_line: called with the number of lines and seconds so far.
        on_damage: called with each skipped line.

    Returns:
        The numbers of lines written and skipped.
    """
    written = damaged = 0
    for line in parse_lines(lines):
        if isinstance(line, DamagedLine):
            damaged += 1
            on_damage(line)
            continue
        if duration_s is not None and line.time_s > duration_s:
            break
        out.write(line.data if line.data.endswith(b"\n") else line.data + b"\n")
        out.flush()
        written += 1
        if on_line is not None:
            on_line(written, line.time_s)
        if count is not None and written >= count:
            break
        if duration_s is not None and written > 1 and (line.time_s + line.next_s) / 2 > duration_s:
            break  # the next line would come too late
    return written, damaged


def open_new(path: str, *, replace: bool) -> IO[bytes]:
    """Return a new file for a recording, to which whole lines are written.

    Raises:
        NeuronToolsError: it exists and may not be replaced, or cannot be created.
    """
    try:
        return cast("IO[bytes]", _RecordingFile(open(path, "wb" if replace else "xb", buffering=0), path))
    except FileExistsError as error:
        raise NeuronToolsError(f"{path} exists", "choose another --output, or add --force") from error
    except OSError as error:
        raise NeuronToolsError(f"cannot write {path}: {error.strerror}") from error


class _RecordingFile(io.RawIOBase):
    """Lines of a recording: a full disk cuts off no line, and leaves no file without any."""

    def __init__(self, file: io.FileIO, path: str) -> None:
        self._file = file
        self._path = path
        self._written = 0

    def write(self, line: Any) -> int:
        """Write a line.

        Raises:
            NeuronToolsError: it cannot be written; the lines before it stay.
        """
        descriptor = self._file.fileno()
        try:
            write_all(descriptor, line)
        except OSError as error:
            self._drop(descriptor)
            raise NeuronToolsError(
                f"cannot write {self._path}: {error.strerror}", "free space, or choose another --output"
            ) from error
        self._written += len(line)
        return len(line)

    def _drop(self, descriptor: int) -> None:
        """Remove the line that is cut off, and the file if it has no other."""
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.ftruncate(descriptor, self._written)
            if not self._written:
                remove_quietly(self._path)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


def open_recording(path: str) -> IO[bytes]:
    """Return a recording for reading.

    Raises:
        NeuronToolsError: it cannot be read.
    """
    try:
        file = open_input(path)
        problem = not_lines(file.peek(_SNIFFED)[:_SNIFFED])
    except OSError as error:
        raise NeuronToolsError(
            f"cannot read {path}: {error.strerror}", "make one with: neurontools scenario record -o FILE"
        ) from error
    if problem is not None:
        file.close()
        raise NeuronToolsError(f"cannot read the recording {path}: {problem[0]}", problem[1])
    return file


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    # One more byte than allowed shows that a line is too long without taking all of it into memory.
    while data := file.readline(_MAX_LINE_BYTES + 1):
        yield data
        while len(data) > _MAX_LINE_BYTES and not data.endswith(b"\n") and data:
            data = file.readline(_MAX_LINE_BYTES + 1)


class LineTimer:
    """Computes when each line was written, from the periods in the lines: they carry no time of day.

    The period of a group is the time since that group was collected last, so the time of a line is that of the last
    line with the same group plus the period. This also holds for groups with different periods.
    """

    def __init__(self) -> None:
        self._collected: dict[tuple[object, str], float] = {}
        self._time_s = 0.0
        self._interval_s = _DEFAULT_PERIOD_S
        self._has_begun = False

    @property
    def interval_s(self) -> float:
        """The seconds between the last two lines."""
        return self._interval_s

    def time_s(self, report: dict[str, Any]) -> float:
        """Return the time of a line, in seconds after the first.

        Args:
            report: the line's JSON value.
        """
        periods = _periods(report)
        if self._has_begun:
            self._advance(periods)
        self._has_begun = True
        for key in periods:
            self._collected[key] = self._time_s
        return self._time_s

    def _advance(self, periods: dict[tuple[object, str], float]) -> None:
        times = [self._collected[key] + period for key, period in periods.items() if key in self._collected]
        later = [time_s for time_s in times if time_s > self._time_s]
        if later:
            # Groups of the host outlive those of processes; of equals the greatest keeps the order of lines.
            self._interval_s = max(later) - self._time_s
        elif periods:
            self._interval_s = min(periods.values())
        self._time_s += min(self._interval_s, _MAX_PERIOD_S)


def _periods(report: dict[str, Any]) -> dict[tuple[object, str], float]:
    found: dict[tuple[object, str], float] = {}
    _collect(found, "system", report.get("system_data"))
    runtimes = report.get("neuron_runtime_data")
    for runtime in runtimes if isinstance(runtimes, list) else []:
        if isinstance(runtime, dict):
            _collect(found, runtime.get("pid"), runtime.get("report"))
    return found


def _collect(found: dict[tuple[object, str], float], origin: object, groups: object) -> None:
    for name, group in groups.items() if isinstance(groups, dict) else ():
        period = group.get("period") if isinstance(group, dict) else None
        if (
            isinstance(period, int | float)
            and 0 < period <= _MAX_PERIOD_S
            and isinstance(origin, int | str | None)
        ):
            found[origin, name] = float(period)
