"""Which test files execute which lines: measured once, with the daemons and tools that the tests start."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coverage import CoverageData
from coverage.exceptions import DataError

if TYPE_CHECKING:
    from tests.mutation.worker import Worker

# The context of a started process is the test that starts it, which pytest puts into the environment.
_CONFIG = """
[run]
data_file = {data}
source_pkgs = neurontools
parallel = true
patch = _exit
sigterm = true
context = ${{PYTEST_CURRENT_TEST-}}
"""
_TIMEOUT_S = 3600
_ATTEMPTS = 3
_DATA, _OUTCOMES = ".coverage-data", ".outcomes.json"
Lines = dict[str, set[int]]


@dataclass(frozen=True, slots=True)
class TestFile:
    """A test file.

    Args:
        name: its path in the repository.
        duration_s: seconds it takes under coverage.
        failing: tests that fail without a mutant, under coverage for example.
        lines: lines that it executes, by file of the package.
    """

    name: str
    duration_s: float
    failing: tuple[str, ...]
    lines: dict[str, frozenset[int]]

    __test__ = False


def measure(worker: Worker, folders: tuple[str, ...], processes: int, store: Path) -> None:
    """Run the tests of each folder once under coverage and store what they execute.

    A folder is run again where coverage lost the data of a pytest process, which programs that fork can do to it.
    A file that seems to execute nothing is run again alone: the data of its process may have been lost silently.
    """
    measured = []
    for folder in folders:
        print(f"measuring which lines {folder} executes, {processes} files at a time ...", flush=True)
        outcome, duration_s = "", 0.0
        for _ in range(_ATTEMPTS):
            outcome, duration_s = _run(worker, folder, processes)
            if "INTERNALERROR" not in worker.log.read_text(errors="replace", encoding="utf-8"):
                break
        print(f"{outcome} in {duration_s:.0f} s", flush=True)
        lines = _lines(worker, worker.tree / _DATA)
        files: dict[str, tuple[float, list[str]]] = json.loads(
            (worker.tree / _OUTCOMES).read_text(encoding="utf-8")
        )
        for name in files:
            if not lines[name]:
                _run(worker, name, 1)
                lines[name] = _lines(worker, worker.tree / _DATA)[name]
        measured += [
            [name, seconds, failing, {file: sorted(found) for file, found in lines[name].items()}]
            for name, (seconds, failing) in files.items()
        ]
    store.write_text(json.dumps(measured), encoding="utf-8")


def _run(worker: Worker, target: str, processes: int) -> tuple[str, float]:
    for left in worker.tree.glob(f"{_DATA}*"):
        left.unlink()
    config = worker.tree / ".coveragerc"
    config.write_text(_CONFIG.format(data=worker.tree / _DATA), encoding="utf-8")
    variables = {
        "COVERAGE_PROCESS_START": str(config),
        "MUTATION_OUTCOMES": str(worker.tree / _OUTCOMES),
        "PYTHONPATH": str(Path(__file__).parent),
    }
    options = ("-p", "coverage_plugin", "-n", str(processes), "--dist", "loadfile")
    return worker.run([target], _TIMEOUT_S, *options, variables=variables)


def load(store: Path) -> list[TestFile]:
    """Return what `measure` stored."""
    return [
        TestFile(name, duration_s, tuple(failing), {file: frozenset(found) for file, found in lines.items()})
        for name, duration_s, failing, lines in json.loads(store.read_text(encoding="utf-8"))
    ]


def _lines(worker: Worker, data: Path) -> dict[str, Lines]:
    """Return the lines that each test file executes.

    Lines executed by an import, which no test is named for, count for every test file that executes something else
    in the module.
    """
    by_test: defaultdict[str, Lines] = defaultdict(lambda: defaultdict(set))
    imported: Lines = defaultdict(set)
    for part in data.parent.glob(f"{data.name}*"):
        measured = CoverageData(str(part))
        try:
            measured.read()
        except DataError:
            continue  # its process was killed while it wrote
        for path in measured.measured_files():
            if not Path(path).is_relative_to(worker.package):
                continue
            file = str(Path(path).relative_to(worker.package))
            for line, contexts in measured.contexts_by_lineno(path).items():
                for context in contexts:
                    test = context.rpartition("|")[2].partition("::")[0]
                    (by_test[test] if test else imported)[file].add(line)
    for lines in by_test.values():
        for file in lines:
            lines[file] |= imported[file]
    return by_test
