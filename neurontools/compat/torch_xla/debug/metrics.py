"""torch_xla.debug.metrics (`met`): counters and timings of the lazy device."""

from __future__ import annotations

from neurontools.xla.api import counter_names, counter_value, metric_data, metric_names, metrics_report

__all__ = ["counter_names", "counter_value", "metric_data", "metric_names", "metrics_report"]
