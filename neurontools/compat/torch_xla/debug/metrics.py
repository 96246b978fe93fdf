"""torch_xla.debug.metrics (`met`): counters and timings of the lazy device."""

from __future__ import annotations

from neurontools.compat.unsupported import missing_names
from neurontools.xla.debugging.metrics import (
    clear_all,
    clear_counters,
    clear_metrics,
    counter_names,
    counter_value,
    executed_fallback_ops,
    metric_data,
    metric_names,
    metrics_report,
    short_metrics_report,
)

__all__ = [
    "clear_all",
    "clear_counters",
    "clear_metrics",
    "counter_names",
    "counter_value",
    "executed_fallback_ops",
    "metric_data",
    "metric_names",
    "metrics_report",
    "short_metrics_report",
]


__getattr__ = missing_names(__name__)
