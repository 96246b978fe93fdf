"""Each small idea has one home: atomic files, locks, /proc, suggestions, units. A new copy elsewhere fails here."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from typing import TYPE_CHECKING

from tests.style.prose import ROOT, modules, syntax_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

UNITS = {
    "ns",
    "us",
    "µs",
    "ms",
    "min",
    "h",
    "d",
    "w",
    "KiB",
    "MiB",
    "GiB",
    "TiB",
    "kB",
    "KB",
    "MB",
    "GB",
    "TB",
}
_UNIT_PATTERN = re.compile(
    r"(?:ns|us|ms|min|[KMG]i?B)\|(?:\w+\|)*(?:ns|us|µs|ms|s|min|h|[KMG]i?B)\b|\[kKMGTPE]+\]i\?"
)
_WORDS = re.compile(
    rf"os\.replace|fcntl|get_close_matches|/stat|{_UNIT_PATTERN.pattern}|['\"](?:{'|'.join(UNITS)})['\"]"
)
"""One of these is in a module that breaks a rule."""

_PROCESS_STAT = re.compile(r"/proc/(?:\d+|self|)/?stat$")

HOMES = {
    "os.replace": "neurontools/base/files.py: write_atomic, atomic_file",
    "fcntl.flock": "neurontools/base/locks.py: flock, file_lock",
    "get_close_matches": "neurontools/base/text.py: suggest, did_you_mean",
    "/proc/<pid>/stat": "neurontools/base/procfs.py: read_stat, start_ticks",
    "table of units": "neurontools/base/units.py: parse_size, parse_duration, format_size, format_duration ...",
}

ALLOWED = {
    ("/proc/<pid>/stat", "neurontools/machine/processes.py"): "asks whether it may be read",
    ("os.replace", "neurontools/cache/copy/runner.py"): "the file is locked while it is written",
    ("os.replace", "neurontools/cache/remote/store.py"): "s3fs writes the file",
    (
        "table of units",
        "neurontools/profiler/trace/timeline.py",
    ): "axis labels, with as many digits as neighbours need",
    ("os.replace", "neurontools/cache/events.py"): "moves a full log aside; nothing is written",
    (
        "os.replace",
        "neurontools/cache/copy/endpoints.py",
    ): "moves files of a staged entry; nothing is written",
    ("os.replace", "neurontools/profiler/exchange/export.py"): "moves finished files; nothing is written",
    ("os.replace", "neurontools/machine/directory.py"): "moves a full log aside; nothing is written",
    (
        "os.replace",
        "neurontools/customop/building/freshness.py",
    ): "moves the object file that the compiler wrote",
    ("os.replace", "neurontools/links.py"): "replaces symbolic links",
    ("os.replace", "neurontools/sysfs/mirror.py"): "writes thousands of files, without a sync",
    ("table of units", "neurontools/collectives/fabric.py"): "bytes a second",
    ("table of units", "neurontools/machine/instances/schema.py"): "bytes a second",
    ("table of units", "neurontools/monitor/config.py"): "Go's grammar, which neuron-monitor has",
    ("table of units", "neurontools/xla/debugging/metrics.py"): "torch_xla's report, byte for byte",
    ("table of units", "tui/top/numbers.py"): "the real neuron-top's sizes, and columns of fixed width",
    ("table of units", "tui/top/pages/columns.py"): "columns of fixed width",
}
"""Rule and module, and why it is not a copy."""

PENDING: set[tuple[str, str]] = set()
"""Rule and module of the copies that are still to be replaced; nothing is added here."""


def found_in(path: Path) -> Iterator[str]:
    """Yield the rules that a module breaks."""
    for node in syntax_of(path, _WORDS):
        match node:
            case ast.Attribute(value=ast.Name(id="os"), attr="replace"):
                yield "os.replace"
            case ast.Attribute(value=ast.Name(id="fcntl"), attr="flock" | "lockf"):
                yield "fcntl.flock"
            case ast.Name(id="get_close_matches"):
                yield "get_close_matches"
            case ast.JoinedStr(values=values) if _PROCESS_STAT.search(_plain(values)):
                yield "/proc/<pid>/stat"
            case ast.Dict(keys=keys) if _are_units(_words(keys)):
                yield "table of units"
            case ast.Tuple(elts=rows) | ast.List(elts=rows) if _is_table(rows):
                yield "table of units"
            case ast.Constant(value=str(text)) if _UNIT_PATTERN.search(text):
                yield "table of units"


def _plain(values: list[ast.expr]) -> str:
    return "".join(str(value.value) if isinstance(value, ast.Constant) else "1" for value in values)


def _words(nodes: list[ast.expr | None] | list[ast.expr]) -> set[object]:
    return {node.value for node in nodes if isinstance(node, ast.Constant)}


def _are_units(words: set[object]) -> bool:
    found = {str(word) for word in words & UNITS}
    return len(found) > 1 and any(len(word) > 1 for word in found)  # not only letters, as of short options


def _is_table(rows: list[ast.expr]) -> bool:
    units = [_words(row.elts) & UNITS for row in rows if isinstance(row, ast.Tuple)]
    return len([found for found in units if found]) > 1 or len(_words(rows) & UNITS) > 2


def test_no_module_has_a_copy_of_its_own():
    copies = defaultdict(list)
    for path in modules():
        name = str(path.relative_to(ROOT))
        if not name.startswith("neurontools/base/"):
            for rule in sorted(set(found_in(path))):
                if (rule, name) not in ALLOWED and (rule, name) not in PENDING:
                    copies[f"{rule} (use {HOMES[rule]})"].append(name)
    assert dict(copies) == {}
