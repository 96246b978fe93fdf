"""torch_xla.debug.profiler (`xp`): names for parts of a program, which torch.profiler shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch

from neurontools.compat.profiling import start_trace, stop_trace
from neurontools.compat.unsupported import missing_names
from neurontools.runtime.host_activity import HostEvent, observers
from neurontools.xla import api
from neurontools.xla.debugging import metrics
from neurontools.xla.host_events import Observed

__all__ = ["StepTrace", "Trace", "start_trace", "stop_trace", "trace_me"]


__getattr__ = missing_names(__name__)


class Trace(torch.profiler.record_function):  # type: ignore[misc]
    """A named block, for torch.profiler."""

    def __init__(self, name: str, **kwargs: Any) -> None:
        details = ",".join(f"{key}={value}" for key, value in kwargs.items())
        super().__init__(f"{name}#{details}#" if details else name)
        self._region = name
        self._event: Observed | None = None

    def __enter__(self) -> Self:
        if observers:
            self._event = Observed(HostEvent.REGION, self._region)
        super().__enter__()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        super().__exit__(kind, error, traceback)
        if self._event is not None:
            self._event.__exit__()


class StepTrace(Trace):
    """A named training step: `step_num` is its number. Ends with the pending graph, unless the block ran one."""

    def __init__(self, name: str, **kwargs: Any) -> None:
        super().__init__(name, **kwargs)
        self._steps = 0

    def __enter__(self) -> Self:
        self._steps = metrics.counter_value("MarkStep") or 0
        super().__enter__()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if kind is None and (metrics.counter_value("MarkStep") or 0) == self._steps:
            api.mark_step()
        super().__exit__(kind, error, traceback)


def trace_me(scope: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that makes each call of a function a named block."""
    decorator: Callable[[Callable[..., Any]], Callable[..., Any]] = torch.profiler.record_function(scope)
    return decorator
