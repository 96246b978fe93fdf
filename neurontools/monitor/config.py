"""neuron-monitor's configuration: metric groups, periods and processes.

Source: AWS Neuron documentation, neuron-monitor user guide.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.monitor.report import RuntimeGroup, SystemGroup

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_PERIOD_S = 5.0
EVERY_TAG = ".*"


@dataclass(frozen=True, slots=True)
class RuntimeMetric:
    """A group of processes' metrics and how often it is collected."""

    group: RuntimeGroup
    period_s: float


@dataclass(frozen=True, slots=True)
class SystemMetric:
    """A group of the host's metrics and how often it is collected."""

    group: SystemGroup
    period_s: float


@dataclass(frozen=True, slots=True)
class RuntimeSelection:
    """What is collected of the processes whose tag `tag_filter`, a regular expression, finds something in."""

    tag_filter: re.Pattern[str]
    metrics: tuple[RuntimeMetric, ...]


@dataclass(frozen=True, slots=True)
class MetricKey:
    """One thing that is collected at a time of its own.

    `selection` is the index of the runtime selection, None for groups of the host.
    """

    selection: int | None
    group: RuntimeGroup | SystemGroup


@dataclass(frozen=True, slots=True)
class MonitorConfig:
    """A whole configuration. `period_s` is that of the file's root."""

    period_s: float = DEFAULT_PERIOD_S
    runtimes: tuple[RuntimeSelection, ...] = ()
    system: tuple[SystemMetric, ...] = ()

    def periods(self) -> dict[MetricKey, float]:
        """Return the period in seconds of everything that is collected."""
        return dict(self._periods())

    def _periods(self) -> Iterator[tuple[MetricKey, float]]:
        for index, selection in enumerate(self.runtimes):
            for metric in selection.metrics:
                yield MetricKey(index, metric.group), metric.period_s
        for system_metric in self.system:
            yield MetricKey(None, system_metric.group), system_metric.period_s


def default_config() -> MonitorConfig:
    """Return what is collected without a file: every group of every process and of the host, every 5 seconds."""
    metrics = tuple(RuntimeMetric(group, DEFAULT_PERIOD_S) for group in RuntimeGroup)
    return MonitorConfig(
        period_s=DEFAULT_PERIOD_S,
        runtimes=(RuntimeSelection(re.compile(EVERY_TAG), metrics),),
        system=tuple(SystemMetric(group, DEFAULT_PERIOD_S) for group in SystemGroup),
    )
