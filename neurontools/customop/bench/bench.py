"""Benchmark an operator: modelled device time by part, time on this computer, other numbers of cores, advice.

Inputs are given one by one or by a shape for all tensors.
"""

from __future__ import annotations

import math
import re
import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from neurontools import gpsimd
from neurontools.base.text import plural
from neurontools.customop import abi, cost
from neurontools.customop.abi import DEVICE_NAMES
from neurontools.customop.backtrace import user_location
from neurontools.customop.bench.advice import advise
from neurontools.customop.bench.report import (
    COMPUTE,
    LAUNCH,
    AccessSite,
    BenchReport,
    CoreCount,
    CoreTime,
    Measured,
    TimePart,
    Way,
    mean_to_slowest,
)
from neurontools.customop.calls import CoreWork, Executor, new_request
from neurontools.customop.checking.inputs import Case, Pattern, parse_pattern
from neurontools.customop.errors import NeuronCustomOpError
from neurontools.customop.marshalling import execute
from neurontools.customop.operation import CustomOperator, new_executor
from neurontools.customop.probe import SAMPLE_INTEGER, SAMPLE_REAL
from neurontools.customop.runner import TensorInput, check_inputs, make_arguments, parse_input
from neurontools.customop.signature import TENSOR_KINDS
from neurontools.customop.torch_operators import Caller
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.customop.package import OperatorEntry, Package


Template = TensorInput | Pattern | float | int
Sizes = tuple[int, ...]
DEFAULT_SHAPES: tuple[Sizes, ...] = ((512, 512), (512 * 512,), (64, 64, 64), (16, 32, 32, 16))

_SIZE = re.compile(r"(?P<number>\d+)(?P<unit>[KM]?)\Z")
_SIZE_OF_INPUT = re.compile(r"(?:^|(?<=x))\d+[KM](?=[x:])")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20}


def parse_template(text: str) -> Template:
    """Parse an input: `32x4096:float32[:seed]`, `4Kx1K:float32`, `*:float32` or a number.

    Raises:
        UsageError: the text has another form.
    """
    text = _SIZE_OF_INPUT.sub(lambda size: str(_size(size[0], text)), text)
    return parse_pattern(text) if text.startswith("*") else parse_input(text)


def parse_shape(text: str) -> Sizes:
    """Parse `32x4096`, sizes with K or M, or `scalar`.

    Raises:
        UsageError: the text has another form.
    """
    return () if text == "scalar" else tuple(_size(word, text) for word in text.split("x"))


def default_templates(entry: OperatorEntry, dtype: str) -> tuple[Template, ...]:
    """Return the default inputs of an operator: tensors of any shape, and numbers.

    Raises:
        UsageError: the device does not support the dtype.
    """
    if dtype not in DEVICE_NAMES:
        raise UsageError(f"--dtype {dtype}: not supported by the device", f"one of {', '.join(DEVICE_NAMES)}")
    return tuple(
        Pattern(None, dtype) if word in TENSOR_KINDS else SAMPLE_INTEGER if word == "int64" else SAMPLE_REAL
        for word in entry.parameters
    )


def bind(templates: Sequence[Template], shape: Sizes) -> tuple[TensorInput | float | int, ...]:
    """Return inputs with `shape` for tensors of any shape; a tensor without a seed uses its position as the seed."""
    return tuple(
        value.sized({}, shape, position) if isinstance(value, Pattern) else value
        for position, value in enumerate(templates)
    )


def wants_shape(templates: Sequence[Template]) -> bool:
    """Return whether an input is a tensor of any shape."""
    return any(isinstance(value, Pattern) for value in templates)


def _size(word: str, text: str) -> int:
    size = _SIZE.match(word)
    if size is None:
        raise UsageError(f"invalid sizes {text!r}", "use e.g. 1024, 4K or 32x4096")
    return int(size["number"]) * _UNITS[size["unit"]]


