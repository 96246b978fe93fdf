"""What runs now: the launch of a kernel, its cores, and the instructions that each has executed."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from neurontools import env
from neurontools.nki.errors import KernelError, KernelUsageError
from neurontools.nki.iterations import AffineLoop, Iteration
from neurontools.nki.locations import UserLine, user_location
from neurontools.nki.numeric_watch import NumericWatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy as np

    from neurontools.nki.limits import Limits
    from neurontools.nki.memory import Allocation


class ElementAccess(NamedTuple):
    """The elements of an allocation that an instruction reads or writes.

    Args:
        allocation: where they are.
        offset: first element, in elements of `dtype` from the start of the allocation.
        shape: sizes by dimension; on the chip the first is the number of partitions.
        strides: steps by dimension in elements.
        dtype: NKI name of their type.
        elements: sorted numbers of the elements where an index known at run time chooses them, else None.
        is_gather: whether each row has an index of its own.
        has_register: whether the offset is known at run time only.
        pattern: which elements they are, None where an index chooses them.
    """

    allocation: Allocation
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    elements: Any = None
    is_gather: bool = False
    has_register: bool = False
    pattern: Any = None

    @property
    def is_dynamic(self) -> bool:
        """Whether an index known at run time chooses the elements."""
        return self.has_register or self.elements is not None


class Record:
    """An instruction that was executed.

    Args:
        opcode: name of its function in nki.isa.
        engine: engine that the kernel names, "" where the compiler chooses.
        reads: what it read.
        writes: what it wrote.
        location: the line of the kernel.
        options: what else decides its time, by name.
        name: name that the kernel gave it.
    """

    __slots__ = ("after", "engine", "location", "name", "opcode", "options", "reads", "writes")

    def __init__(
        self,
        opcode: str,
        engine: str,
        reads: tuple[ElementAccess, ...],
        writes: tuple[ElementAccess, ...],
        location: UserLine,
        options: dict[str, Any],
        name: str | None,
    ) -> None:
        self.opcode = opcode
        self.engine = engine
        self.reads = reads
        self.writes = writes
        self.location = location
        self.options = options
        self.name = name
        self.after: tuple[Record, ...] = ()

    def depends_on(self, *producers: Record) -> Record:
        """Let this instruction start after others."""
        self.after += producers
        return self


@dataclass(slots=True)
class KernelWarning:
    """Something that a kernel does whose effect on the device is undefined, or a mistake."""

    kind: str
    message: str
    location: UserLine


@dataclass
class Launch:
    """One call of a kernel.

    Args:
        kernel: its name.
        limits: limits of the generation that it runs on.
        grid: sizes of the launch grid.
        first_generation: whether it is written in the first generation of NKI.
        checks: whether suspicious behaviour is looked for; a trial on zeros does without, and without other workers.
        rank: number of this launch among those that run together.
        world_size: how many run together.
        keeps_order: whether it has a part with `no_reorder`.
    """

    kernel: str
    limits: Limits
    grid: tuple[int, ...]
    first_generation: bool = False
    checks: bool = True
    rank: int = 0
    world_size: int = 1
    keeps_order: bool = False
    cores: list[Core] = field(default_factory=list)
    warnings: list[KernelWarning] = field(default_factory=list)
    allocations: list[Allocation] = field(default_factory=list)
    constants: dict[Any, Any] = field(default_factory=dict)

    def written(self) -> dict[Allocation, None]:
        """Return the allocations that instructions have written, in the order of the first writes."""
        return dict.fromkeys(
            access.allocation for core in self.cores for record in core.records for access in record.writes
        )

    def warn(self, kind: str, message: str, location: UserLine | None = None) -> None:
        """Note a warning, once for each line and kind."""
        line = location or user_location()
        if not any(warning.kind == kind and warning.location == line for warning in self.warnings):
            self.warnings.append(KernelWarning(kind, message, line))


_OF_CONSTANTS = frozenset({"affine_select", "memset"})
"""Instructions that write a number which the kernel names; infinity is a usual one."""


class Core:
    """A core that runs a kernel.

    Args:
        launch: the call.
        program: coordinates in the grid.
        number: number of the physical core, from 0.
    """

    def __init__(self, launch: Launch, program: tuple[int, ...], number: int = 0) -> None:
        self.launch = launch
        self.limits = launch.limits
        self.program = program
        self.number = number
        self.records: list[Record] = []
        self.accumulators: dict[Any, Any] = {}
        self.random: dict[Any, Any] = {}
        self.exchange: Any = None
        self.slot = number
        self.shared_count = 0
        self.language: Any = None
        self.loops: list[Any] = []
        self.iteration: Iteration | None = None
        self.iterations: list[tuple[int, Iteration | None]] = []
        self.passed: dict[tuple[Any, ...], Any] = {}  # results of checks by patterns and options
        self.watch = NumericWatch() if launch.checks and env.numerical_errors_are_on() else None

    def enter(self, iteration: Iteration | None) -> None:
        """Note that the next instructions belong to an iteration of a loop."""
        self.iteration = iteration
        self.iterations.append((len(self.records), iteration))

    def by_iteration(self) -> Iterator[tuple[Iteration | None, list[Record]]]:
        """Return the instructions in order, in parts that belong to one iteration of the innermost loop."""
        starts = [(0, None), *self.iterations]
        ends = [*(start for start, _ in self.iterations), len(self.records)]
        for (start, iteration), end in zip(starts, ends, strict=True):
            if end > start:
                yield iteration, self.records[start:end]

    def issue(
        self,
        opcode: str,
        engine: str,
        reads: tuple[ElementAccess, ...],
        writes: tuple[ElementAccess, ...],
        name: str | None = None,
        **options: Any,
    ) -> Record:
        """Record an instruction and return it."""
        record = Record(opcode, engine, reads, writes, user_location(), options, name)
        self.records.append(record)
        if self.watch is not None:
            made = self.watch.take()
            if made and opcode not in _OF_CONSTANTS:
                self.launch.warn("non-finite", f"{opcode}: {made}", record.location)
        return record


class _Running(threading.local):
    core: Core | None = None


_running = _Running()


def running() -> Core:
    """Return the core whose kernel runs in this thread.

    Raises:
        KernelUsageError: no kernel runs.
    """
    core = _running.core
    if core is None:
        raise KernelUsageError(
            f"{user_location()}: functions of NKI work in kernels alone",
            "call them from a function with @nki.jit, and that with arrays or nki.simulate",
        )
    return core


def note_read(values: np.ndarray) -> np.ndarray:
    """Return the elements of an operand, after the watch for NaN and infinity has seen them."""
    core = _running.core
    if core is not None and core.watch is not None:
        core.watch.read(values)
    return values


def note_write(allocation: Allocation, values: np.ndarray) -> None:
    """Let the watch for NaN and infinity see the elements of a result, as they are stored."""
    core = _running.core
    if core is not None and core.watch is not None:
        core.watch.write(allocation.label, values)


def is_running() -> bool:
    """Return whether a kernel runs in this thread."""
    return _running.core is not None


def set_running(core: Core | None) -> Core | None:
    """Make a core the running one of this thread and return the one before."""
    before, _running.core = _running.core, core
    return before


def affine_iterations(numbers: Iterable[int]) -> Iterator[int]:
    """Return the numbers of a loop, and note on the running core where each iteration starts."""
    if not is_running():
        yield from numbers
        return
    core = running()
    outer, loop = core.iteration, AffineLoop(user_location())
    try:
        for number in numbers:
            core.enter(Iteration(loop, outer))
            yield number
    finally:
        core.enter(outer)


def fail(subject: str, reason: str, remedy: str = "", *concerned: Allocation) -> NoReturn:
    """Raise the error of an instruction at the kernel's line.

    Args:
        subject: the instruction or function.
        reason: what is wrong.
        remedy: what to do.
        concerned: allocations whose declarations are named.
    """
    raise KernelError(
        "\n".join([f"{user_location()}: {subject}: {reason}", *declarations(*concerned)]), remedy
    )


def whole(function: str, operand: str, value: Any) -> int:
    """Return an argument that must be an integer; fractions, texts and tensors are refused."""
    if type(value) is int:
        return value
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None or isinstance(value, str) or (number != value and not hasattr(value, "__index__")):
        argument = f"a {type(value).__name__}" if hasattr(value, "shape") else repr(value)
        fail(
            function,
            f"{operand} is {argument}, not an integer",
            "divide with //" if isinstance(value, float) else "",
        )
    return number


def declarations(*allocations: Allocation) -> list[str]:
    """Return a note for each allocation that names the line of its declaration."""
    return [f"note: {item.label} declared at {item.location}" for item in dict.fromkeys(allocations)]
