"""Calls of kernels: arguments in, instructions executed on one or two cores, results out."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from neurontools.nki import computations
from neurontools.nki.arguments import Arguments
from neurontools.nki.constants import nc_version
from neurontools.nki.context import Core, Launch, is_running, running, set_running
from neurontools.nki.cores import Exchange
from neurontools.nki.diagnosis import diagnosed
from neurontools.nki.errors import KernelUsageError
from neurontools.nki.limits import Limits, check_core_count, chosen_target, limits_of
from neurontools.nki.locations import user_location
from neurontools.nki.runs import (
    GridFactors,
    Run,
    core_count,
    finish,
    numbered,
    profiled,
    warnings_of_failures,
)
from neurontools.nki.tensor import NkiTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MOST_CORES = 2


class Kernel:
    """A function that runs on NeuronCores: `@nki.jit`.

    Args:
        function: the kernel.
        cores: physical cores of a launch, 1 or 2; None for a launch without a grid, on one core.
        options: options of the decorator, kept for the documented signature.
        number: its number in `neurontools.nki.runs.kernels`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        cores: int | None = None,
        options: dict[str, Any] | None = None,
        number: int = -1,
    ) -> None:
        functools.update_wrapper(self, function)
        self.func = function
        self.options = dict(options or {})
        self.number = number
        self.factors: GridFactors = () if cores is None else (((cores, True),),)

    @property
    def cores(self) -> int:
        """Physical cores of a launch."""
        return core_count(self.factors)

    def __getitem__(self, cores: Any) -> Kernel:
        count = cores[0] if isinstance(cores, tuple | list) and len(cores) == 1 else cores
        if not isinstance(count, int) or not 1 <= count <= _MOST_CORES:
            raise KernelUsageError(
                f"{user_location()}: {self.func.__name__}[{cores}]: a launch takes 1 or 2 cores",
                "loop over tiles in the kernel; grids of any size belong to neuronxcc.nki, the first generation",
            )
        return Kernel(self.func, count, self.options, self.number)

    def on_grid(self, factors: GridFactors) -> Kernel:
        """Return the kernel on a launch grid."""
        return self[factors[0][0][0]] if factors else self

    def with_schedule(self, schedule: Any) -> Kernel:
        """Return the kernel; the order of instructions that a schedule asks for is that of the program here."""
        del schedule
        return self

    def run(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, checks: bool = True, quiet: bool = False
    ) -> Run:
        """Run the kernel on arrays and return what happened; `quiet` leaves warnings to the caller."""
        return run(self, args, kwargs, checks=checks, quiet=quiet)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the kernel; within another kernel it is a plain function."""
        if is_running():
            return self.func(*args, **kwargs)
        return call(self, args, kwargs)


def call(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a kernel of either generation and return its results; with tensors of a device it is an operator of torch."""
    has_torch = sys.modules.get("torch") is not None  # None where its import is blocked
    if has_torch:
        import torch

        if torch.compiler.is_dynamo_compiling():
            from neurontools.nki import traced_calls

            results = traced_calls.call(kernel.number, kernel.factors, args, kwargs)
            return None if results == () else results
    if os.environ.get("NKI_SIMULATOR") != "1":
        check_core_count(getattr(kernel, "__name__", "kernel"), core_count(kernel.factors))
    if has_torch:
        from neurontools.nki import torch_operator

        return torch_operator.call(kernel, args, kwargs)
    return profiled(lambda: kernel.run(args, kwargs)).results


