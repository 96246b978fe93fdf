"""Finished launches of kernels of both generations: results, warnings, and their place in the profile of the process."""

from __future__ import annotations

import itertools
import os
import sys
import time
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from neurontools.nki.checks import check_launch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from neurontools.nki.arguments import Arguments
    from neurontools.nki.context import Launch
    from neurontools.nki.locations import UserLine
    from neurontools.nki.tensor import NkiTensor

GridFactors = tuple[tuple[tuple[int, bool], ...], ...]
"""A launch grid: for each dimension its factors, and whether a factor numbers physical cores."""
kernels: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""The decorated kernels of both generations, by number."""
_numbers = itertools.count()


def core_count(factors: GridFactors) -> int:
    """Return the physical cores that a grid is distributed to."""
    return prod([size for dim in factors for size, is_core in dim if is_core])


def numbered(kernel: Any) -> Any:
    """Return a decorated kernel with a number, by which functions that torch.compile traces name it."""
    kernel.number = next(_numbers)
    kernels[kernel.number] = kernel
    return kernel


class Run:
    """A finished launch: its results and what happened.

    Args:
        launch: instructions by core, warnings and allocations.
        results: what the kernel returned, as arrays of the caller's kind.
    """

    def __init__(self, launch: Launch, results: Any) -> None:
        self.launch = launch
        self.results = results

    def written_arguments(self) -> list[int]:
        """Return the numbers of the array arguments that the kernel wrote."""
        arguments = [allocation for allocation in self.launch.allocations if allocation.is_argument]
        written = self.launch.written()
        return [number for number, allocation in enumerate(arguments) if allocation in written]


def profiled(run: Callable[[], Run]) -> Run:
    """Run a kernel and add its launch to the profile of this process, if one is captured."""
    start_ns = time.monotonic_ns()
    done = run()
    if os.environ.get("NEURON_RT_INSPECT_ENABLE"):
        from neurontools.nki import profile

        profile.record_launch(done.launch, start_ns)
    return done


def finish(
    launch: Launch, arguments: Arguments, result: Any, tensors: list[NkiTensor], *, quiet: bool
) -> Run:
    """Return a launch whose kernel has ended: with arguments written back, results for the caller, and warnings.

    Args:
        launch: the call.
        arguments: its arguments.
        result: what the kernel returned.
        tensors: those of the result.
        quiet: whether warnings are left to the caller.

    Raises:
        KernelError: a result cannot be returned, or the launch does what the device or the compiler refuses.
    """
    with warnings_of_failures([] if quiet else [launch]):
        arguments.copy_back()
        results = arguments.results(result)
        check_launch(launch, tensors)
    if not quiet:
        report_warnings(launch)
    return Run(launch, results)


@contextmanager
def warnings_of_failures(launches: list[Launch]) -> Iterator[None]:
    """Print the warnings of launches that fail: they often name the cause."""
    try:
        yield
    except Exception:
        for launch in launches:
            report_warnings(launch)
        raise


def report_warnings(launch: Launch, reported: set[tuple[str, UserLine]] | None = None) -> None:
    """Print the warnings of a launch, one line each, on stderr; those of `reported` are left out and added to it."""
    for warning in launch.warnings:
        key = (warning.kind, warning.location)
        if reported is not None and key in reported:
            continue
        if reported is not None:
            reported.add(key)
        print(f"{warning.location}: warning: {warning.message}", file=sys.stderr)  # noqa: T201
