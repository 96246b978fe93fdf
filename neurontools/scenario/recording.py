"""Recordings: files of exactly the lines that neuron-monitor prints, real or simulated. Nothing is added to them."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from neurontools.errors import NeuronToolsError
from neurontools.monitor.parse import DamagedLineError, parse_line
from neurontools.scenario.pacing import Pacer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_MAX_LINE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class RecordedLine:
    """A line of a recording: its bytes as they are in the file, end of line included, and its time after the first.

    `next_s` is when another one would follow, were there no end.
    """

    number: int
    data: bytes
    time_s: float
    next_s: float


@dataclass(frozen=True, slots=True)
class DamagedLine:
    """A line that neuron-monitor did not write so; `cut` for a last one that breaks off."""

    number: int
    why: str
    cut: bool = False

    def __str__(self) -> str:
        what = "the file breaks off here, the line is left out" if self.cut else f"left out: {self.why}"
        return f"line {self.number}: {what}"


def read_recording(file: IO[bytes]) -> Iterator[RecordedLine | DamagedLine]:
    """Yield the lines of a recording, and in place of a damaged one what is wrong with it."""
    pacer = Pacer()
    for number, data in enumerate(_lines(file), 1):
        ends = data.endswith(b"\n")
        try:
            if len(data) > _MAX_LINE_BYTES:
                raise DamagedLineError(f"longer than {_MAX_LINE_BYTES} bytes")  # noqa: TRY301  told as any damage
            value = _value(data)
        except DamagedLineError as error:
            yield DamagedLine(number, error.message.removeprefix("damaged line: "), cut=not ends)
        else:
            time_s = pacer.time_s(value)
            yield RecordedLine(number, data, time_s, time_s + pacer.interval_s)


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
    """Write the lines of a recording, byte for byte, in their pace.

    Args:
        file: the recording.
        write: gets each line.
        on_damage: told of lines that are left out.
        speed: how many times as fast; None: without waiting.
        again: it will be played again, so wait after the last line as between the last two.
        clock: monotonic seconds.
        sleep: waits for some seconds.

    Returns:
        How many lines were written, and how many in the middle were damaged.
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
    on_damage: Callable[[DamagedLine], None] | None = None,
) -> tuple[int, int]:
    """Write lines of a monitor into a recording, each as soon as it is there and only whole ones.

    Args:
        lines: with their ends.
        out: unbuffered or flushed here.
        count: how many lines at most.
        duration_s: seconds of the recording at most, by the lines' own periods.
        on_line: told how many lines and seconds there are.
        on_damage: told of lines that are left out.

    Returns:
        How many lines were written, and how many were left out.
    """
    pacer = Pacer()
    written = damaged = 0
    for number, data in enumerate(lines, 1):
        if count is not None and written >= count:
            break
        try:
            time_s = pacer.time_s(_value(data))
        except DamagedLineError as error:
            damaged += 1
            if on_damage is not None:
                why = error.message.removeprefix("damaged line: ")
                on_damage(DamagedLine(number, why, cut=not data.endswith(b"\n")))
            continue
        if duration_s is not None and time_s > duration_s:
            break
        out.write(data if data.endswith(b"\n") else data + b"\n")
        out.flush()
        written += 1
        if on_line is not None:
            on_line(written, time_s)
        if count is not None and written >= count:
            break
        if duration_s is not None and written > 1 and time_s + pacer.interval_s / 2 > duration_s:
            break  # the next line would come too late: don't wait for it
    return written, damaged


def open_new(path: str, *, replace: bool) -> IO[bytes]:
    """Return a new file for a recording.

    Raises:
        NeuronToolsError: it is there already and may not be replaced, or can't be made.
    """
    try:
        return open(path, "wb" if replace else "xb")
    except FileExistsError as error:
        raise NeuronToolsError(f"{path} is there already", "choose another --out, or add --force") from error
    except OSError as error:
        raise NeuronToolsError(f"cannot write {path}: {error.strerror}") from error


def open_recording(path: str) -> IO[bytes]:
    """Return a recording for reading.

    Raises:
        NeuronToolsError: it can't be read.
    """
    try:
        return open(path, "rb")
    except OSError as error:
        raise NeuronToolsError(
            f"cannot read {path}: {error.strerror}", "make one with: neurontools scenario record --out FILE"
        ) from error


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    # One more byte than allowed shows that a line is too long without taking all of it into memory.
    while data := file.readline(_MAX_LINE_BYTES + 1):
        yield data
        while len(data) > _MAX_LINE_BYTES and not data.endswith(b"\n") and data:
            data = file.readline(_MAX_LINE_BYTES + 1)


def _value(data: bytes) -> dict[str, Any]:
    parse_line(data)
    value: dict[str, Any] = json.loads(data)
    return value
