"""Counting hits, misses, failures and waits in a log that the wrapper wrote (compile-runtime.md section 1.5)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from neurontools.cache.tables import counted, plain, table

if TYPE_CHECKING:
    from collections.abc import Iterable

_MAX_LINE_BYTES = 1 << 16
_LINE = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+): +(?:(?P<pid>\d+) +)?(?P<level>[A-Z]+) +\|\|(?P<tag>[A-Z_]+)\|\|:? *(?P<text>.*)"
)
_MODULE = re.compile(r"MODULE_[0-9A-Za-z]+\+?[0-9a-f]*")
_CACHE_PATH = re.compile(r"Compile cache path: (\S+)")
_WAITING = re.compile(r"Another process must be compiling (\S+?),? been waiting for: ([0-9.]+) minutes")
_PATTERNS = (
    ("hits", re.compile(r"Using a cached neff at ")),
    ("misses", re.compile(r"Call compiler with cmd: ")),
    ("replayed", re.compile(r"Got a cached failed neff at ")),
    ("failures", re.compile(r"Compilation failed for ")),
    ("extracted", re.compile(r"Extracting graphs \(")),
)


@dataclass(slots=True)
class LogCounts:
    """What a log tells. `waited_s` sums the longest wait that each process reports for each graph."""

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


def count_lines(lines: Iterable[bytes]) -> LogCounts:
    """Return the counts of a log's lines; lines of other programs, also around a message, are passed over."""
    counts = LogCounts()
    for raw in lines:
        counts.lines += 1
        found = _LINE.search(raw[:_MAX_LINE_BYTES].decode("utf-8", "replace"))
        if found is not None:
            _count(counts, found)
    return counts


def _count(counts: LogCounts, found: re.Match[str]) -> None:
    text, pid = found["text"], found["pid"] or ""
    counts.recognised += 1
    counts.first = counts.first or found["time"]
    counts.last = found["time"]
    if pid:
        counts.processes.add(pid)
    for name, pattern in _PATTERNS:
        if pattern.search(text):
            setattr(counts, name, getattr(counts, name) + 1)
            if name == "misses":
                module = _MODULE.search(text)
                key = module[0] if module else "(no module named)"
                counts.missed[key] = counts.missed.get(key, 0) + 1
            return
    path = _CACHE_PATH.search(text)
    if path is not None and path[1] not in counts.roots:
        counts.roots.append(path[1])
    waiting = _WAITING.search(text)
    if waiting is not None:
        wait = (pid, waiting[1])
        counts.waits[wait] = max(counts.waits.get(wait, 0.0), 60 * float(waiting[2]))


def counts_text(counts: LogCounts) -> str:
    """Return the counts as a table and, where modules were compiled again, which."""
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
    lines += [f"compiled {number} times: {plain(module)}" for module, number in sorted(again.items())]
    lines += [f"cache: {plain(root)}" for root in counts.roots]
    span = f", {counts.first} to {counts.last}" if counts.recognised else ""
    processes = f" of {counted(len(counts.processes), 'process', 'processes')}" if counts.processes else ""
    lines.append(
        f"{counted(counts.recognised, 'line', 'lines')} of the wrapper{processes} in {counts.lines}{span}"
    )
    return "\n".join(lines)


def counts_json(counts: LogCounts) -> dict[str, Any]:
    """Return the JSON form of `counts_text`."""
    return {
        "hits": counts.hits,
        "misses": counts.misses,
        "hit_share": counts.hit_share,
        "failures": counts.failures,
        "replayed": counts.replayed,
        "extracted": counts.extracted,
        "waits": len(counts.waits),
        "waited_s": counts.waited_s,
        "compiled": counts.missed,
        "roots": counts.roots,
        "processes": len(counts.processes),
        "lines": counts.lines,
        "recognised": counts.recognised,
    }
