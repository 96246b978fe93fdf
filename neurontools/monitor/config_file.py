"""Reads a configuration file. What is wrong in it is told with line and key; the rest is still collected."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from neurontools.errors import NeuronToolsError
from neurontools.monitor.config import (
    DEFAULT_PERIOD_S,
    EVERY_TAG,
    MonitorConfig,
    RuntimeMetric,
    RuntimeSelection,
    SystemMetric,
)
from neurontools.monitor.durations import DurationError, seconds
from neurontools.monitor.groups import RuntimeGroup, SystemGroup
from neurontools.monitor.located import Located, parse_located

if TYPE_CHECKING:
    from collections.abc import Iterator

SHORTEST_PERIOD_S = 0.01
LONGEST_PERIOD_S = 86_400.0 * 366

_RENAMED: dict[str, RuntimeGroup | SystemGroup] = {
    "inference_stats": RuntimeGroup.EXECUTION_STATS,
    "hw_counters": SystemGroup.HARDWARE_COUNTERS,
    "nc_counters": RuntimeGroup.NEURONCORE_COUNTERS,
    "runtime_cpu_usage": RuntimeGroup.VCPU_USAGE,
    "cpu_usage": SystemGroup.VCPU_USAGE,
}
_ROOT_KEYS = ("period", "neuron_runtimes", "system_metrics")
_RUNTIME_KEYS = ("tag_filter", "period", "metrics")
_METRIC_KEYS = ("type", "period")

Group = TypeVar("Group", RuntimeGroup, SystemGroup)


class ConfigError(NeuronToolsError):
    """A configuration file cannot be used at all."""


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """Something in a configuration file that is not used as it stands there."""

    line: int
    key: str
    what: str

    def text(self, path: str) -> str:
        """Return it in one line, with the file's name."""
        return f"{path}:{self.line}: {self.key}: {self.what}"


