"""Which test files execute which lines: measured once, with the daemons and tools that the tests start."""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coverage import CoverageData

if TYPE_CHECKING:
    from benchmarks.mutation.worker import Worker

_CONFIG = """
[run]
data_file = {data}
source_pkgs = neurontools
parallel = true
patch = subprocess, _exit
sigterm = true
"""
_TIMEOUT_S = 900


@dataclass(frozen=True, slots=True)
class TestFile:
    """A test file that passes: the seconds it takes, and the lines that it executes by file of the package."""

    name: str
    duration_s: float
    lines: dict[str, frozenset[int]]

    __test__ = False


def measure(workers: list[Worker], names: list[str], store: Path) -> list[TestFile]:
    """Run every test file once under coverage; what fails here is left out."""
    with ProcessPoolExecutor(len(workers)) as pool:
        jobs = [
            pool.submit(_measure_all, worker, names[i :: len(workers)]) for i, worker in enumerate(workers)
        ]
        found = [test for job in jobs for test in job.result()]
    store.write_text(
        json.dumps(
            [[t.name, t.duration_s, {file: sorted(lines) for file, lines in t.lines.items()}] for t in found]
        )
    )
    return found


def load(store: Path) -> list[TestFile]:
    """Return what `measure` stored."""
    return [
        TestFile(name, duration_s, {file: frozenset(numbers) for file, numbers in lines.items()})
        for name, duration_s, lines in json.loads(store.read_text())
    ]


def _measure_all(worker: Worker, names: list[str]) -> list[TestFile]:
    return [test for name in names if (test := _measure(worker, name)) is not None]


def _measure(worker: Worker, name: str) -> TestFile | None:
    data = worker.tree / ".coverage-data"
    (worker.tree / ".coveragerc").write_text(_CONFIG.format(data=data))
    outcome, duration_s = worker.run([name], _TIMEOUT_S, coverage=True)
    lines: dict[str, set[int]] = {}
    for part in data.parent.glob(f"{data.name}*"):
        measured = CoverageData(str(part))
        measured.read()
        for file in measured.measured_files():
            if Path(file).is_relative_to(worker.package):
                executed = lines.setdefault(str(Path(file).relative_to(worker.package)), set())
                executed.update(measured.lines(file) or ())
        part.unlink()
    print(f"{outcome:8} {duration_s:6.1f} s  {name}", flush=True)
    if outcome != "passed":
        return None
    return TestFile(name, duration_s, {file: frozenset(numbers) for file, numbers in lines.items()})
