"""When each line of a recording was written, from the periods in it: neuron-monitor's lines carry no time of day.

The period of a group is the time since that group was collected last, so a line's time is that of the last line with
the same group plus the period. This holds for groups with different periods too.
"""

from __future__ import annotations

from typing import Any

# neuron-monitor's default (system-tools.md section 3.2), for lines that tell no period at all.
_USUAL_S = 5.0
_LONGEST_S = 24 * 3600.0


class Pacer:
    """Tells the times of lines, one after the other."""

    def __init__(self) -> None:
        self._collected: dict[tuple[object, str], float] = {}
        self._time_s = 0.0
        self._interval_s = _USUAL_S
        self._first = True

    @property
    def interval_s(self) -> float:
        """The seconds between the last two lines."""
        return self._interval_s

    def time_s(self, report: dict[str, Any]) -> float:
        """Return when a line was written, in seconds after the first one.

        Args:
            report: the line's JSON value.
        """
        periods = _periods(report)
        if self._first:
            self._first = False
        else:
            self._advance(periods)
        for key in periods:
            self._collected[key] = self._time_s
        return self._time_s

    def _advance(self, periods: dict[tuple[object, str], float]) -> None:
        times = [self._collected[key] + period for key, period in periods.items() if key in self._collected]
        later = [time_s for time_s in times if time_s > self._time_s]
        if later:
            # Groups of the host outlive those of processes; of equals the greatest keeps the order of lines.
            self._interval_s = max(later) - self._time_s
        elif periods:
            self._interval_s = min(periods.values())
        self._time_s += min(self._interval_s, _LONGEST_S)


def _periods(report: dict[str, Any]) -> dict[tuple[object, str], float]:
    found: dict[tuple[object, str], float] = {}
    _collect(found, "system", report.get("system_data"))
    runtimes = report.get("neuron_runtime_data")
    for runtime in runtimes if isinstance(runtimes, list) else []:
        if isinstance(runtime, dict):
            _collect(found, runtime.get("pid"), runtime.get("report"))
    return found


def _collect(found: dict[tuple[object, str], float], who: object, groups: object) -> None:
    for name, group in groups.items() if isinstance(groups, dict) else ():
        period = group.get("period") if isinstance(group, dict) else None
        if isinstance(period, int | float) and 0 < period <= _LONGEST_S and isinstance(who, int | str | None):
            found[who, name] = float(period)
