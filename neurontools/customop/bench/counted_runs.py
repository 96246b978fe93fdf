"""Runs of an operator in which all that it does is counted: memory by the runtime, its own arithmetic by a variant of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neurontools.customop import cost
from neurontools.customop.bench.arithmetic import Arithmetic, Counts
from neurontools.customop.bench.arithmetic_rates import own_ns
from neurontools.customop.bench.counting_library import CountingError, counting_library
from neurontools.customop.bench.counts import read_places
from neurontools.customop.errors import NeuronCustomOpError
from neurontools.customop.marshalling import execute
from neurontools.customop.operation import Operation, new_executor
from neurontools.gpsimd import rates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.customop.bench.counts import Place
    from neurontools.customop.calls import CoreWork, Executor
    from neurontools.customop.marshalling import Codes
    from neurontools.customop.package import Package


@dataclass(frozen=True, slots=True)
class CountedRun:
    """A run that was counted.

    Args:
        output: the tensor that came out.
        work: what each core did to memory.
        places: the same by place in the source.
        cycles: what each core's own arithmetic takes; empty when that was not counted.
        counts: how often each block of each core's code ran; empty likewise.
        warnings: what the checks warn about.
    """

    output: Any
    work: tuple[CoreWork, ...]
    places: tuple[Place, ...]
    cycles: tuple[float, ...]
    counts: Counts
    warnings: tuple[str, ...]

    @property
    def own_ns(self) -> tuple[float, ...]:
        """The modelled time that each core's own arithmetic adds."""
        if not self.cycles:
            return (0.0,) * len(self.work)
        return tuple(own_ns(core, cycles) for core, cycles in zip(self.work, self.cycles, strict=True))

    @property
    def core_ns(self) -> tuple[float, ...]:
        """The modelled time of each core, the launch left out."""
        return tuple(cost.core_ns(core) + added for core, added in zip(self.work, self.own_ns, strict=True))

    @property
    def modelled_ns(self) -> int:
        """The modelled time of the call."""
        return round(rates().launch_ns + max(self.core_ns))

    @property
    def memory_ns(self) -> int:
        """The modelled time of the call without own arithmetic."""
        return cost.work_ns(self.work)


class CountedRuns:
    """Makes such runs.

    Args:
        package: the library.
        index: position of the operator in its manifest.
        codes: dtype numbers.
        say: called with one line before something is compiled.
    """

    def __init__(self, package: Package, index: int, codes: Codes, say: Callable[[str], None]) -> None:
        self._index = index
        self._codes = codes
        self._package = package
        self.problem = ""
        self.compiler = ""
        self.arithmetic: Arithmetic | None = None
        try:
            variant = counting_library(package, say)
            self._package = variant.package
            self.compiler = variant.compiler
            self.arithmetic = Arithmetic(variant)
        except CountingError as error:
            self.problem = error.message
        self._plain = package
        self._executor: Executor = new_executor(self._package)

    def run(self, arguments: Sequence[Any], cores: int, *, must_count: bool = False) -> CountedRun:
        """Run the operator; what fails with counters only is run without from then on.

        Args:
            arguments: what it is called with.
            cores: on how many cores.
            must_count: fail then instead: the run is to be compared with others that counted.

        Raises:
            NeuronCustomOpError: it fails.
        """
        try:
            return self._run(arguments, cores)
        except NeuronCustomOpError as error:
            if self.arithmetic is None or must_count:
                raise
            counting = self._package, self._executor, self.arithmetic
            self._package, self._executor, self.arithmetic = self._plain, new_executor(self._plain), None
            try:
                found = self._run(arguments, cores)
            except NeuronCustomOpError:
                self._executor.close()
                self._package, self._executor, self.arithmetic = counting
                raise
            counting[1].close()
            self.problem = f"with counters it fails: {error.kind}: {error.reason}"
            return found

    def close(self) -> None:
        """End the worker."""
        self._executor.close()

    def _run(self, arguments: Sequence[Any], cores: int) -> CountedRun:
        operation = Operation(self._package, self._index, self._executor, cores=cores, count_places=True)
        output, completed = execute(operation, arguments, self._codes)
        places = read_places(self._executor, self._package)
        counts: Counts = ()
        cycles: tuple[float, ...] = ()
        if self.arithmetic is not None:
            counts = self.arithmetic.read(self._executor, cores)
            cycles = tuple(map(self.arithmetic.cycles, counts))
        return CountedRun(output, completed.work, places, cycles, counts, completed.warnings)
