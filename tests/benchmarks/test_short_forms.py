"""Benchmarks still run: the short form of those that take few seconds, and what RESULTS.md has of them."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass

import pytest

from benchmarks.run import BENCHMARKS, RESULTS

LEFT_OUT = {
    "neuron_ls": "installs a script in this environment",
    "customop": "installs a script in this environment, and compiles C++ with torch's headers for 20 s",
    "mlp_steps": "compiles the device guard in directories of its own",
    "native": "compiles the device guard in directories of its own, and starts torch five times",
    "workers": "compiles the device guard in directories of its own, and starts torch three times",
    "hierarchical_sgd": "trains with torch for 6 s",
    "neff": "compiles and packs for 5 s",
    "foreign_traces": "writes and reads a trace for 6 s",
    "anchors": "tests/compiler/engines/test_judgement.py runs it",
    "advice": "tests/compiler/engines/test_judgement.py runs it",
}
"""Benchmarks whose short form takes long or is tested elsewhere."""
NOT_MEASURED_SINCE = {"telemetry", "monitor", "profiles", "snapshot", "cache", "kernels"}
"""Sections of RESULTS.md that are older than the budgets in the code: `make bench` on a computer at rest empties this."""
NEVER_MEASURED = {"neff", "kernels"}
RUN = tuple(name for name in BENCHMARKS if name not in LEFT_OUT)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table, with a `#` for each number of its name: counts are smaller in the short form."""

    name: str
    measured: str
    budget: str


def rows_of(section: str) -> list[Row]:
    cells = [line.split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]
    return [
        Row(re.sub(r"\d[\d,]*", "#", name.lstrip("| ")), value, budget) for name, value, budget, *_ in cells
    ]


@pytest.fixture(scope="module")
def sections() -> dict[str, list[Row]]:
    """The tables of one process that runs the short forms, by benchmark."""
    script = str(RESULTS.with_name("run.py"))
    done = subprocess.run(
        [sys.executable, "-P", script, "--short", *RUN],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    parts = re.split(r"^(\w+) \.\.\.$", done.stdout, flags=re.MULTILINE)[1:]
    return {name: rows_of(text) for name, text in zip(parts[::2], parts[1::2], strict=True)}


def results() -> dict[str, list[Row]]:
    parts = [part.split("\n", 1) for part in RESULTS.read_text().split("\n## ")[1:]]
    return {name: rows_of(text) for name, text in parts}


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("name", RUN)
def test_the_short_form_runs(name: str, sections: dict[str, list[Row]]) -> None:
    assert sections[name]


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("name", RUN)
def test_results_have_the_budgets_of_the_code(name: str, sections: dict[str, list[Row]]) -> None:
    kept = {(row.name, row.budget) for row in results().get(name, ()) if row.budget}
    budgets = {(row.name, row.budget) for row in sections[name] if row.budget}
    assert (kept == budgets) == (name not in NOT_MEASURED_SINCE)


def test_results_have_a_section_of_each_benchmark() -> None:
    assert [*results()] == [name for name in BENCHMARKS if name not in NEVER_MEASURED]
