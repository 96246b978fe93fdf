"""The recording of a scenario without a machine, as fast as it can be computed: the same bytes for the same seed.

It goes through neuron-monitor's own collector and writer, with the scenario's clock, machine and host instead of real
ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.machine.host import CpuTimes, HostSample
from neurontools.monitor.config import (
    MonitorConfig,
    RuntimeMetric,
    RuntimeSelection,
    SystemMetric,
    default_config,
)
from neurontools.monitor.line import report_line
from neurontools.monitor.report import MemoryInfo
from neurontools.monitor.stream import reports
from neurontools.monitor.vcpus import VcpuSample
from neurontools.scenario.script import Script
from neurontools.scenario.snapshots import Snapshots

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.machine.instances.catalogue import InstanceType
    from neurontools.machine.snapshot import Snapshot
    from neurontools.machine.view import ProcessKey
    from neurontools.scenario.model import HostPlan, Scenario

_SWITCHES_A_CPU_SECOND = 2500


def offline_lines(
    scenario: Scenario, *, machine: str, period_s: float | None = None, duration_s: float | None = None
) -> Iterator[str]:
    """Yield the lines that neuron-monitor would print if the scenario were played, without their newlines.

    Args:
        scenario: what happens.
        machine: the machine's name.
        period_s: seconds between two lines, None for neuron-monitor's own default.
        duration_s: scenario seconds; None: the scenario's own.
    """
    clock = _Clock()
    script = Script(scenario)
    end_s = min(scenario.duration_s, scenario.duration_s if duration_s is None else duration_s)
    source = _Source(Snapshots(script, machine), clock)
    host = _Host(scenario.host, script.instance, clock)
    for report in reports(monitor_config(period_s), source, host, clock=clock.read, sleep=clock.advance):
        if clock.time_s > end_s or clock.time_s >= scenario.duration_s:
            return  # when it is over, nobody is there any more
        yield report_line(report)


def monitor_config(period_s: float | None) -> MonitorConfig:
    """Return neuron-monitor's own configuration with another period for everything, None for its own."""
    usual = default_config()
    if period_s is None:
        return usual
    return MonitorConfig(
        period_s,
        tuple(
            RuntimeSelection(
                selection.tag_filter,
                tuple(RuntimeMetric(metric.group, period_s) for metric in selection.metrics),
            )
            for selection in usual.runtimes
        ),
        tuple(SystemMetric(metric.group, period_s) for metric in usual.system),
    )


class _Clock:
    """Time that passes only when somebody waits."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def read(self) -> float:
        return self.time_s

    def advance(self, seconds: float) -> None:
        self.time_s += seconds


class _Source:
    """The scenario's machine now."""

    def __init__(self, snapshots: Snapshots, clock: _Clock) -> None:
        self._snapshots = snapshots
        self._clock = clock

    def snapshot(self) -> Snapshot:
        return self._snapshots.at(self._clock.time_s)

    def close(self) -> None:
        """Nothing is held."""


class _Host:
    """The scenario's host: every vCPU does the same share of the work."""

    def __init__(self, plan: HostPlan, instance: InstanceType, clock: _Clock) -> None:
        self._plan = plan
        self._instance = instance
        self._clock = clock

    def now_ns(self) -> int:
        return round(self._clock.time_s * 1e9)

    def vcpus(self) -> VcpuSample:
        time_s = self._clock.time_s
        user_s = self._plan.cpu_user.integral(time_s) / 100
        system_s = self._plan.cpu_system.integral(time_s) / 100
        idle_s = max(0.0, time_s - user_s - system_s)
        count = self._instance.vcpus
        switches = int((user_s + system_s) * count * _SWITCHES_A_CPU_SECOND)
        return VcpuSample(
            self.now_ns(), ((user_s, 0.0, system_s, idle_s, 0.0, 0.0, 0.0, 0.0),) * count, switches
        )

    def processes(self, _keys: list[ProcessKey]) -> HostSample:
        return HostSample(self._clock.time_s * self._instance.vcpus, CpuTimes(0.0, 0.0), ())

    def memory(self, period_s: float) -> MemoryInfo:
        used = int(self._plan.memory.value(self._clock.time_s))
        return MemoryInfo(
            period_s=period_s, memory_total_bytes=self._instance.host_memory_bytes, memory_used_bytes=used
        )
