"""Calls of kernels of the first generation: decorators, launch grids, and what benchmark and profile report.

Sources: AWS Neuron documentation 2.26, "nki" (jit, baremetal, benchmark, profile, simulate_kernel).
"""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from neurontools.errors import UsageError
from neurontools.nki.annotations import TensorAnnotation
from neurontools.nki.arguments import Arguments
from neurontools.nki.context import Core, Launch, fail, is_running, set_running
from neurontools.nki.diagnosis import diagnosed
from neurontools.nki.dtypes import wide_custom_types
from neurontools.nki.errors import KernelUsageError
from neurontools.nki.first import execution
from neurontools.nki.first import language as first_language
from neurontools.nki.first.blocks import BlockTensor
from neurontools.nki.first.loops import GridDim, as_grid_dim, core_of
from neurontools.nki.first.tile import Tile
from neurontools.nki.first.views import TileView
from neurontools.nki.launch import call, numeric_context
from neurontools.nki.limits import TARGET_VARIABLE, chosen_target, limits_of
from neurontools.nki.locations import user_location
from neurontools.nki.runs import core_count, finish, numbered, profiled, warnings_of_failures
from neurontools.nki.tensor import NkiTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.nki.memory import Allocation
    from neurontools.nki.runs import GridFactors, Run

MODES = ("auto", "jax", "torchxla", "baremetal", "benchmark", "simulation", "trace", "profile")
_OF_FRAMEWORKS = frozenset({"auto", "jax", "torchxla", "trace"})
DEFAULT_TARGET = "trn2"
"""The newest target of release 2.26 whose documents are complete."""
PERCENTILES = (0, 1, 10, 25, 50, 90, 99, 100)
_MOST_CORES = 2
_PROFILE_NAMES = {"save_neff_name": "file.neff", "save_trace_name": "profile.ntff"}
"""Options of decorators that name files, with the names that nki.profile has without them."""


class _Language:
    """What operators and tiles need of this generation."""

    apply = staticmethod(execution.apply)
    assign = staticmethod(execution.assign)
    update = staticmethod(execution.update)
    broadcast_to = staticmethod(first_language.broadcast_to)
    index_tile = staticmethod(first_language.index_tile)


class EagerKernel:
    """A function that runs on NeuronCores: `@nki.jit` and the other decorators.

    Args:
        function: the kernel.
        mode: what a call does.
        grid: the launch grid.
        options: options of the decorator.
        number: its number in `neurontools.nki.runs.kernels`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        mode: str = "auto",
        grid: tuple[GridDim, ...] = (),
        options: dict[str, Any] | None = None,
        number: int = -1,
    ) -> None:
        functools.update_wrapper(self, function)
        # pytest would unwrap kernels whose names start with `test` and call them.
        del self.__dict__["__wrapped__"]
        self.__signature__ = inspect.signature(function)
        self.__name__ = getattr(function, "__name__", None) or type(function).__name__
        self.func = function
        self.mode = mode
        self.grid = grid
        self.options = dict(options or {})
        self.number = number

    @property
    def factors(self) -> GridFactors:
        """The factors of each dimension of the launch grid."""
        return tuple([dim.factors for dim in self.grid])

    def on_grid(self, factors: GridFactors) -> EagerKernel:
        """Return the kernel on a launch grid."""
        dims = tuple([GridDim(*dim) for dim in factors])
        return type(self)(self.func, self.mode, dims, self.options, self.number)

    def run(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, checks: bool = True, quiet: bool = False
    ) -> Run:
        """Run the kernel on arrays and return what happened."""
        return run(self, args, kwargs, checks=checks, quiet=quiet)

    def __getitem__(self, grid: Any) -> EagerKernel:
        dims = grid if isinstance(grid, tuple | list) else (grid,)
        factors = tuple([as_grid_dim(dim).factors for dim in dims])
        if core_count(factors) > _MOST_CORES:
            raise KernelUsageError(
                f"{user_location()}: {self.__name__}: a grid is distributed to at most {_MOST_CORES} cores, "
                f"not {core_count(factors)}"
            )
        return self.on_grid(factors)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the kernel; within another kernel it is a plain function."""
        if is_running():
            if self.grid:
                sizes = ",".join(str(dim.size) for dim in self.grid)
                fail(
                    self.__name__,
                    f"Calling kernel with spmd grid ({self.__name__}[{sizes}]) inside another kernel is not supported",
                    "call it without a grid",
                )
            return self.func(*args, **kwargs)
        if self.mode in _OF_FRAMEWORKS:
            return call(self, args, kwargs)
        start_ns = time.monotonic_ns()
        done = profiled(lambda: self.run(args, kwargs))
        self._save(done.launch, start_ns)
        return self.finished(done)

    def finished(self, done: Run) -> Any:
        """Return what a call returns."""
        return done.results

    def _save(self, launch: Launch, start_ns: int) -> None:
        """Write the NEFF and the profile that the decorator names."""
        defaults = _PROFILE_NAMES if self.mode == "profile" else {}
        names = {key: self.options.get(key) or defaults.get(key) for key in _PROFILE_NAMES}
        if not any(names.values()):
            return
        from neurontools.nki.profile import save_files

        nth = int(self.options.get("profile_nth") or 1)
        directory = self.options.get("working_directory") or ""
        save_files(
            launch,
            start_ns,
            neff=names["save_neff_name"] and os.path.join(directory, names["save_neff_name"]),
            trace=names["save_trace_name"] and os.path.join(directory, names["save_trace_name"]),
            execution=nth,
            overwrites=self.mode != "profile" or bool(self.options.get("overwrite")),
        )


