"""Custom operators in a monitor's lines and metrics: there where they ran, and nowhere else."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from neurontools.monitor.codec import format_line, parse_line
from neurontools.monitor.collector import Collector
from neurontools.monitor.config import default_config
from neurontools.monitor.exporter import Exporter
from tests.monitor.conftest import FixedHost, job, machine_at

if TYPE_CHECKING:
    from neurontools.machine.snapshot import ProcessState
    from neurontools.monitor.report import MonitorReport

KEY = b"gpsimd_modelled_seconds"


def with_gpsimd(process: ProcessState, gpsimd_ns: int) -> ProcessState:
    first, *others = process.cores
    return replace(process, cores=(replace(first, gpsimd_ns=gpsimd_ns), *others))


def report_of(before_ns: int, after_ns: int) -> MonitorReport:
    begin, end = (with_gpsimd(job(cores=(0, 1), busy_s=1), ns) for ns in (before_ns, after_ns))
    host = FixedHost()
    collector = Collector(default_config(), machine_at(10, begin), host)
    host.now += 4
    return collector.collect(default_config().periods().keys(), machine_at(14, end))


def text_of(report: MonitorReport) -> bytes:
    line = format_line(report)
    return line if isinstance(line, bytes) else line.encode()


def test_a_core_tells_the_modelled_seconds_of_the_period() -> None:
    report = report_of(500_000_000, 2_000_000_000)
    (entry,) = report.runtimes
    assert entry.neuroncore_counters is not None
    cores = dict(entry.neuroncore_counters.cores)
    assert (cores[0].gpsimd_s, cores[1].gpsimd_s) == (1.5, 0.0)
    line = text_of(report)
    assert line.count(KEY) == 1
    (read,) = parse_line(line).runtimes
    assert read.neuroncore_counters == entry.neuroncore_counters


@pytest.mark.parametrize(("before", "after"), [(0, 0), (7, 7), (9, 4)])
def test_a_line_without_custom_operators_is_as_the_real_tool_writes_it(before: int, after: int) -> None:
    assert KEY not in text_of(report_of(before, after))


def test_the_metric_adds_up_the_periods_and_ends_with_the_process() -> None:
    now = [0.0]
    exporter = Exporter(lambda problem: None, clock=lambda: now[0])
    totals = []
    for spent in (1_000_000_000, 0, 500_000_000):
        now[0] += 5
        exporter.update(report_of(0, spent))
        totals.append(_totals(exporter))
    assert totals == [[1.0], [1.0], [1.5]]
    now[0] += 5
    exporter.update(dataclasses.replace(report_of(0, 0), runtimes=()))
    assert _totals(exporter) == []


def _totals(exporter: Exporter) -> list[float]:
    return [
        sample.value
        for metric in exporter.collect()
        for sample in metric.samples
        if sample.name == "neuroncore_gpsimd_modelled_seconds_total"
    ]