def jit(fn: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Make a function a kernel; with options alone, return the decorator."""
    if "platform_target" in options:
        raise KernelUsageError(
            "nki.jit has no platform_target any more", "set NEURON_PLATFORM_TARGET_OVERRIDE, e.g. to trn2"
        )
    if fn is None:
        return functools.partial(jit, **options)
    if isinstance(fn, Kernel | str):  # a text stands for a kernel that can only be imported
        return fn
    need_function(fn)
    return numbered(Kernel(fn, options=options))


def need_function(value: Any) -> None:
    """Refuse to make something else than a function of Python a kernel."""
    plain = inspect.unwrap(value)
    if not hasattr(plain.func if isinstance(plain, functools.partial) else plain, "__code__"):
        raise KernelUsageError(
            f"{user_location()}: nki.jit: {value!r} is not a function", "decorate the kernel: @nki.jit"
        )


def simulate(kernel: Any) -> Callable[..., Any]:
    """Return a function that runs a kernel on arrays of numpy or tensors of torch."""
    made = kernel if isinstance(kernel, Kernel) else Kernel(kernel)

    def simulated(*args: Any, **kwargs: Any) -> Any:
        return profiled(lambda: made.run(args, kwargs)).results

    return functools.update_wrapper(simulated, made.func)


def run(
    kernel: Kernel,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    checks: bool = True,
    limits: Limits | None = None,
    quiet: bool = False,
) -> Run:
    """Run a kernel on arrays.

    Args:
        kernel: the kernel.
        args: its arguments.
        kwargs: those with names.
        checks: whether suspicious behaviour is looked for; wrong behaviour is an error in any case.
        limits: of the device; None for that of the environment.
        quiet: whether warnings are left to the caller.

    Raises:
        KernelError: the kernel does what the device or the compiler refuses.
    """
    return run_ranks(kernel, [(args, kwargs)], checks=checks, limits=limits, quiet=quiet)[0]


def run_ranks(
    kernel: Kernel,
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]],
    *,
    checks: bool = True,
    limits: Limits | None = None,
    quiet: bool = False,
) -> list[Run]:
    """Run a kernel on several ranks at once, each with its own arguments; collectives join them."""
    with diagnosed(kernel.func, first=False):
        return _run_ranks(kernel, calls, checks=checks, limits=limits, quiet=quiet)


def _run_ranks(
    kernel: Kernel,
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]],
    *,
    checks: bool,
    limits: Limits | None,
    quiet: bool,
) -> list[Run]:
    limits = limits or limits_of(chosen_target())
    grid = (kernel.cores,) if kernel.factors else ()
    prepared = []
    for rank, (args, kwargs) in enumerate(calls):
        launch = Launch(kernel.func.__name__, limits, grid, checks=checks, rank=rank, world_size=len(calls))
        launch.cores = [Core(launch, (number,) if grid else (), number) for number in range(kernel.cores)]
        for core in launch.cores:
            core.language = computations
        arguments = Arguments(launch, kernel.func)
        wrapped = [arguments.wrap(arg, name) for name, arg in arguments.named(args)]
        named = {name: arguments.wrap(value, name) for name, value in kwargs.items()}
        prepared.append((launch, arguments, functools.partial(kernel.func, *wrapped, **named)))
    cores = [core for launch, _, _ in prepared for core in launch.cores]
    launches = [launch for launch, _, _ in prepared]
    with numeric_context(), warnings_of_failures([] if quiet else launches):
        if len(cores) == 1:
            before = set_running(cores[0])
            try:
                returned = [prepared[0][2]()]
            finally:
                set_running(before)
        else:
            returned = Exchange(cores).run([body for launch, _, body in prepared for _ in launch.cores])
    results = returned[:: kernel.cores]
    return [
        finish(launch, arguments, result, _tensors(result), quiet=quiet)
        for (launch, arguments, _), result in zip(prepared, results, strict=True)
    ]


def _tensors(result: Any) -> list[NkiTensor]:
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, list | tuple):
        return [tensor for part in result for tensor in _tensors(part)]
    return [result] if isinstance(result, NkiTensor) else []


@functools.cache
def _blas() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@contextmanager
def numeric_context() -> Iterator[None]:
    """Let numpy multiply with one thread, as tiles are too small for more, and keep it silent about infinities."""
    with _blas().limit(limits=1, user_api="blas"), np.errstate(all="ignore"):
        yield


def get_nc_version() -> nc_version:
    """Return the generation of the NeuronCores that kernels run on."""
    return nc_version(running().limits.generation if is_running() else limits_of(chosen_target()).generation)


def simulate_kernel(func: Any, args: Any = (), kwargs: Any = None, _lnc: int = 1) -> Any:
    """Run a kernel on arrays and a number of cores, as vllm-neuron calls it."""
    kernel = func if isinstance(func, Kernel) else Kernel(func)
    return profiled(lambda: kernel[_lnc].run(tuple(args), dict(kwargs or {}))).results
