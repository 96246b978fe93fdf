"""Runs of an operator for a bench: one with memory accesses counted, one per number of cores, timed ones."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neurontools.customop import abi, cost
from neurontools.customop.backtrace import user_location
from neurontools.customop.bench.report import AccessSite, Measured, Way
from neurontools.customop.calls import new_request
from neurontools.customop.marshalling import execute
from neurontools.customop.torch_operators import Caller

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.customop.calls import CoreWork, Executor
    from neurontools.customop.operation import CustomOperator
    from neurontools.customop.package import Package

_SECONDS_MAX = 5.0


@dataclass(frozen=True, slots=True)
class CountedRun:
    """A run whose memory accesses were counted.

    Args:
        output: the returned tensor.
        work: what each core did.
        places: the same by place in the source.
        warnings: warnings of the checks.
    """

    output: Any
    work: tuple[CoreWork, ...]
    places: tuple[AccessSite, ...]
    warnings: tuple[str, ...]

    @property
    def core_ns(self) -> tuple[float, ...]:
        """The modelled time of each core, without the launch."""
        return tuple(map(cost.core_ns, self.work))

    @property
    def modelled_ns(self) -> int:
        """The modelled time of the call."""
        return cost.work_ns(self.work)


def measure(
    operation: CustomOperator,
    arguments: Sequence[Any],
    calls: int,
    warm_up: int,
    on_progress: Callable[[str], None],
) -> Measured:
    """Time calls on this computer, for at most five seconds and at least once.

    Args:
        operation: the operator.
        arguments: its arguments.
        calls: number of timed calls.
        warm_up: number of calls before them.
        on_progress: called with one line after each.
    """
    caller = Caller(operation)
    for _ in range(warm_up):
        execute(operation, arguments)
        caller(*arguments)
    kernels_ns: list[int] = []
    calls_ns: list[int] = []
    end = time.monotonic() + _SECONDS_MAX
    while len(calls_ns) < calls and (not calls_ns or time.monotonic() < end):
        kernels_ns.append(execute(operation, arguments)[1].elapsed_ns)
        begin_ns = time.perf_counter_ns()
        caller(*arguments)  # as torch.ops does
        calls_ns.append(time.perf_counter_ns() - begin_ns)
        on_progress(f"{len(calls_ns)} of {calls} calls")
    return Measured(
        calls=len(calls_ns),
        warm_up=warm_up,
        kernel_median_ns=round(statistics.median(kernels_ns)),
        kernel_p99_ns=_percentile(kernels_ns, 0.99),
        kernel_best_ns=min(kernels_ns),
        call_median_ns=round(statistics.median(calls_ns)),
        call_p99_ns=_percentile(calls_ns, 0.99),
    )


def _percentile(values: Sequence[int], share: float) -> int:
    """Return the smallest value that is not below this share of the values."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def read_places(executor: Executor, package: Package) -> tuple[AccessSite, ...]:
    """Return what the last run of an executor counted, if it ran with `count_places`."""
    sources = tuple(entry.path for entry in package.manifest.sources)
    places: list[AccessSite] = []
    while True:
        request = new_request(abi.PLACES_COMMAND, len(places), 0)
        lines = executor.call(request, {}, None).warnings
        places += (_place(line, package.parts.kernel, sources) for line in lines)
        if not lines:
            return tuple(place for place in places if place.count)


def _place(line: str, library: bytes, sources: tuple[str, ...]) -> AccessSite:
    *numbers, frames = line.split("\t")
    way, core, tensor, count, nbytes, largest = map(int, numbers)
    addresses = tuple(int(frame, 16) for frame in frames.split(",") if frame)
    return AccessSite(
        tuple(Way)[way], core, tensor, count, nbytes, largest, user_location(library, addresses, sources)
    )
