"""Bounded runs of many cases: a sample of each file, each case in a process of its own, one line of JSON for each.

Used by `plugin.py`; `table.py` sums the lines up.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import resource
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from _pytest.runner import runtestprotocol

MOST_TOO_LARGE = 3
"""Cases of a file that were too large, one after another, after which its larger cases do not run."""

MEMORY_BYTES = 6 << 30
"""Memory beyond which a case counts as too large."""

TOO_LARGE = "too large"
_NO_MEMORY = ("MemoryError", "can't allocate memory", "Unable to allocate", "bad_alloc", "Cannot allocate")


class Case(NamedTuple):
    """What became of a case.

    Args:
        file: its path below the library's tests.
        case: its name.
        target: what it ran for.
        outcome: passed, failed, skipped or too large.
        reason: the first line of the error, or why it was left out.
        seconds: its duration.
        ranks: ranks of the launch.
    """

    file: str
    case: str
    target: str
    outcome: str
    reason: str
    seconds: float
    ranks: int


def file_of(item: pytest.Item) -> str:
    """Return the file of a case, below the library's tests."""
    return item.nodeid.partition("::")[0].rpartition("nkilib/")[2].removesuffix(".py")


def choose(items: list[pytest.Item], count: int) -> list[pytest.Item]:
    """Return up to a number of cases of each file: chosen by hash, the small ones first, a case of each file in turn."""
    files = defaultdict(list)
    for item in items:
        files[file_of(item)].append(item)
    turns = []
    for chosen in files.values():
        sample = sorted(chosen, key=lambda item: hashlib.sha256(item.nodeid.encode()).digest())[:count]
        turns += enumerate(sorted(sample, key=lambda item: _size(item.name)))
    return [item for _turn, item in sorted(turns, key=lambda turn: turn[0])]


def _size(name: str) -> float:
    """Return about how large a case is: the product of the sizes in its name, as a logarithm."""
    return sum(math.log(int(number)) for number in re.findall(r"\d+", name) if int(number) > 8)


class Cases:
    """The cases of a run and the file of their lines.

    Args:
        path: the file, to which lines are added; cases that it has are not run again.
        target: the target of the run.
        count: the most cases of a file.
        cpu_s: CPU seconds beyond which a case is too large.
    """

    def __init__(self, path: Path, target: str, count: int, cpu_s: int) -> None:
        self._path, self._target, self._count, self._cpu_s = path, target, count, cpu_s
        self._too_large: Counter[str] = Counter()  # cases of each file that were too large, one after another

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Choose the cases and write how many there are."""
        fast = [item for item in items if item.get_closest_marker("fast")]
        left_out = [item for item in fast if item.get_closest_marker("skip")]
        chosen = choose([item for item in fast if item not in set(left_out)], self._count)
        lines = (
            [json.loads(line) for line in self._path.read_text().splitlines()] if self._path.exists() else []
        )
        known = {
            (line["file"], line["case"])
            for line in lines
            if line.get("target") == self._target and "case" in line
        }
        for file in sorted({file_of(item) for item in fast}):
            counts = {
                name: sum(file_of(item) == file for item in group)
                for name, group in (("cases", fast), ("left_out", left_out), ("chosen", chosen))
            }
            self._write({"file": file, "target": self._target, **counts})
        items[:] = [item for item in chosen if (file_of(item), item.name) not in known]

    def pytest_runtest_protocol(self, item: pytest.Item) -> bool:
        """Run a case in a process of its own, which ends when the case is too large; leave out still larger ones."""
        if self._too_large[file_of(item)] == MOST_TOO_LARGE:
            return True
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        started = time.monotonic()
        child = os.fork()
        if not child:
            self._run(item, started)
        _, status, usage = os.wait4(child, 0)
        if not os.WIFEXITED(status):
            is_slow = usage.ru_utime + usage.ru_stime > self._cpu_s - 2
            reason = f"beyond {self._cpu_s} s of CPU" if is_slow else f"status {status}"
            self._record(item, TOO_LARGE, reason, started)
        is_too_large = not os.WIFEXITED(status) or os.WEXITSTATUS(status) > 2
        self._too_large[file_of(item)] = self._too_large[file_of(item)] + 1 if is_too_large else 0
        outcome = "failed" if is_too_large else ("passed", "failed", "skipped")[os.WEXITSTATUS(status)]
        report = pytest.TestReport(item.nodeid, item.location, {}, outcome, None, "call")  # type: ignore[arg-type]
        report.longrepr = ("", 0, "") if outcome == "skipped" else None
        item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _run(self, item: pytest.Item, started: float) -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (self._cpu_s, self._cpu_s + 5))
        in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        most = resource.getrlimit(resource.RLIMIT_AS)[1]
        wanted = in_use + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (wanted if most < 0 else min(wanted, most), most))
        reports = runtestprotocol(item, nextitem=None, log=False)
        ending = next((report for report in reports if report.outcome != "passed"), reports[-1])
        outcome, reason = str(ending.outcome), ""
        if ending.skipped and isinstance(ending.longrepr, tuple):
            reason = ending.longrepr[2]
        elif ending.failed:
            reason = _reason(ending)
            outcome = TOO_LARGE if any(text in reason for text in _NO_MEMORY) else outcome
        self._record(item, outcome, reason, started)
        os._exit({"passed": 0, "failed": 1, "skipped": 2}.get(outcome, 3))

    def _record(self, item: pytest.Item, outcome: str, reason: str, started: float) -> None:
        ranks = next((value for name, value in item.user_properties if name == "ranks"), 1)
        seconds = round(time.monotonic() - started, 1)
        case = Case(file_of(item), item.name, self._target, outcome, reason, seconds, int(str(ranks)))
        self._write(case._asdict())

    def _write(self, line: dict[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _reason(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return (crash.message if crash else str(report.longrepr)).strip()[:400]
