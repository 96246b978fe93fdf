"""The endless series of reports: waits until something is due, asks the machine once, reports what was due."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from neurontools.monitor.collect import Collector
from neurontools.monitor.config import MetricKey
from neurontools.monitor.groups import SystemGroup
from neurontools.monitor.schedule import Schedule
from neurontools.monitor.vcpus import PsutilHost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from neurontools.machine.snapshot import Snapshot
    from neurontools.monitor.config import MonitorConfig
    from neurontools.monitor.patience import SnapshotSource
    from neurontools.monitor.report import MonitorReport
    from neurontools.monitor.vcpus import HostReader

FIRST_INTERVAL_S = 0.05
"""What the rates of the first report cover at least."""

# A captured first line has memory_info alone of the host's groups: these begin with the second line.
_NOT_AT_FIRST = frozenset({SystemGroup.VCPU_USAGE, SystemGroup.HARDWARE_COUNTERS})
# The host that a recording was made on is not this one.
_OF_THIS_HOST = frozenset({SystemGroup.VCPU_USAGE, SystemGroup.MEMORY_INFO})
_LINE = MetricKey(None, SystemGroup.MEMORY_INFO)


def reports(
    config: MonitorConfig,
    source: SnapshotSource,
    reader: HostReader | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[MonitorReport]:
    """Yield the first report at once and then one whenever something is due; ends only when the source does.

    Args:
        config: what to collect, and how often. With no group at all a report comes every root period.
        source: the machine.
        reader: what reads the host.
        clock: monotonic seconds.
        sleep: waits for some seconds.
    """
    host = reader or PsutilHost()
    started_ns, started_s = host.now_ns(), clock()
    collector = Collector(config, source.snapshot(), host, started_ns)
    # Without any group the report still comes, with the facts of instance and hardware.
    periods = config.periods() or {_LINE: config.period_s}
    wanted = config.periods().keys()
    schedule = Schedule(periods, started_s)
    sleep(max(0.0, started_s + FIRST_INTERVAL_S - clock()))
    due = frozenset(key for key in schedule.take(started_s) if key.group not in _NOT_AT_FIRST)
    snapshot = source.snapshot()
    while True:
        yield collector.collect(due & wanted, snapshot)
        sleep(max(0.0, schedule.next_s() - clock()))
        snapshot = source.snapshot()
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