def load_config(path: str) -> tuple[MonitorConfig, tuple[ConfigProblem, ...]]:
    """Read a configuration file.

    Returns:
        What to collect, and what is wrong in the file: such entries are left out.

    Raises:
        ConfigError: the file cannot be read, is no JSON (line and column are named), or no object.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read()
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}", "without -c everything is collected every 5 seconds"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no JSON: not UTF-8 at byte {error.start}") from error
    return parse_config(text, path)


def parse_config(text: str, path: str) -> tuple[MonitorConfig, tuple[ConfigProblem, ...]]:
    """Read the text of a configuration file; as `load_config`."""
    try:
        root = parse_located(text)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{path}:{error.lineno}:{error.colno}: no JSON: {error.msg}", "the rest of the file is not read"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is no JSON: nested too deeply, or a number is too long") from error
    if not isinstance(root.value, Mapping):
        raise ConfigError(
            f"{path}:{root.line}: expected an object", 'e.g. {"period": "1s", "neuron_runtimes": [...]}'
        )
    reader = _ConfigReader()
    return reader.config(root.value), tuple(reader.problems)


class _ConfigReader:
    """Reads the parts and collects what is wrong."""

    def __init__(self) -> None:
        self.problems: list[ConfigProblem] = []

    def config(self, root: Mapping[str, Located]) -> MonitorConfig:
        self._known(root, "", _ROOT_KEYS)
        period_s = self._period(root, "", DEFAULT_PERIOD_S)
        runtimes = (
            self._selection(item, place, period_s)
            for place, item in self._items(root.get("neuron_runtimes"), "neuron_runtimes")
        )
        return MonitorConfig(
            period_s=period_s,
            runtimes=tuple(selection for selection in runtimes if selection is not None),
            system=tuple(
                SystemMetric(group, group_period_s)
                for group, group_period_s in self._metrics(
                    root.get("system_metrics"), "system_metrics", period_s, SystemGroup
                )
            ),
        )

    def _selection(self, item: Located, place: str, period_s: float) -> RuntimeSelection | None:
        entry = self._object(item, place)
        if entry is None:
            return None
        self._known(entry, place, _RUNTIME_KEYS)
        tag_filter = self._filter(entry.get("tag_filter"), f"{place}.tag_filter")
        if "metrics" not in entry:
            self._problem(item, place, "no metrics are named, nothing is collected of these processes")
        metrics = tuple(
            RuntimeMetric(group, group_period_s)
            for group, group_period_s in self._metrics(
                entry.get("metrics"), f"{place}.metrics", self._period(entry, place, period_s), RuntimeGroup
            )
        )
        return None if tag_filter is None else RuntimeSelection(tag_filter, metrics)

    def _filter(self, found: Located | None, place: str) -> re.Pattern[str] | None:
        if found is None or found.value is None:
            return re.compile(EVERY_TAG)
        if not isinstance(found.value, str):
            self._problem(found, place, "expected a regular expression as text; the entry is left out")
            return None
        try:
            return re.compile(found.value)
        except (re.error, RecursionError, OverflowError) as error:
            self._problem(
                found, place, f"no regular expression: {error} ({found.value!r}); the entry is left out"
            )
            return None

    def _metrics(
        self, found: Located | None, place: str, period_s: float, groups: type[Group]
    ) -> Iterator[tuple[Group, float]]:
        seen = set()
        for at, item in self._items(found, place):
            entry = self._object(item, at)
            if entry is None:
                continue
            self._known(entry, at, _METRIC_KEYS)
            group = self._group(entry.get("type"), item, f"{at}.type", groups)
            group_period_s = self._period(entry, at, period_s)
            if group is None:
                continue
            if group in seen:
                self._problem(entry["type"], f"{at}.type", f"{group} is named twice; the first one counts")
                continue
            seen.add(group)
            yield group, group_period_s

    def _group(self, found: Located | None, item: Located, place: str, groups: type[Group]) -> Group | None:
        name = None if found is None else found.value
        if not isinstance(name, str):
            self._problem(found or item, place, "expected the name of a metric group; the entry is left out")
            return None
        known = [group.value for group in groups]
        if name in known:
            return groups(name)
        new: RuntimeGroup | SystemGroup | None = _RENAMED.get(name)
        other = {*RuntimeGroup, *SystemGroup}
        if new is not None and new.value in known:
            self._problem(found or item, place, f"{name!r} is the old name of {new}, which is collected")
            return groups(new)
        if new is not None or name in other:
            right = "neuron_runtimes[].metrics" if place.startswith("system_metrics") else "system_metrics"
            self._problem(found or item, place, f"{new or name} belongs into {right}; the entry is left out")
            return None
        self._problem(
            found or item, place, f"unknown metric group {name!r} (known: {', '.join(known)}); left out"
        )
        return None

    def _period(self, entry: Mapping[str, Located], place: str, default_s: float) -> float:
        found = entry.get("period")
        if found is None or found.value is None:
            return default_s
        at = f"{place}.period" if place else "period"
        why = "expected a duration as text"
        if isinstance(found.value, str):
            try:
                period_s = seconds(found.value)
            except DurationError as error:
                why = f"{error.message}; {error.remedy}"
            else:
                if SHORTEST_PERIOD_S <= period_s <= LONGEST_PERIOD_S:
                    return period_s
                why = f"{found.value!r} is not between {SHORTEST_PERIOD_S * 1000:g}ms and a year"
        self._problem(found, at, f"{why}; {default_s:g}s is used")
        return default_s

    def _items(self, found: Located | None, place: str) -> Iterator[tuple[str, Located]]:
        if found is None or found.value is None:
            return
        if not isinstance(found.value, list):
            self._problem(found, place, "expected a list; left out")
            return
        for index, item in enumerate(found.value):
            yield f"{place}[{index}]", item

    def _object(self, item: Located, place: str) -> Mapping[str, Located] | None:
        if isinstance(item.value, Mapping):
            return item.value
        self._problem(item, place, "expected an object; left out")
        return None

    def _known(self, entry: Mapping[str, Located], place: str, known: tuple[str, ...]) -> None:
        for key, value in entry.items():
            if key not in known:
                at = f"{place}.{key}" if place else key
                self._problem(value, at, f"unknown key (known: {', '.join(known)}); left out")

    def _problem(self, found: Located, key: str, what: str) -> None:
        self.problems.append(ConfigProblem(found.line, key, what))
