"""What a bench found out, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neurontools.customop.bench.arithmetic import FunctionCycles
    from neurontools.customop.bench.counts import Place


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the modelled time of the slowest core.

    Args:
        name: what it is.
        count: how many of it.
        nbytes: bytes of these.
        modelled_ns: its time.
        share: of the whole time, 0 to 1; the shares of all parts add up to 1.
    """

    name: str
    count: int
    nbytes: int
    modelled_ns: float
    share: float


@dataclass(frozen=True, slots=True)
class HotLine:
    """A line of the source in the own arithmetic of the slowest core.

    Args:
        location: `file:line`.
        cycles: what it takes.
        share: of all cycles of own arithmetic, 0 to 1.
        function_cycles: cycles of library functions that it calls, part of `cycles`.
    """

    location: str
    cycles: float
    share: float
    function_cycles: float


@dataclass(frozen=True, slots=True)
class OwnArithmetic:
    """What the slowest core computes outside accessors, copies and tensor functions: an estimate.

    Args:
        compiler: whose instructions were counted.
        cycles: what they take.
        included_cycles: those of them that the rates of copies and accesses hold already.
        modelled_ns: what the others add to the time.
        lines: where, the most first; at most 20.
        functions: library functions that it calls.
    """

    compiler: str
    cycles: float
    included_cycles: float
    modelled_ns: float
    lines: tuple[HotLine, ...]
    functions: tuple[FunctionCycles, ...]


@dataclass(frozen=True, slots=True)
class CoreTime:
    """The modelled time of one core, without the launch, and its share of the time of all cores."""

    core: int
    modelled_ns: float
    share: float


@dataclass(frozen=True, slots=True)
class CoreCount:
    """The operator on a number of cores.

    Args:
        cores: how many.
        modelled_ns: modelled time, None when it fails there.
        speedup: how many times faster than one core.
        balance: mean time of the cores by that of the slowest, 1 when all do the same.
        problem: why it fails, "" when it does not.
    """

    cores: int
    modelled_ns: int | None
    speedup: float | None
    balance: float | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Measured:
    """Times measured on this computer; they say nothing about the device.

    Args:
        calls: how many calls were timed.
        warm_up: how many were made before.
        kernel_median_ns: of the kernel alone.
        kernel_p99_ns: 99 % of the kernels took no longer.
        kernel_best_ns: of the kernel alone, the shortest.
        call_median_ns: of the call as torch.ops makes it, copies of tensors included.
        call_p99_ns: 99 % of the calls took no longer.
    """

    calls: int
    warm_up: int
    kernel_median_ns: int
    kernel_p99_ns: int
    kernel_best_ns: int
    call_median_ns: int
    call_p99_ns: int


@dataclass(frozen=True, slots=True)
class Advice:
    """What can be done.

    Args:
        kind: one word for it.
        text: one sentence.
        location: `file:line`, "" when it is about no place.
        saves_ns: about how much less modelled time it would take, 0 where that cannot be told.
    """

    kind: str
    text: str
    location: str = ""
    saves_ns: int = 0


@dataclass(frozen=True, slots=True)
class BenchReport:
    """A benched operator.

    Args:
        op: qualified name.
        schema: torch schema.
        library: path of its library.
        inputs: what it was called with, as `neuron-customop run` takes it.
        elements: elements of all tensors, the output included.
        tensor_bytes: their bytes.
        cores: how many cores it ran on.
        modelled_ns: modelled device time of a call.
        memory_ns: the same without own arithmetic; what everything but a bench says.
        slowest_core: the one whose parts are told.
        parts: where the time goes.
        core_times: the time of each core.
        core_counts: the operator on other numbers of cores; one row for a library that is not multicore.
        places: what each place of the source did.
        arithmetic: own arithmetic, None when it could not be counted; a note says why.
        measured: None when nothing was timed.
        advice: what can be done, what saves most first.
        warnings: what the checks warn about.
        notes: what limits the model here.
    """

    op: str
    schema: str
    library: str
    inputs: tuple[str, ...]
    elements: int
    tensor_bytes: int
    cores: int
    modelled_ns: int
    memory_ns: int
    slowest_core: int
    parts: tuple[Part, ...]
    core_times: tuple[CoreTime, ...]
    core_counts: tuple[CoreCount, ...]
    places: tuple[Place, ...]
    arithmetic: OwnArithmetic | None
    measured: Measured | None
    advice: tuple[Advice, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def balance(self) -> float:
        """Mean time of the cores by that of the slowest."""
        slowest = max((core.modelled_ns for core in self.core_times), default=0.0)
        if slowest == 0:
            return 1.0
        return sum(core.modelled_ns for core in self.core_times) / len(self.core_times) / slowest
