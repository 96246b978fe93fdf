"""The endless series of reports: waits until something is due, asks the machine once, reports what was due."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Generic, TypeVar

from neurontools.monitor.collector import Collector
from neurontools.monitor.config import MetricKey
from neurontools.monitor.host_reader import PsutilHost
from neurontools.monitor.report import SystemGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

    from neurontools.machine.snapshot import Snapshot
    from neurontools.monitor.config import MonitorConfig
    from neurontools.monitor.host_reader import HostReader
    from neurontools.monitor.report import MonitorReport

Key = TypeVar("Key", bound="Hashable")

FIRST_INTERVAL_S = 0.05
"""What the rates of the first report cover at least."""

# A captured first line has memory_info alone of the host's groups: these begin with the second line.
_NOT_AT_FIRST = frozenset({SystemGroup.VCPU_USAGE, SystemGroup.HARDWARE_COUNTERS})
# The host that a recording was made on is not this one.
_OF_THIS_HOST = frozenset({SystemGroup.VCPU_USAGE, SystemGroup.MEMORY_INFO})
_LINE = MetricKey(None, SystemGroup.MEMORY_INFO)

# Things whose times differ by less are collected together, so that 0.1 s and 0.3 s share a line each third time.
_TOGETHER_S = 0.005


class SamplingSchedule(Generic[Key]):
    """Things that are due at whole multiples of their periods; what was missed is not made up for.

    Args:
        periods: seconds, by thing.
        start_s: when everything is due for the first time.
    """

    def __init__(self, periods: Mapping[Key, float], start_s: float) -> None:
        self._start_s = start_s
        self._periods = dict(periods)
        self._turns = dict.fromkeys(periods, 0)

    def next_s(self) -> float:
        """Return when something is due next; infinite for an empty schedule."""
        return min(map(self._due_s, self._periods), default=float("inf"))

    def take(self, now_s: float) -> frozenset[Key]:
        """Return what is due now, which is then due again at its next multiple in the future."""
        due = frozenset(key for key in self._periods if self._due_s(key) <= now_s + _TOGETHER_S)
        for key in due:
            passed = int((now_s + _TOGETHER_S - self._start_s) / self._periods[key])
            self._turns[key] = max(passed, self._turns[key]) + 1
        return due

    def _due_s(self, key: Key) -> float:
        return self._start_s + self._turns[key] * self._periods[key]


def reports(
    config: MonitorConfig,
    take_snapshot: Callable[[], Snapshot],
    reader: HostReader | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[MonitorReport]:
    """Yield the first report at once and then one whenever something is due; never ends by itself.

    Args:
        config: what to collect, and how often. With no group at all a report comes every root period.
        take_snapshot: returns the machine now.
        reader: what reads the host.
        clock: monotonic seconds.
        sleep: waits for some seconds.
    """
    host = reader or PsutilHost()
    started_ns, started_s = host.now_ns(), clock()
    collector = Collector(config, take_snapshot(), host, started_ns)
    # Without any group the report still comes, with the facts of instance and hardware.
    periods = config.periods() or {_LINE: config.period_s}
    wanted = config.periods().keys()
    schedule = SamplingSchedule(periods, started_s)
    sleep(max(0.0, started_s + FIRST_INTERVAL_S - clock()))
    due = frozenset(key for key in schedule.take(started_s) if key.group not in _NOT_AT_FIRST)
    snapshot = take_snapshot()
    while True:
        yield collector.collect(due & wanted, snapshot)
        sleep(max(0.0, schedule.next_s() - clock()))
        snapshot = take_snapshot()
        due = schedule.take(clock())  # after the snapshot, which may have had to wait for its machine


def recorded_reports(
    config: MonitorConfig, snapshots: Iterable[Snapshot], reader: HostReader | None = None
) -> Iterator[MonitorReport]:
    """Yield a report for each snapshot of a recording, over the time since the one before.

    vCPUs and memory of this host are left out; the first report's rates are zero.
    """
    host = reader or PsutilHost()
    keys = frozenset(key for key in config.periods() if key.group not in _OF_THIS_HOST)
    collector = None
    for snapshot in snapshots:
        if collector is None:
            collector = Collector(config, snapshot, host)
        yield collector.collect(keys, snapshot)
