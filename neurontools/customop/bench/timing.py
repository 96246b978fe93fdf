"""Runs of a bench beside the one that is told: on every number of cores, and timed on this computer."""

from __future__ import annotations

import math
import statistics
import time
from typing import TYPE_CHECKING, Any

from neurontools.customop import abi
from neurontools.customop.bench.bench_report import CoreCount, Measured
from neurontools.customop.caller import Caller
from neurontools.customop.errors import NeuronCustomOpError
from neurontools.customop.marshalling import execute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from neurontools.customop.bench.counted_runs import CountedRun
    from neurontools.customop.marshalling import Codes
    from neurontools.customop.operation import Operation

_SECONDS_MAX = 5.0


def on_every_number_of_cores(
    run_on: Callable[[int], CountedRun], say: Callable[[str], None]
) -> Iterator[CoreCount]:
    """Yield the modelled time on 1 core to all of them.

    Args:
        run_on: runs the operator on a number of cores.
        say: called with one line before each.
    """
    one: int | None = None
    for cores in range(1, abi.MAX_CORES + 1):
        say(f"on {cores} of {abi.MAX_CORES} cores")
        try:
            counted = run_on(cores)
        except NeuronCustomOpError as error:
            yield CoreCount(cores, None, None, None, f"{error.kind}: {error.reason}")
            continue
        if cores == 1:
            one = counted.modelled_ns
        speedup = None if one is None else one / counted.modelled_ns
        yield CoreCount(cores, counted.modelled_ns, speedup, _balance(counted.core_ns))


def measure(
    operation: Operation,
    arguments: Sequence[Any],
    codes: Codes,
    calls: int,
    warm_up: int,
    say: Callable[[str], None],
) -> Measured:
    """Time calls on this computer, for at most five seconds and at least once.

    Args:
        operation: the operator.
        arguments: what it is called with.
        codes: dtype numbers.
        calls: how many calls to time.
        warm_up: how many to make before.
        say: called with one line after each.
    """
    caller = Caller(operation, codes)
    for _ in range(warm_up):
        execute(operation, arguments, codes)
        caller(*arguments)
    kernels_ns: list[int] = []
    calls_ns: list[int] = []
    end = time.monotonic() + _SECONDS_MAX
    while len(calls_ns) < calls and (not calls_ns or time.monotonic() < end):
        kernels_ns.append(execute(operation, arguments, codes)[1].elapsed_ns)
        begin_ns = time.perf_counter_ns()
        caller(*arguments)  # as torch.ops does
        calls_ns.append(time.perf_counter_ns() - begin_ns)
        say(f"{len(calls_ns)} of {calls} calls")
    return Measured(
        calls=len(calls_ns),
        warm_up=warm_up,
        kernel_median_ns=round(statistics.median(kernels_ns)),
        kernel_p99_ns=_percentile(kernels_ns, 0.99),
        kernel_best_ns=min(kernels_ns),
        call_median_ns=round(statistics.median(calls_ns)),
        call_p99_ns=_percentile(calls_ns, 0.99),
    )


def _balance(times: Sequence[float]) -> float:
    return sum(times) / len(times) / max(times) if max(times) else 1.0


def _percentile(values: Sequence[int], share: float) -> int:
    """Return the smallest value that at least this share of them does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