class MeasuredKernel(EagerKernel):
    """A kernel whose calls report a latency: `@nki.benchmark`."""

    benchmark_result: BenchmarkResult

    def finished(self, done: Run) -> Any:
        """Print the latency of a call and return its results."""
        from neurontools.nki.program import modelled_us

        self.benchmark_result = BenchmarkResult(KernelLatency(modelled_us(done.launch)))
        print(self.benchmark_result.nc_latency)  # noqa: T201
        return done.results


class KernelLatency:
    """The latency of a kernel on its NeuronCore: modelled, so all percentiles are equal.

    Args:
        microseconds: the modelled time.
    """

    def __init__(self, microseconds: float) -> None:
        self._microseconds = microseconds

    def get_latency_percentile(self, percentile: int) -> float:
        """Return a percentile in microseconds.

        Raises:
            UsageError: there is no such percentile.
        """
        if percentile not in PERCENTILES:
            raise UsageError(
                f"no percentile {percentile} of a benchmark", f"use one of {', '.join(map(str, PERCENTILES))}"
            )
        return self._microseconds

    def __str__(self) -> str:
        lines = [f"  p{percentile} = {self._microseconds:.2f}us" for percentile in PERCENTILES]
        return "\n".join(["NCLatency: (modelled)", *lines])


class BenchmarkResult:
    """What a benchmark has found.

    Args:
        nc_latency: the latency on a NeuronCore.
    """

    def __init__(self, nc_latency: KernelLatency) -> None:
        self.nc_latency = nc_latency


def _decorate(func: Any, mode: str, options: dict[str, Any]) -> Any:
    if mode not in MODES:
        raise KernelUsageError(
            f"{user_location()}: nki.jit has no mode {mode!r}", f"use one of {', '.join(MODES)}"
        )
    if func is None:
        return lambda function: _decorate(function, mode, options)
    if isinstance(func, str):  # stands for a kernel that can only be imported
        return func
    if not callable(func):
        raise KernelUsageError(
            f"{user_location()}: nki.jit: {func!r} is not a function", "decorate the kernel: @nki.jit"
        )
    grid = func.grid if isinstance(func, EagerKernel) else ()
    kind = MeasuredKernel if mode == "benchmark" else EagerKernel
    return numbered(kind(func.func if isinstance(func, EagerKernel) else func, mode, grid, options))


def jit(func: Any = None, mode: str = "auto", **options: Any) -> Any:
    """Make a function a kernel; with options alone, return the decorator."""
    return _decorate(func, mode, options)


def trace(func: Any = None, **options: Any) -> Any:
    """Make a function a kernel that writes its output parameters."""
    return _decorate(func, "trace", options)


def baremetal(kernel: Any = None, **options: Any) -> Any:
    """Make a function a kernel that runs on arrays of numpy."""
    return _decorate(kernel, "baremetal", options)


def benchmark(kernel: Any = None, **options: Any) -> Any:
    """Make a function a kernel whose calls print its modelled latency."""
    return _decorate(kernel, "benchmark", options)


def profile(func: Any = None, **options: Any) -> Any:
    """Make a function a kernel that is profiled.

    Raises:
        UsageError: the working directory is missing or relative.
    """
    directory = options.get("working_directory")
    if directory is None or not os.path.isabs(directory):
        raise UsageError(f"working_directory of nki.profile is {directory!r}", "give an absolute path")
    return _decorate(func, "profile", options)


