"""Captures of the profiler: description, models and events."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fuzz.mutation import Format
from tests.fuzz.target import Target, run

if TYPE_CHECKING:
    from collections.abc import Iterator

_FORMS = (
    ("summary",),
    ("summary", "--json"),
    ("top",),
    ("steps",),
    ("gaps", "--json"),
    ("advise",),
    ("view", "--output-format", "chrome", "--output-file", "out.json"),
    ("view", "--output-format", "perfetto", "--output-file", "out.pftrace"),
)


@cache
def _capture() -> Path:
    """Make a capture; return the directory of its process."""
    from tests.profiler.conftest import Maker

    directory = Path("profile").absolute()
    maker = Maker()
    maker.finished(directory, ncs=(0, 1))
    (meta,) = directory.rglob("meta.json")
    return meta.parent


def _file(name: str) -> list[bytes]:
    return [(_capture() / name).read_bytes()]


def _check(name: str, data: bytes) -> None:
    from neurontools.commands import profile

    path = _capture() / name
    saved = path.read_bytes()
    path.write_bytes(data)
    try:
        for form in _FORMS:
            run(profile.main, form[0], str(_capture()), *form[1:], is_json="--json" in form)
        _draw_timeline()
    finally:
        path.write_bytes(saved)
        for made in Path().glob("out.*"):
            made.unlink()


_EVENTS = (
    {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
    {
        "ph": "X",
        "name": "aten::mm",
        "cat": "cpu_op",
        "pid": 1,
        "tid": 2,
        "ts": 1.001,
        "dur": 9.5,
        "args": {"n": [1]},
    },
    {"ph": "X", "name": "gemm", "cat": "kernel", "pid": 0, "tid": 7, "ts": 3, "dur": 4},
    {"ph": "B", "name": "step", "pid": 1, "tid": 3, "ts": 1},
    {"ph": "E", "pid": 1, "tid": 3, "ts": 8},
)


def _chrome_traces() -> list[bytes]:
    """Return traces as torch.profiler and others write them."""
    whole = {"schemaVersion": 1, "traceEvents": _EVENTS, "traceName": "t", "baseTimeNanoseconds": 1}
    return [json.dumps(whole).encode(), json.dumps(_EVENTS).encode(), json.dumps(whole, indent=1).encode()]


def _packed_traces() -> list[bytes]:
    return [gzip.compress(trace, mtime=0) for trace in _chrome_traces()]


def _tables() -> Iterator[bytes]:
    """Yield tables of instructions as Neuron Explorer writes them."""
    import duckdb

    rows = "SELECT i * 10 AS start_ts, 9 AS duration_ns, 'mm' AS hlo_name, 'MATMUL' AS opcode, 0 AS pcore_idx"
    path = Path("seed.parquet")
    for compression in ("zstd", "uncompressed"):
        options = f"(FORMAT parquet, COMPRESSION {compression})"
        duckdb.sql(f"COPY ({rows}, 'Tensor' AS engine FROM range(20) t(i)) TO '{path}' {options}")
        yield path.read_bytes()
    path.unlink()


def _check_table(data: bytes) -> None:
    directory = Path("tables")
    directory.mkdir(exist_ok=True)
    (directory / "Instruction.parquet").write_bytes(data)
    _check_foreign(directory)


def _check_file(name: str, data: bytes) -> None:
    path = Path(name)
    path.write_bytes(data)
    try:
        _check_foreign(path)
    finally:
        path.unlink()


def _check_foreign(path: Path) -> None:
    from neurontools.commands import profile

    try:
        for form in (*_FORMS, ("view", "--output-format", "folded", "--output-file", "out.txt")):
            run(profile.main, form[0], str(path), *form[1:], is_json="--json" in form)
    finally:
        for made in Path().glob("out.*"):
            made.unlink()


def _draw_timeline() -> None:
    from neurontools.profiler.trace.open import load
    from neurontools.profiler.trace.timeline import TraceTimeline, Viewport

    trace = load(str(_capture()))
    if trace.event_count:
        view = Viewport.fit(trace.end_ns, 100)
        for row in TraceTimeline(trace).rows:
            row.cells(view.edges())


TARGETS = (
    Target("profiles/chrome", Format.JSON, _chrome_traces, lambda data: _check_file("foreign.json", data)),
    Target(
        "profiles/chrome-packed",
        Format.BINARY,
        _packed_traces,
        lambda data: _check_file("foreign.json.gz", data),
        share=0.5,
    ),
    Target("profiles/tables", Format.BINARY, lambda: list(_tables()), _check_table, share=0.3),
    Target(
        "profiles/hardware",
        Format.BINARY,
        lambda: [b"NTFF" + bytes(60)],
        lambda data: _check_file("profile.ntff", data),
        share=0.1,
    ),
    Target(
        "profiles/meta",
        Format.JSON,
        lambda: _file("meta.json"),
        lambda data: _check("meta.json", data),
        share=0.5,
    ),
    Target(
        "profiles/models",
        Format.JSON_LINES,
        lambda: _file("models.jsonl"),
        lambda data: _check("models.jsonl", data),
        share=0.5,
    ),
    Target(
        "profiles/events",
        Format.BINARY,
        lambda: _file("events-000000.bin"),
        lambda data: _check("events-000000.bin", data),
        share=0.5,
    ),
)
