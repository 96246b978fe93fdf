"""A pytest plugin: coverage by test file, and the seconds and failing tests of each, written to MUTATION_OUTCOMES."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from coverage import Coverage

if TYPE_CHECKING:
    from collections.abc import Generator

_seconds: defaultdict[str, float] = defaultdict(float)
_failing: defaultdict[str, set[str]] = defaultdict(set)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Attribute the lines that this process executes; processes that the test starts name it themselves."""
    measured = Coverage.current()
    if measured is not None:
        measured.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        if measured is not None:
            measured.switch_context("")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up the parts of each test."""
    name = report.nodeid.partition("::")[0]
    _seconds[name] += report.duration
    if report.failed:
        _failing[name].add(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the sums, in the process that gets the reports of all workers."""
    if not hasattr(session.config, "workerinput"):
        outcomes = {name: (seconds, sorted(_failing[name])) for name, seconds in _seconds.items()}
        Path(os.environ["MUTATION_OUTCOMES"]).write_text(json.dumps(outcomes), encoding="utf-8")
