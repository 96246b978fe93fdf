"""Counts of hits, misses and waits in logs of the real wrapper or of ours."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from neurontools.base.text import plural, printable, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


_MAX_LINE_BYTES = 1 << 16
_PROGRESS_BYTES = 1 << 20
_LINE = r"(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+): +(?:(?P<pid>\d+) +)?(?P<level>[A-Z]+) +\|\|(?P<tag>[A-Z_]+)\|\|:? *(?P<text>.*)"
_STAMP = r"(?=\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: )"
_SIGN = b"||"
_MOST_CONTINUED = 4
_OLDEST_TAG = "NCC_WRAPPER"
_OLDEST_MISS = "No candidate found under "
_MODULE = r"MODULE_[0-9A-Za-z]+\+?[0-9a-f]*"
_CACHE_PATH = r"Compile cache path: (\S+)"
_WAITING = r"Another process must be compiling (\S+?),? been waiting for: ([0-9.]+) minutes"
_PHRASES = (
    ("hits", "Using a cached neff at "),
    ("misses", "Call compiler with cmd: "),
    ("replayed", "Got a cached failed neff at "),
    ("failures", "Compilation failed for "),
    ("extracted", "Extracting graphs ("),
)


@dataclass(slots=True)
class LogCounts:
    """Counts of a log. `waited_s` sums the longest wait that each process reports for each graph."""

    lines: int = 0
    recognised: int = 0
    hits: int = 0
    misses: int = 0
    replayed: int = 0
    failures: int = 0
    extracted: int = 0
    first: str = ""
    last: str = ""
    roots: list[str] = field(default_factory=list)
    processes: set[str] = field(default_factory=set)
    missed: dict[str, int] = field(default_factory=dict)
    waits: dict[tuple[str, str], float] = field(default_factory=dict)

    @property
    def waited_s(self) -> float:
        """Seconds that processes waited for others."""
        return sum(self.waits.values())

    @property
    def hit_share(self) -> float | None:
        """Hits among lookups (0..1), None before the first."""
        lookups = self.hits + self.misses + self.replayed
        return self.hits / lookups if lookups else None


def read_lines(file: IO[bytes], progress: Callable[[int], None] | None = None) -> Iterator[bytes]:
    """Yield the lines of a log; longer lines are split at 64 KiB.

    Args:
        file: the log.
        progress: called periodically with the number of bytes read.
    """
    read_bytes = reported_bytes = 0
    while line := file.readline(_MAX_LINE_BYTES):
        read_bytes += len(line)
        if progress is not None and read_bytes - reported_bytes > _PROGRESS_BYTES:
            reported_bytes = read_bytes
            progress(read_bytes)
        yield line


def count_lines(lines: Iterable[bytes]) -> LogCounts:
    """Return the counts of a log's lines; lines of other programs are skipped.

    A carriage return (of a progress bar) also ends a line; a wrapped message continues on the next lines.
    """
    counts = LogCounts()
    message: _Message | None = None
    for raw in lines:
        counts.lines += 1
        if message is None and _SIGN not in raw:
            continue
        for piece in _pieces(raw[:_MAX_LINE_BYTES].rstrip(b"\r\n")):
            message = _take(counts, message, piece)
    _count_incomplete(counts, message)
    return counts


def _pieces(line: bytes) -> Iterator[str]:
    for part in line.split(b"\r"):
        text = part.decode("utf-8", "replace")
        # Processes that share a pipe may write several messages into one line.
        yield from re.split(_STAMP, text) if part.count(_SIGN) > 2 else (text,)


@dataclass(slots=True)
class _Message:
    """An incomplete message, which may continue in the next lines."""

    tag: str
    pid: str
    text: str
    continued: int = 0


def _take(counts: LogCounts, message: _Message | None, piece: str) -> _Message | None:
    found = re.search(_LINE, piece)
    if found is None:
        return message and _continue(counts, message, piece)
    _count_incomplete(counts, message)
    return _begin(counts, found)


def _begin(counts: LogCounts, found: re.Match[str]) -> _Message | None:
    counts.recognised += 1
    counts.first = counts.first or found["time"]
    counts.last = found["time"]
    message = _Message(found["tag"], found["pid"] or "", found["text"])
    if message.pid:
        counts.processes.add(message.pid)
    return None if _count(counts, message) else message


def _continue(counts: LogCounts, message: _Message, piece: str) -> _Message | None:
    before = message.text
    # Terminals wrap within words, mail programs between them.
    for message.text in (before + piece, f"{before} {piece.strip()}"):
        if _count(counts, message):
            return None
    message.text = before + piece
    message.continued += 1
    if message.continued < _MOST_CONTINUED:
        return message
    _count_incomplete(counts, message)
    return None


def _count_incomplete(counts: LogCounts, message: _Message | None) -> None:
    """Count a compile whose module name is incomplete."""
    if message is not None and _kind(message) == "misses":
        module = re.search(_MODULE, message.text)
        _count_miss(counts, module[0] if module else "(no module named)")


def _kind(message: _Message) -> str:
    if message.tag == _OLDEST_TAG and _OLDEST_MISS in message.text:
        return "misses"
    return next((name for name, phrase in _PHRASES if phrase in message.text), "")


def _count(counts: LogCounts, message: _Message) -> bool:
    """Count a message; return False if it is not counted, or its module name is incomplete."""
    kind, text = _kind(message), message.text
    if kind == "misses":
        module = re.search(_MODULE, text)
        if module is None or module.end() == len(text):  # the line may be cut within the name
            return False
        _count_miss(counts, module[0])
        return True
    if kind:
        setattr(counts, kind, getattr(counts, kind) + 1)
        return True
    path = re.search(_CACHE_PATH, text)
    if path is not None and path[1] not in counts.roots:
        counts.roots.append(path[1])
    waiting = re.search(_WAITING, text)
    if waiting is not None:
        wait = (message.pid, waiting[1])
        counts.waits[wait] = max(counts.waits.get(wait, 0.0), 60 * float(waiting[2]))
    return path is not None or waiting is not None


def _count_miss(counts: LogCounts, module: str) -> None:
    counts.misses += 1
    counts.missed[module] = counts.missed.get(module, 0) + 1


def format_counts(counts: LogCounts) -> str:
    """Return the counts as a table, and the modules compiled more than once."""
    share = counts.hit_share
    rows = [
        ("hits", str(counts.hits)),
        ("misses", str(counts.misses)),
        ("hit share", "-" if share is None else f"{share:.1%}"),
        ("failed compiles", str(counts.failures)),
        ("failures replayed from the cache", str(counts.replayed)),
        ("graphs extracted", str(counts.extracted)),
        ("waits for other processes", f"{len(counts.waits)}, {counts.waited_s / 60:.1f} minutes"),
    ]
    lines = [table(None, rows, "<>")]
    again = {module: number for module, number in counts.missed.items() if number > 1}
    lines += [f"compiled {number} times: {printable(module)}" for module, number in sorted(again.items())]
    lines += [f"cache: {printable(root)}" for root in counts.roots]
    span = f", {counts.first} to {counts.last}" if counts.recognised else ""
    processes = f" of {plural(len(counts.processes), 'process', 'processes')}" if counts.processes else ""
    lines.append(
        f"{plural(counts.recognised, 'line', 'lines')} of the wrapper{processes} in {counts.lines}{span}"
    )
    return "\n".join(lines)


def counts_json(counts: LogCounts) -> dict[str, Any]:
    """Return the JSON form of `format_counts`."""
    names = (
        "hits",
        "misses",
        "hit_share",
        "failures",
        "replayed",
        "extracted",
        "waited_s",
        "roots",
        "lines",
        "recognised",
    )
    numbers = {"waits": len(counts.waits), "processes": len(counts.processes), "compiled": counts.missed}
    return {name: getattr(counts, name) for name in names} | numbers
