"""An operator ready to be called, without torch: cached shape function, kernel, failures as exceptions and log lines."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from neurontools import env
from neurontools.base.text import printable
from neurontools.customop import abi, cost
from neurontools.customop.abi import BY_CODE, DEVICE_NAMES
from neurontools.customop.backtrace import format_warning, user_location
from neurontools.customop.calls import (
    Buffer,
    CoreWork,
    Executor,
    Outcome,
    TensorMeta,
    new_request,
    set_tensor,
)
from neurontools.customop.environment import check_instance, execution_timeout_s
from neurontools.customop.errors import CustomOpLibraryError, NeuronCustomOpError
from neurontools.customop.executors import InProcessExecutor, WorkerExecutor
from neurontools.runtime.log import Component, Level, RuntimeLog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.customop.calls import Failure
    from neurontools.customop.package import OperatorEntry, Package

Value = TensorMeta | float | int
_SHAPES_MAX = 1024
_SMALL_DIM_MAX = 65535  # documented limits: up to 8 dimensions of 65535, or up to 4 of 4294967295
_LARGE_DIM_MAX = 4294967295
_LARGE_DIM_COUNT = 4
_CONSUME = "pool_stdio_queue_consume_all_entries"
_logger = logging.getLogger("neurontools.customop")
_warned: set[tuple[str, str]] = set()


@dataclass(frozen=True, slots=True)
class Completed:
    """The result of a kernel run.

    Args:
        elapsed_ns: time on this computer.
        modelled_ns: modelled device time.
        warnings: warnings of the checks.
        work: memory accesses of each core; they determine the modelled time.
    """

    elapsed_ns: int
    modelled_ns: int
    warnings: tuple[str, ...]
    work: tuple[CoreWork, ...] = ()


def new_executor(package: Package) -> Executor:
    """Return the executor of a library: a worker, or this process if NEURONTOOLS_CUSTOMOP_INPROCESS is set.

    Raises:
        CustomOpLibraryError: the library has sanitizers and cannot run in this process.
        UnsupportedInstanceError: the machine's cores cannot run custom operators.
    """
    check_instance()
    if env.flag(env.CUSTOMOP_INPROCESS):
        if package.manifest.sanitize:
            raise CustomOpLibraryError(
                f"{package.path} was built with sanitizers, which cannot be loaded into Python",
                f"unset {env.CUSTOMOP_INPROCESS}, or rebuild it without --sanitize",
            )
        return InProcessExecutor(package.parts, package.manifest.name)
    return WorkerExecutor(package.parts, package.manifest.name)


class CustomOperator:
    """One operator of a library.

    Args:
        package: the library.
        index: position of the operator in its manifest.
        executor: runs the library's functions.
        cores: number of cores of a kernel; None: all for a multicore library, else one.
        count_places: also count accesses by place in the source, see `neurontools.customop.bench.bench`.
    """

    def __init__(
        self,
        package: Package,
        index: int,
        executor: Executor,
        *,
        cores: int | None = None,
        count_places: bool = False,
    ) -> None:
        self.entry: OperatorEntry = package.manifest.operators[index]
        self._package = package
        self._index = index
        self.executor = executor
        self._cores = cores or (abi.MAX_CORES if package.manifest.multicore else 1)
        self._count_places = count_places
        self._shapes: dict[tuple[object, ...], TensorMeta] = {}

    def infer(self, values: Sequence[Value]) -> TensorMeta:
        """Return shape and dtype of the output, from the shape function.

        Raises:
            NeuronCustomOpError: an argument breaks a limit of the device, or the shape function fails.
        """
        key = (*values, *map(type, values))  # 1 equals 1.0, and their dtypes differ
        known = self._shapes.get(key)
        if known is not None:
            return known
        self._check(values)
        request = self._request(abi.SHAPE_COMMAND, self._index, values)
        outcome = self.executor.call(request, {}, None)
        self._finish(outcome, values, self._package.parts.shape)
        shape = outcome.shape
        assert shape is not None
        if shape.dtype not in BY_CODE or not BY_CODE[shape.dtype].on_device:
            name = BY_CODE[shape.dtype].name if shape.dtype in BY_CODE else "undefined"
            raise self._error(
                "dtype",
                f"the shape function returned dtype {name}; the device supports {', '.join(DEVICE_NAMES)}",
                values,
            )
        if len(self._shapes) >= _SHAPES_MAX:
            self._shapes.clear()
        self._shapes[key] = shape
        return shape

    def run(
        self,
        values: Sequence[Value],
        inputs: dict[int, Buffer],
        output: TensorMeta,
        into: Buffer,
        core_order: int = 0,
    ) -> Completed:
        """Run the kernel.

        Args:
            values: the arguments.
            inputs: memory of the tensors among them, by position.
            output: result of `infer` for the same values.
            into: memory of the output.
            core_order: order in which the cores of a multicore kernel run: 0 ascending, 1 descending, else mixed.

        Raises:
            NeuronCustomOpError: the kernel fails, or one of the checks does.
        """
        request = self.request(values, output)
        request.core_order = core_order
        request.count_places = int(self._count_places)
        return self.complete(self.executor.call(request, inputs, into), values)

    def request(self, values: Sequence[Value], output: TensorMeta) -> abi.CallRequest:
        """Return a call of the kernel without tensor locations; `output` is the result of `infer`."""
        request = self._request(abi.RUN_COMMAND, self.entry.kernel_index, values, self._cores)
        set_tensor(request.output, output)
        return request

    def complete(self, outcome: Outcome, values: Sequence[Value]) -> Completed:
        """Log the outcome of a kernel run and return its result.

        Raises:
            NeuronCustomOpError: the kernel failed.
        """
        outcome = self._finish(outcome, values, self._package.parts.kernel)
        return Completed(outcome.elapsed_ns, cost.work_ns(outcome.work), outcome.warnings, outcome.work)

    def _request(self, command: int, callee: int, values: Sequence[Value], cores: int = 1) -> abi.CallRequest:
        request = new_request(command, callee, len(values), cores)
        for index, value in enumerate(values):
            argument = request.arguments[index]
            if isinstance(value, TensorMeta):
                argument.kind = abi.TENSOR_ARGUMENT
                set_tensor(argument.tensor, value)
            elif isinstance(value, float):
                argument.kind = abi.REAL_ARGUMENT
                argument.real = value
            else:
                argument.kind = abi.INTEGER_ARGUMENT
                argument.integer = value
        return request

    def _check(self, values: Sequence[Value]) -> None:
        for index, value in enumerate(values):
            if isinstance(value, TensorMeta):
                problem = tensor_problem(value)
                if problem:
                    raise self._error("limit", f"argument {index} {problem}", values)

    def _finish(self, outcome: Outcome, values: Sequence[Value], library: bytes) -> Outcome:
        called_with = ""
        if outcome.warnings:
            sources = self._sources()
            warnings = tuple(format_warning(line, library, sources) for line in outcome.warnings)
            outcome = replace(outcome, warnings=warnings)
            called_with = describe(values)
        log_outcome(self.entry.qualified, outcome, called_with)
        failure = outcome.failure
        if failure is None:
            return outcome
        location = user_location(library, failure.frames, self._sources())
        reason = failure.message
        if failure.kind == "abort" and outcome.stderr:
            reason = f"{reason} ({outcome.stderr.strip().splitlines()[-1]})"
        raise NeuronCustomOpError(
            self.entry.qualified,
            failure.kind,
            reason,
            core=failure.core,
            location=location,
            arguments=describe(values),
        )

    def _sources(self) -> tuple[str, ...]:
        return tuple(entry.path for entry in self._package.manifest.sources)

    def _error(self, kind: str, reason: str, values: Sequence[Value]) -> NeuronCustomOpError:
        return NeuronCustomOpError(self.entry.qualified, kind, reason, arguments=describe(values))


def tensor_problem(value: TensorMeta) -> str:
    """Return why a tensor cannot be an argument on the device, "" if it can."""
    dtype = BY_CODE.get(value.dtype)
    if dtype is None or not dtype.on_device:
        name = dtype.name if dtype else f"number {value.dtype}"
        return f"has dtype {name}; the device supports {', '.join(DEVICE_NAMES)}"
    if len(value.sizes) > abi.MAX_DIM:
        return f"has {len(value.sizes)} dimensions; the limit is {abi.MAX_DIM}"
    limit = _LARGE_DIM_MAX if len(value.sizes) <= _LARGE_DIM_COUNT else _SMALL_DIM_MAX
    if any(size > limit for size in value.sizes):
        return (
            f"has a dimension of {max(value.sizes)}; the limit for {len(value.sizes)} dimensions is {limit}"
        )
    return ""


def describe(values: Sequence[Value]) -> str:
    """Return arguments as text: `32x4096:float32, 0.5`."""
    return ", ".join(_describe(value) for value in values)


def _describe(value: Value) -> str:
    if not isinstance(value, TensorMeta):
        return repr(value)
    sizes = "x".join(str(size) for size in value.sizes) or "scalar"
    return f"{sizes}:{BY_CODE[value.dtype].name if value.dtype in BY_CODE else value.dtype}"


def log_outcome(op: str, outcome: Outcome, called_with: str = "") -> None:
    """Log a call's output and device failure as the Neuron runtime does, and each warning once per operator.

    `called_with` are the arguments as text, used for warnings only.
    """
    for warning in outcome.warnings:
        if (op, warning) not in _warned:
            _warned.add((op, warning))
            _logger.warning("custom operator %s: %s [called with %s]", op, printable(warning), called_with)
    fatal = outcome.failure if outcome.failure is not None and outcome.failure.fatal else None
    if not outcome.stdout and not outcome.stderr and fatal is None:
        return
    log = RuntimeLog(os.environ)
    for name, level, text in (
        ("stdout", Level.INFO, outcome.stdout),
        ("stderr", Level.ERROR, outcome.stderr),
    ):
        if text:
            log.write(level, Component.TDRV, _CONSUME, f"Printing {name} from GPSIMD:", text.rstrip())
    if fatal is not None:
        _log_fatal(log, fatal)


def _log_fatal(log: RuntimeLog, failure: Failure) -> None:
    if failure.kind == "timeout":
        limit_ms = round(execution_timeout_s() * 1000)
        message = (
            f"(FATAL-RT-UNDEFINED-STATE) inference timeout ({limit_ms} ms) on Neuron Device 0 NC 0, "
            "waiting for execution completion notification"
        )
    else:
        message = f"GPSIMD EXCEPTION OCCURRED: {failure.kind.upper()}: {failure.message}"
    log.write(Level.ERROR, Component.TDRV, "exec_consume_tpb_status_notifications", message)
    log.write(Level.ERROR, Component.NMGR, "dlr_infer", "Inference completed with err: 5")