def simulate_kernel(kernel: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a kernel on arrays and return its results; output parameters are written in place."""
    made = kernel if isinstance(kernel, EagerKernel) else EagerKernel(kernel, "trace")
    return profiled(lambda: run(made, args, kwargs, simulates=True)).results


class _FirstArguments(Arguments):
    """Arguments as tensors of the first generation."""

    def wrap(self, value: Any, name: str) -> Any:
        """Return what the kernel gets for an argument."""
        if isinstance(value, TensorAnnotation):
            value = value.zeros()
            if value is None:
                remedy = "pass an array, or one with sizes and type: nt.tensor[[128, 512], nl.bfloat16]"
                fail(self._function.__name__, f"argument {name} is an annotation", remedy)
        made = super().wrap(value, name)
        return as_tile(made) if isinstance(made, NkiTensor) and not isinstance(made, TileView) else made

    def unwrap(self, value: Any) -> Any:
        """Return the results of a kernel as arrays of the caller's kind; tiles on the chip are results too."""
        if isinstance(value, Tile):
            array = value.resolved("return").array()
            return self.as_caller(
                array.astype(value.dtype) if value.operand.dtype != "tfloat32" else np.array(array)
            )
        if isinstance(value, BlockTensor):
            value.refuse("return")
        return super().unwrap(value)


def as_tile(tensor: NkiTensor) -> Tile:
    """Return a tensor as one of the first generation."""
    view = TileView(tensor.shape, tensor.dtype, tensor.storage)
    view.strides, view.offset = tensor.strides, tensor.offset
    return Tile(view)


def _is_mutable(annotation: Any) -> bool:
    if isinstance(annotation, TensorAnnotation):
        return annotation.is_mutable
    return isinstance(annotation, str) and "mutable" in annotation


def _immutable(kernel: EagerKernel, wrapped: dict[str, Any]) -> set[Allocation]:
    """Return the parameters that a kernel must not write: older styles write their output parameters."""
    if kernel.mode == "trace" or not any(isinstance(value, Tile) for value in wrapped.values()):
        return set()
    parameters = inspect.signature(kernel.func).parameters
    return {
        value.operand.storage.allocation
        for name, value in wrapped.items()
        if isinstance(value, Tile) and not (name in parameters and _is_mutable(parameters[name].annotation))
    }


def run(
    kernel: EagerKernel,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    simulates: bool = False,
    checks: bool = True,
    quiet: bool = False,
) -> Run:
    """Run a kernel on arrays, the programs of its grid one after another.

    Args:
        kernel: the kernel.
        args: its arguments.
        kwargs: those by name.
        simulates: whether types that numpy lacks stay in float32, as in the vendor's simulator.
        checks: whether suspicious behaviour is looked for; wrong behaviour is an error in any case.
        quiet: whether warnings are left to the caller.

    Raises:
        KernelError: the kernel does what the device or the compiler refuses.
    """
    with (
        numeric_context(),
        diagnosed(kernel.func, first=True),
        wide_custom_types() if simulates or kernel.mode == "simulation" else nullcontext(),
    ):
        return _run(kernel, args, kwargs, checks=checks, quiet=quiet)


def _run(
    kernel: EagerKernel, args: tuple[Any, ...], kwargs: dict[str, Any], *, checks: bool, quiet: bool
) -> Run:
    asked = kernel.options.get("platform_target")
    is_named = bool(os.environ.get(TARGET_VARIABLE, "").strip())
    target = asked if asked and not is_named else chosen_target(DEFAULT_TARGET)
    launch = Launch(
        kernel.__name__,
        limits_of(target),
        tuple(dim.size for dim in kernel.grid),
        first_generation=True,
        checks=checks,
    )
    launch.cores = [Core(launch, (), number) for number in range(core_count(kernel.factors))]
    for core in launch.cores:
        core.language = _Language
    arguments = _FirstArguments(launch, kernel.func)
    named = arguments.named(args)
    positional = [(name, arguments.wrap(value, name)) for name, value in named]
    keywords = {name: arguments.wrap(value, name) for name, value in kwargs.items()}
    launch.constants["immutable"] = _immutable(kernel, dict(positional) | keywords)
    body = functools.partial(kernel.func, *[value for _, value in positional], **keywords)
    with warnings_of_failures([] if quiet else [launch]):
        results = [
            _run_program(launch.cores[core_of(kernel.grid, program)], program, body)
            for program in itertools.product(*[range(dim.size) for dim in kernel.grid])
        ]
    result = results[0] if results else None
    return finish(launch, arguments, result, _written_tensors(result), quiet=quiet)


def _run_program(core: Core, program: Sequence[int], body: Callable[[], Any]) -> Any:
    core.program = tuple(program)
    core.shared_count = 0
    core.loops = []
    core.accumulators = {}
    before = set_running(core)
    try:
        return body()
    finally:
        set_running(before)


def _written_tensors(result: Any) -> list[NkiTensor]:
    if isinstance(result, Tile):
        return [result.operand]
    if isinstance(result, list | tuple):
        return [tensor for item in result for tensor in _written_tensors(item)]
    return []
