"""Counters and timings of the lazy device, reported in the text form of torch_xla.debug.metrics."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from neurontools import env
from neurontools.errors import UsageError
from neurontools.xla.distributed import workers

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

_SAMPLES = 1024
_SHORT_COUNTERS = ("CachedCompile", "MarkStep", "DynamoSyncInputExecuteTime")
_SHORT_METRICS = (
    "CompileTime",
    "ExecuteTime",
    "ExecuteReplicatedTime",
    "TransferToDeviceTime",
    "TransferFromDeviceTime",
)
_PERCENTILES = (1, 5, 10, 20, 50, 80, 90, 95, 99)
_saved = itertools.count()
_counters: dict[str, int] = {}
_metrics: dict[str, Metric] = {}
_sources: list[Callable[[], dict[str, int]]] = []


@dataclass(slots=True)
class Metric:
    """A series of samples. `samples` holds (monotonic ns, value) of the last 1024; `unit` is "ns", "B" or ""."""

    unit: str
    total_samples: int = 0
    accumulator: float = 0.0
    samples: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_SAMPLES))


def count(name: str, by: int = 1) -> None:
    """Add to a counter."""
    _counters[name] = _counters.get(name, 0) + by


def sample(name: str, value: float, unit: str = "ns") -> None:
    """Add a sample to a metric."""
    metric = _metrics.get(name)
    if metric is None:
        metric = _metrics[name] = Metric(unit)
    metric.total_samples += 1
    metric.accumulator += value
    metric.samples.append((time.monotonic_ns(), value))


def add_source(read: Callable[[], dict[str, int]]) -> None:
    """Add a function that returns counters, for places where `count` is too slow."""
    _sources.append(read)


def counters() -> dict[str, int]:
    """Return every counter that is not zero."""
    found = dict(_counters)
    for read in _sources:
        for name, value in read().items():
            found[name] = found.get(name, 0) + value
    return {name: value for name, value in sorted(found.items()) if value}


def metrics() -> dict[str, Metric]:
    """Return every metric by name."""
    return dict(sorted(_metrics.items()))


def clear_all() -> None:
    """Forget all samples and set every counter to zero."""
    clear_counters()
    clear_metrics()


def clear_counters() -> None:
    """Set every counter to zero."""
    for read in _sources:
        for name, value in read().items():
            _counters[name] = -value
    for name in set(_counters) - {name for read in _sources for name in read()}:
        del _counters[name]


def clear_metrics() -> None:
    """Forget all samples."""
    _metrics.clear()


def metrics_report(
    metric_names: Container[str] | None = None, counter_names: Container[str] | None = None
) -> str:
    """Return the text of torch_xla.debug.metrics.metrics_report(), of all metrics and counters or of the named ones."""
    blocks = [
        _metric_block(name, metric)
        for name, metric in metrics().items()
        if metric_names is None or name in metric_names
    ]
    blocks += [
        f"Counter: {name}\n  Value: {value}\n"
        for name, value in counters().items()
        if counter_names is None or name in counter_names
    ]
    return "".join(blocks)


def counter_names() -> list[str]:
    """Return the names of the counters."""
    return list(counters())


def counter_value(name: str) -> int | None:
    """Return a counter, None when it has not counted yet."""
    return counters().get(name)


def metric_names() -> list[str]:
    """Return the names of the metrics."""
    return list(metrics())


def metric_data(name: str) -> tuple[int, float, tuple[tuple[float, float], ...]] | None:
    """Return a metric as torch_xla does: number of samples, their sum, and (time, value) of the last ones.

    Times are in seconds, values in nanoseconds or in the metric's own unit.
    """
    metric = metrics().get(name)
    if metric is None:
        return None
    return (
        metric.total_samples,
        metric.accumulator,
        tuple((at_ns / 1e9, value) for at_ns, value in metric.samples),
    )


def short_metrics_report(
    counter_names: Sequence[str] | None = None, metric_names: Sequence[str] | None = None
) -> str:
    """Return the named counters and metrics as text; by default those that tell how a training loop runs."""
    return metrics_report(
        frozenset(metric_names or _SHORT_METRICS), frozenset(counter_names or _SHORT_COUNTERS)
    )


def executed_fallback_ops() -> list[str]:
    """Return the operators that ran on the CPU because the device does not have them, such as aten::nonzero."""
    return [name for name in counters() if name.startswith("aten::")]


def append_to_file() -> None:
    """Append the report to the file that XLA_METRICS_FILE names; STDERR and STDOUT name the streams.

    Only the first process of the machine writes; in a run of several processes, the file's name ends with its number.
    """
    if not env.is_set(b"XLA_METRICS_FILE"):
        return
    path = os.environ["XLA_METRICS_FILE"]
    if not path or workers.local_rank():
        return
    text = f"[MetricsData; step={next(_saved)}]\n{metrics_report()}\n"
    stream = {"STDERR": sys.stderr, "STDOUT": sys.stdout}.get(path)
    if stream is not None:
        stream.write(f"{text}\n")
        return
    if workers.world_size() > 1:
        path += ".0"
    append_text("XLA_METRICS_FILE", path, text)


def duration_text(nanoseconds: float) -> str:
    """Return a duration as torch_xla writes it, such as 09s969ms486.408us."""
    microseconds = nanoseconds / 1e3
    parts: list[str] = []
    for factor, suffix, width in ((86_400e6, "d", 2), (3_600e6, "h", 2), (60e6, "m", 2), (1e6, "s", 2)):
        whole, microseconds = divmod(microseconds, factor)
        if whole or parts:
            parts.append(f"{int(whole):0{width}}{suffix}")
    whole, microseconds = divmod(microseconds, 1e3)
    if whole or parts:
        parts.append(f"{int(whole):03}ms")
    return "".join(parts) + f"{microseconds:07.3f}us"


def _metric_block(name: str, metric: Metric) -> str:
    lines = [
        f"Metric: {name}",
        f"  TotalSamples: {metric.total_samples}",
        f"  Accumulator: {_value_text(metric.accumulator, metric.unit)}",
    ]
    held = list(metric.samples)
    span_s = (held[-1][0] - held[0][0]) / 1e9
    if span_s > 0:
        rate = sum(value for _, value in held) / span_s
        lines.append(f"  ValueRate: {_value_text(rate, metric.unit)} / second")
        lines.append(f"  Rate: {len(held) / span_s:.6g} / second")
    ordered = sorted(value for _, value in held)
    shares = (
        f"{percent}%={_value_text(ordered[len(ordered) * percent // 100], metric.unit)}"
        for percent in _PERCENTILES
    )
    lines.append("  Percentiles: " + "; ".join(shares))
    return "\n".join(lines) + "\n"


def _value_text(value: float, unit: str) -> str:
    if unit == "ns":
        return duration_text(value)
    if unit == "B":
        return _bytes_text(value)
    return f"{value:.2f}"


def _bytes_text(value: float) -> str:
    """Return a number of bytes as torch_xla writes it, such as 2.29KB: units of 1024."""
    for suffix in ("B", "KB", "MB", "GB", "TB"):
        if value < 1024:
            return f"{value:.2f}{suffix}"
        value /= 1024
    return f"{value:.2f}PB"


def append_text(variable: str, path: str, text: str) -> None:
    """Append text to the file that a variable names.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(
            f"cannot write {path} ({variable}): {error.strerror}",
            f"set {variable} to a file that can be written",
        ) from error
