"""Results of a benchmark as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from neurontools import gpsimd

if TYPE_CHECKING:
    from collections.abc import Sequence

COMPUTE = "arithmetic of tensor functions"
LAUNCH = "launch"
OUTPUT = -2
TEMPORARY = -1


@dataclass(frozen=True, slots=True)
class TimePart:
    """A part of the modelled time of the slowest core.

    Args:
        name: name of the part.
        count: number of accesses, copies or launches.
        nbytes: bytes of these.
        modelled_ns: modelled time.
        share: share of the total time, 0 to 1; the shares of all parts add up to 1.
    """

    name: str
    count: int
    nbytes: int
    modelled_ns: float
    share: float


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
        cores: number of cores.
        modelled_ns: modelled time, None when the operator fails.
        speedup: speed relative to one core.
        balance: mean time of the cores divided by that of the slowest; 1 when all take the same time.
        problem: why the operator fails, "" when it succeeds.
    """

    cores: int
    modelled_ns: int | None
    speedup: float | None
    balance: float | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Measured:
    """Times measured on this computer; they do not predict the device.

    Args:
        calls: number of timed calls.
        warm_up: number of calls before them.
        kernel_median_ns: median time of the kernel alone.
        kernel_p99_ns: 99th percentile of the kernel alone.
        kernel_best_ns: shortest time of the kernel alone.
        call_median_ns: median time of a call by torch.ops, copies of tensors included.
        call_p99_ns: 99th percentile of such calls.
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
    """One way to make an operator faster.

    Args:
        kind: name of the rule, one word.
        text: one sentence.
        location: `file:line`, "" when it concerns no line.
        saves_ns: estimated saving of modelled time, 0 where it cannot be estimated.
    """

    kind: str
    text: str
    location: str = ""
    saves_ns: int = 0


@dataclass(frozen=True, slots=True)
class BenchReport:
    """The benchmark of one operator with one set of inputs.

    Args:
        op: qualified name.
        schema: torch schema.
        library: path of its library.
        inputs: its inputs, in the notation of `neuron-customop run`.
        elements: elements of all tensors, the output included.
        tensor_bytes: their bytes.
        cores: number of cores.
        modelled_ns: modelled device time of a call, without the arithmetic of the kernel's own loops.
        slowest_core: the core that `parts` describes.
        parts: the parts of its time.
        core_times: the time of each core.
        core_counts: the operator on other numbers of cores; one row for a library that is not multicore.
        places: memory accesses by place in the source.
        measured: None when nothing was timed.
        advice: ways to make it faster, the largest saving first.
        warnings: warnings of the checks.
        notes: limits of the model for this operator.
    """

    op: str
    schema: str
    library: str
    inputs: tuple[str, ...]
    elements: int
    tensor_bytes: int
    cores: int
    modelled_ns: int
    slowest_core: int
    parts: tuple[TimePart, ...]
    core_times: tuple[CoreTime, ...]
    core_counts: tuple[CoreCount, ...]
    places: tuple[AccessSite, ...]
    measured: Measured | None
    advice: tuple[Advice, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def balance(self) -> float:
        """Mean time of the cores divided by that of the slowest."""
        return mean_to_slowest([core.modelled_ns for core in self.core_times])


def mean_to_slowest(times: Sequence[float]) -> float:
    """Return the mean of the cores' times divided by the largest; 1 where nothing takes time."""
    slowest = max(times, default=0.0)
    return sum(times) / len(times) / slowest if slowest else 1.0


class Way(StrEnum):
    """How a kernel accesses a tensor, in the order of `neurontools::Way` in `counting.hpp`."""

    ELEMENT = "element accesses"
    STREAM = "stream copies"
    TCM = "TCM copies"
    FUNCTION = "tensor functions"
    MOVE = "moves in HBM"
    RETURNED = "returned tensor"
    UNBUFFERED = "streams without a buffer"


@dataclass(frozen=True, slots=True)
class AccessSite:
    """Accesses of one place in the source to one tensor on one core.

    Args:
        way: kind of access.
        core: GPSIMD core.
        tensor: position of the argument, -1 for a tensor that the kernel made, -2 for the output.
        count: number of accesses or copies.
        nbytes: bytes of these.
        largest_bytes: bytes of the largest access or copy.
        location: `file:line` in the user's sources, "" when unknown.
    """

    way: Way
    core: int
    tensor: int
    count: int
    nbytes: int
    largest_bytes: int
    location: str

    @property
    def modelled_ns(self) -> float:
        """Modelled time of the accesses."""
        rates = gpsimd.rates()
        match self.way:
            case Way.ELEMENT | Way.UNBUFFERED:
                return self.count * rates.element_access_ns
            case Way.MOVE | Way.RETURNED:
                return self.count * rates.move_latency_ns + self.nbytes * rates.move_ns_per_byte
            case _:
                return self.count * rates.transfer_latency_ns + self.nbytes * rates.transfer_ns_per_byte
