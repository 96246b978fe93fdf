"""neuron-monitor's configuration: metric groups, periods and processes, and the file that holds them.

Mistakes in a file are reported with line and key; the rest is still collected. Source: AWS Neuron documentation,
neuron-monitor user guide.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from neurontools.base.files import read_input
from neurontools.base.text import shorten
from neurontools.config.reader import MAPPING, TEXT, FormatError, MismatchError, in_order, read_json
from neurontools.config.types import Type
from neurontools.errors import NeuronToolsError
from neurontools.monitor.report import RuntimeGroup, SystemGroup

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neurontools.config.reader import Problem, Section, Value

DEFAULT_PERIOD_S = 5.0
EVERY_TAG = ".*"

Group = TypeVar("Group", RuntimeGroup, SystemGroup)

SHORTEST_PERIOD_S = 0.01
LONGEST_PERIOD_S = 86_400.0 * 366

_RENAMED: dict[str, RuntimeGroup | SystemGroup] = {
    "inference_stats": RuntimeGroup.EXECUTION_STATS,
    "hw_counters": SystemGroup.HARDWARE_COUNTERS,
    "nc_counters": RuntimeGroup.NEURONCORE_COUNTERS,
    "runtime_cpu_usage": RuntimeGroup.VCPU_USAGE,
    "cpu_usage": SystemGroup.VCPU_USAGE,
}
_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_SHOWN = 40

_LEFT_OUT = "the entry is left out"


@dataclass(frozen=True, slots=True)
class MetricPeriod(Generic[Group]):
    """A group of metrics and how often it is collected."""

    group: Group
    period_s: float


@dataclass(frozen=True, slots=True)
class RuntimeSelection:
    """Metrics of the processes whose tag matches `tag_filter`, a regular expression, anywhere."""

    tag_filter: re.Pattern[str]
    metrics: tuple[MetricPeriod[RuntimeGroup], ...]


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
    system: tuple[MetricPeriod[SystemGroup], ...] = ()

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
    """Return the default: every group of every process and of the host, every 5 seconds."""
    metrics = tuple(MetricPeriod(group, DEFAULT_PERIOD_S) for group in RuntimeGroup)
    return MonitorConfig(
        period_s=DEFAULT_PERIOD_S,
        runtimes=(RuntimeSelection(re.compile(EVERY_TAG), metrics),),
        system=tuple(MetricPeriod(group, DEFAULT_PERIOD_S) for group in SystemGroup),
    )


class ConfigError(NeuronToolsError):
    """A configuration file cannot be used at all."""


def load_config(path: str) -> tuple[MonitorConfig, tuple[Problem, ...]]:
    """Read a configuration file.

    Returns:
        What to collect, and the mistakes in the file; wrong entries are left out.

    Raises:
        ConfigError: the file cannot be read, or is not a JSON object.
    """
    content = read_input(path, ConfigError, "without -c everything is collected every 5 seconds")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not JSON: not UTF-8 at byte {error.start}") from error
    return parse_config(text, path)


def parse_config(text: str, path: str) -> tuple[MonitorConfig, tuple[Problem, ...]]:
    """Read the text of a configuration file; as `load_config`."""
    try:
        root = read_json(text)
    except FormatError as error:
        where = f"{path}:{error.problem.line}:{error.column}" if error.column else path
        raise ConfigError(f"{where}: {error.problem.message}", "write a JSON object") from error
    if root.kind != MAPPING:
        raise ConfigError(
            f"{path}:{root.line}: expected an object", 'e.g. {"period": "1s", "neuron_runtimes": [...]}'
        )
    section = root.section()
    period_s = _read_period(section, DEFAULT_PERIOD_S)
    selections = (_read_selection(item, period_s) for item in section.items("neuron_runtimes"))
    config = MonitorConfig(
        period_s=period_s,
        runtimes=tuple(selection for selection in selections if selection is not None),
        system=tuple(_read_metrics(section, "system_metrics", period_s, SystemGroup)),
    )
    section.finish()
    return config, in_order(root.problems)


def _read_selection(item: Value, period_s: float) -> RuntimeSelection | None:
    entry = item.section("an object")
    if item.kind != MAPPING:
        return None
    if not entry.has("metrics"):
        item.fail("no metrics listed", "nothing is collected for these processes")
    value = entry.get("tag_filter")
    tag_filter = re.compile(EVERY_TAG) if value is None else value.read(_TAG_FILTER, None)
    metrics = tuple(_read_metrics(entry, "metrics", _read_period(entry, period_s), RuntimeGroup))
    entry.finish()
    return None if tag_filter is None else RuntimeSelection(tag_filter, metrics)


def _read_metrics(
    section: Section, name: str, period_s: float, groups: type[Group]
) -> Iterator[MetricPeriod[Group]]:
    seen = set()
    for item in section.items(name):
        entry = item.section("an object")
        if item.kind != MAPPING:
            continue
        group = _read_group(entry, groups)
        group_period_s = _read_period(entry, period_s)
        entry.finish()
        if group in seen:
            entry.fail("type", f"{group} is listed twice", "the first entry is used")
        elif group is not None:
            seen.add(group)
            yield MetricPeriod(group, group_period_s)


def _read_group(entry: Section, groups: type[Group]) -> Group | None:
    value = entry.need("type")
    if value is None or value.kind != TEXT:
        if value is not None:
            value.fail_expected("the name of a metric group")
        return None
    name = value.text
    known = [group.value for group in groups]
    if name in known:
        return groups(name)
    renamed: RuntimeGroup | SystemGroup | None = _RENAMED.get(name)
    if renamed is not None and renamed.value in known:
        value.fail(f"{name!r} is the old name of {renamed}, which is collected")
        return groups(renamed)
    if renamed is not None or name in {*RuntimeGroup, *SystemGroup}:
        section = "neuron_runtimes[].metrics" if entry.value.key.startswith("system") else "system_metrics"
        value.fail(f"{renamed or name} belongs in {section}", _LEFT_OUT)
    else:
        value.fail(f"unknown metric group {name!r} (known: {', '.join(known)})", _LEFT_OUT)
    return None


def _read_period(section: Section, default_s: float) -> float:
    kind = Type("a duration as a string", partial(_parse_period, default_s=default_s), default_s)
    return section.read("period", kind, default_s)


def _parse_period(value: Value, *, default_s: float) -> float:
    default = f"{default_s:g}s is used"
    if value.kind != TEXT:
        raise MismatchError(f"expected a duration as a string, found {value.describe()}", default)
    try:
        period_s = parse_go_duration(value.text)
    except DurationError as error:
        raise MismatchError(f"{error.message}; {error.remedy}", default) from error
    if not SHORTEST_PERIOD_S <= period_s <= LONGEST_PERIOD_S:
        raise MismatchError(
            f"{shorten(value.text, _SHOWN)!r} is not between {SHORTEST_PERIOD_S * 1000:g}ms and a year",
            default,
        )
    return period_s


def _parse_tag_filter(value: Value) -> re.Pattern[str]:
    if value.kind != TEXT:
        raise ValueError
    try:
        return re.compile(value.text)
    except (re.error, RecursionError, OverflowError) as error:
        raise MismatchError(
            f"invalid regular expression: {error} ({shorten(value.text, _SHOWN)!r})", _LEFT_OUT
        ) from error


class DurationError(NeuronToolsError):
    """A text is not a duration."""


def parse_go_duration(text: str) -> float:
    """Return the seconds of a duration as Go writes it: `1s`, `500ms`, `1m30s`, `1.5h`.

    Raises:
        DurationError: it is not a duration.
    """
    digits = text[1:] if text[:1] in {"+", "-"} else text
    sign = -1.0 if text[:1] == "-" else 1.0
    if digits == "0":
        return 0.0
    total = 0.0
    end = 0
    while part := _PART.match(digits, end):
        total += float(part[1]) * _UNITS_S[part[2]]
        end = part.end()
    if end != len(digits) or not digits:
        raise DurationError(
            f"invalid duration {shorten(text, _SHOWN)!r}",
            'use a number with a unit, e.g. "1s", "500ms", "1m30s"',
        )
    return sign * total


_TAG_FILTER = Type("a regular expression as a string", _parse_tag_filter, re.compile(EVERY_TAG))