DEFAULT_CALLS = 50
DEFAULT_WARM_UP = 3
_REFUSALS = frozenset({"dtype", "rank", "check", "assert", "shape", "domain", "limit", "bounds"})
Input = TensorInput | float | int
_SECONDS_MAX = 5.0


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """How to benchmark an operator.

    Args:
        templates: the operator's inputs; empty: tensors of one shape, and numbers.
        dtype: element type of tensors when no inputs are given.
        shape: shape of tensors of any shape; None: found by trial.
        cores: number of cores; None: all of them for a multicore library, else one.
        calls: largest number of timed calls; 0: none.
        warm_up: number of calls before them.
    """

    templates: tuple[Template, ...] = ()
    dtype: str = "float32"
    shape: tuple[int, ...] | None = None
    cores: int | None = None
    calls: int = DEFAULT_CALLS
    warm_up: int = DEFAULT_WARM_UP


def bench(
    package: Package, index: int, settings: BenchSettings, on_progress: Callable[[str], None] | None = None
) -> BenchReport:
    """Benchmark an operator of a library.

    Raises:
        UsageError: the settings do not fit the operator or its library.
        NeuronCustomOpError: the operator fails.
        CustomOpLibraryError: no worker can be started.
    """
    entry = package.manifest.operators[index]
    templates = settings.templates or default_templates(entry, settings.dtype)
    _check(package, entry, templates, settings)
    with ExitStack() as closing:
        executor = new_executor(package)
        closing.callback(executor.close)
        runner = _Bench(package, index, settings, executor, on_progress or (lambda _line: None))
        return runner.run(templates)


class _Bench:
    def __init__(
        self,
        package: Package,
        index: int,
        settings: BenchSettings,
        executor: Executor,
        on_progress: Callable[[str], None],
    ) -> None:
        self.package = package
        self.index = index
        self.settings = settings
        self.executor = executor
        self.on_progress = on_progress
        self.multicore = package.manifest.multicore
        self.cores = settings.cores or (abi.MAX_CORES if self.multicore else 1)

    def run(self, templates: Sequence[Template]) -> BenchReport:
        """Return the report."""
        inputs, arguments, run = self._first_run(templates)
        words = Case(inputs).words
        self.on_progress(f"{self.package.manifest.operators[self.index].qualified} {' '.join(words)}")
        report = self._report(words, arguments, run)
        report = replace(report, notes=self._notes(report))
        return replace(report, advice=advise(report, _argument_bytes(arguments), multicore=self.multicore))

    def _count(self, arguments: list[Any], cores: int) -> CountedRun:
        """Run the operator and count its memory accesses by place in the source."""
        operation = CustomOperator(self.package, self.index, self.executor, cores=cores, count_places=True)
        output, completed = execute(operation, arguments)
        places = read_places(self.executor, self.package)
        return CountedRun(output, completed.work, places, completed.warnings)

    def _first_run(self, templates: Sequence[Template]) -> tuple[tuple[Input, ...], list[Any], CountedRun]:
        """Return the inputs and a run with them; without a given shape, try the default ones."""
        shape = self.settings.shape
        open_shape = wants_shape(templates) and shape is None
        problem: NeuronCustomOpError | None = None
        for sizes in DEFAULT_SHAPES if open_shape else (shape or (),):
            inputs = bind(templates, sizes)
            arguments = make_arguments(inputs)
            self.on_progress(f"counting on {plural(self.cores, 'core')}")
            try:
                run = self._count(arguments, self.cores)
            except NeuronCustomOpError as error:
                if not open_shape or not (error.kind in _REFUSALS or error.core < 0):
                    raise
                problem = problem or error
                continue
            return inputs, arguments, run
        assert problem is not None
        raise UsageError(
            f"found no inputs that the operator accepts: {problem.message}",
            "give them with --input or --shape",
        )

    def _report(self, words: tuple[str, ...], arguments: list[Any], run: CountedRun) -> BenchReport:
        entry = self.package.manifest.operators[self.index]
        tensors = [*(value for value in arguments if hasattr(value, "numel")), run.output]
        core_times = _core_times(run.core_ns)
        slowest = max(core_times, key=lambda core: core.modelled_ns).core
        return BenchReport(
            op=entry.qualified,
            schema=f"{entry.library}::{entry.schema}",
            library=self.package.path,
            inputs=words,
            elements=sum(tensor.numel() for tensor in tensors),
            tensor_bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors),
            cores=self.cores,
            modelled_ns=run.modelled_ns,
            slowest_core=slowest,
            parts=_parts(run, slowest),
            core_times=core_times,
            core_counts=self._core_counts(arguments, run.modelled_ns),
            places=run.places,
            measured=self._measure(arguments),
            advice=(),
            warnings=run.warnings,
            notes=(),
        )

    def _core_counts(self, arguments: list[Any], modelled_ns: int) -> tuple[CoreCount, ...]:
        if not self.multicore:
            return (CoreCount(1, modelled_ns, 1.0, 1.0),)
        counts = []
        single_core_ns: int | None = None
        for cores in range(1, abi.MAX_CORES + 1):
            self.on_progress(f"on {cores} of {abi.MAX_CORES} cores")
            try:
                run = self._count(arguments, cores)
            except NeuronCustomOpError as error:
                counts.append(CoreCount(cores, None, None, None, f"{error.kind}: {error.reason}"))
                continue
            if cores == 1:
                single_core_ns = run.modelled_ns
            speedup = None if single_core_ns is None else single_core_ns / run.modelled_ns
            counts.append(CoreCount(cores, run.modelled_ns, speedup, mean_to_slowest(run.core_ns)))
        return tuple(counts)

    def _measure(self, arguments: list[Any]) -> Measured | None:
        if self.settings.calls == 0:
            return None
        operation = CustomOperator(self.package, self.index, self.executor, cores=self.cores)
        settings = self.settings
        return measure(operation, arguments, settings.calls, settings.warm_up, self.on_progress)

    def _notes(self, report: BenchReport) -> tuple[str, ...]:
        manifest = self.package.manifest
        notes = []
        if manifest.release:
            notes.append(
                "a --release library does not count single element accesses; the model assumes that each accessor"
                " touches each element once. Bench a build with checks for the real number"
            )
        if report.measured and not manifest.sanitize and _mostly_computes(report, report.measured):
            notes.append(
                "the kernel takes longer on this computer than modelled for the device: it computes more than it"
                " moves, so expect the device to be slower than modelled"
            )
        return tuple(notes)


def _parts(run: CountedRun, core: int) -> tuple[TimePart, ...]:
    """Return the parts of a core's time, the launch included, in a fixed order, without parts that take no time."""
    launch_ns = gpsimd.rates().launch_ns
    work = run.work[core]
    total_ns = launch_ns + run.core_ns[core]
    rows: list[tuple[str, int, int, float]] = []
    for way in Way:
        places = [place for place in run.places if place.core == core and place.way is way]
        taken_ns = sum(place.modelled_ns for place in places)
        rows.append(
            (way, sum(place.count for place in places), sum(place.nbytes for place in places), taken_ns)
        )
    rows.append((COMPUTE, 0, work.computed_bytes, cost.compute_ns(work)))
    rows.append((LAUNCH, 1, 0, launch_ns))
    return tuple(
        TimePart(str(name), count, nbytes, taken_ns, taken_ns / total_ns)
        for name, count, nbytes, taken_ns in rows
        if taken_ns > 0
    )


def _check(
    package: Package, entry: OperatorEntry, templates: Sequence[Template], settings: BenchSettings
) -> None:
    if settings.cores is not None and settings.cores > 1 and not package.manifest.multicore:
        raise UsageError(
            f"{package.path} was built for one core",
            "build it with --multicore; its kernels then share the work by get_cpu_id()",
        )
    check_inputs(entry, [not isinstance(value, int | float) for value in templates])


def _core_times(times: Sequence[float]) -> tuple[CoreTime, ...]:
    total = sum(times)
    return tuple(
        CoreTime(core, taken, taken / total if total else 1 / len(times)) for core, taken in enumerate(times)
    )


def _argument_bytes(arguments: Sequence[Any]) -> dict[int, int]:
    return {
        position: value.numel() * value.element_size()
        for position, value in enumerate(arguments)
        if hasattr(value, "numel")
    }


def _mostly_computes(report: BenchReport, measured: Measured) -> bool:
    # Cores run one after the other on this computer, which is faster than a GPSIMD core. Memory accesses are subtracted.
    memory_ns = 2 * report.tensor_bytes
    return measured.kernel_best_ns - memory_ns > 2 * report.modelled_ns * report.cores


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
