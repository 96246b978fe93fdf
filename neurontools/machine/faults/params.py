"""Parameters of a fault, the armed fault, what it hits, and the rules for valid parameters."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypedDict

from msgspec import Struct

from neurontools.machine.faults.kinds import KINDS, EccType, FaultKind, Reach
from neurontools.machine.machine_names import unknown_index
from neurontools.machine.protocol import Request

if TYPE_CHECKING:
    from neurontools.machine.devices import Layout

MAX_SECONDS = 366 * 86400.0
MIN_EVERY_S = 0.01
MAX_FACTOR = 1e6
MAX_COUNT = 1 << 40

ONLY_FOR = {
    "to": FaultKind.LINK_DOWN,
    "factor": FaultKind.SLOW_CORE,
    "ecc": FaultKind.ECC,
    "amount": FaultKind.ECC,
    "every_s": FaultKind.ECC,
}
"""Parameters that only one kind of fault has."""


class FaultParams(TypedDict, total=False):
    """The arguments of `inject` besides the kind; see `FaultSpec`."""

    device: int | None
    core: int | None
    to: int | None
    pid: int | None
    tag: str | None
    after_s: float
    after_executions: int
    count: int | None
    duration_s: float | None
    factor: float
    ecc: str
    amount: int
    every_s: float | None


class FaultSpec(Request, frozen=True):
    """Parameters of a fault to inject: those of the method `inject_fault`.

    Args:
        kind: the kind of fault.
        device: only this device.
        core: only this core (machine-wide logical id).
        to: the device at the other end of a link.
        pid: only this process.
        tag: only processes with this NEURON_PROCESS_TAG.
        after_s: seconds until it is armed.
        after_executions: how many executions (or allocations) it lets pass.
        count: how many executions, allocations or memory errors it makes; None: until it is cleared (memory errors
            without `every_s`: one).
        duration_s: seconds after which it ends, from when it is armed.
        factor: how many times as long executions last on a slow core.
        ecc: the type of memory errors.
        amount: memory errors at a time.
        every_s: seconds between memory errors; None: all of `count` at once.
    """

    method: ClassVar[str] = "inject_fault"
    kind: FaultKind
    device: int | None = None
    core: int | None = None
    to: int | None = None
    pid: int | None = None
    tag: str | None = None
    after_s: float = 0.0
    after_executions: int = 0
    count: int | None = None
    duration_s: float | None = None
    factor: float = 2.0
    ecc: EccType = EccType.MEM_UNCORRECTED
    amount: int = 1
    every_s: float | None = None

    def target(self) -> str:
        """Return the target of the fault as text."""
        parts = []
        if self.to is not None:
            parts.append(f"link {self.device}-{self.to}")
        elif self.core is not None:
            parts.append(f"core {self.core}")
        elif self.device is not None:
            parts.append(f"device {self.device}")
        if self.pid is not None:
            parts.append(f"pid {self.pid}")
        if self.tag is not None:
            parts.append(f"tag {self.tag}")
        return ", ".join(parts) or "all cores"


class Phase(StrEnum):
    """How far a fault is.

    It waits for its time, is armed, holds executions that hang after it has hit as often as it may, leaves cores
    broken that need a reset, or is over, which only the answer to its injection tells.
    """

    WAITING = "waiting"
    ARMED = "armed"
    HOLDING = "holding"
    BROKEN = "broken"
    OVER = "over"


class Fault(Struct, frozen=True):
    """A fault in the machine. Times are CLOCK_MONOTONIC nanoseconds.

    `hits` are the executions, allocations or memory errors so far, `passed` what `after_executions` let through.
    `next_ns` is when the next memory error comes. `failing` executions still fail by the status of the errors that
    came; after those every execution on `broken_cores` finds them unusable. `held` are the pids and cores that hang.
    """

    id: int
    spec: FaultSpec
    due_ns: int
    phase: Phase = Phase.WAITING
    hits: int = 0
    passed: int = 0
    next_ns: int = 0
    failing: int = 0
    broken_cores: tuple[int, ...] = ()
    held: tuple[tuple[int, int], ...] = ()

    @property
    def kind(self) -> FaultKind:
        """What goes wrong."""
        return self.spec.kind

    @property
    def left(self) -> int | None:
        """How many hits are left, None: any number."""
        return None if self.spec.count is None else max(0, self.spec.count - self.hits)

    @property
    def end_ns(self) -> int | None:
        """When it ends by itself."""
        if self.spec.duration_s is None:
            return None
        return self.due_ns + round(self.spec.duration_s * 1e9)


class Action(StrEnum):
    """What a process is about to do when it asks for faults."""

    EXECUTION = "execution"
    ALLOCATION = "allocation"


class Victim(Struct, frozen=True):
    """Who is about to do what: a process, by pid and tag, on a core (machine-wide logical id).

    `collective` is set for an execution that exchanges data with other cores, `peers` are the cores of its process,
    `nbytes` is the size of an allocation.
    """

    pid: int
    tag: str
    core: int
    action: Action = Action.EXECUTION
    collective: bool = False
    peers: tuple[int, ...] = ()
    nbytes: int = 0


class Hit(Struct, frozen=True):
    """How a fault hits: the kind, the NRT status (0: the execution succeeds), and facts that some kinds need.

    `device` and `nc` are the device and the core inside of it; `peer` is the other device of a broken link. A `lasting`
    hit also hits every later execution, until the fault is cleared or over.
    """

    fault: int
    kind: FaultKind
    status: int
    device: int
    nc: int
    factor: float = 1.0
    peer: int | None = None
    lasting: bool = False


class MemoryErrors(Struct, frozen=True):
    """Memory errors that a device has just met."""

    device: int
    ecc: EccType
    amount: int


class Rejection(NamedTuple):
    """The reason why a fault does not fit a machine, and what to do about it."""

    reason: str
    remedy: str = "see `neurontools fault inject --help`"


def rejection_reason(spec: FaultSpec, layout: Layout) -> Rejection | None:
    """Return why a fault can't be injected into a machine, None when it can."""
    return _bad_target(spec, layout) or _bad_time(spec) or _bad_amount(spec)


def _bad_target(spec: FaultSpec, layout: Layout) -> Rejection | None:
    for name, value, count in (
        ("device", spec.device, layout.device_count),
        ("device", spec.to, layout.device_count),
        ("core", spec.core, layout.core_count),
    ):
        if value is not None and not 0 <= value < count:
            return Rejection(*unknown_index(name, value, range(count)))
    if spec.core is not None and spec.device not in {None, layout.device_of(spec.core)}:
        return Rejection(
            f"core {spec.core} is on device {layout.device_of(spec.core)}, not on device {spec.device}"
        )
    if spec.pid is not None and spec.pid <= 0:
        return Rejection(f"invalid process id {spec.pid}")
    match KINDS[spec.kind].reach:
        case Reach.DEVICE:
            return _bad_device_target(spec)
        case Reach.LINK:
            return _bad_link_target(spec, layout)
    if spec.to is not None:
        return Rejection(f"{spec.kind} does not take a second device, only {FaultKind.LINK_DOWN} does")
    return None


def _bad_device_target(spec: FaultSpec) -> Rejection | None:
    if spec.device is None and spec.core is None:
        return Rejection(f"{spec.kind} needs a device")
    if spec.pid is not None or spec.tag is not None or spec.to is not None:
        return Rejection(f"{spec.kind} affects a device, not a process or a link")
    if spec.kind is FaultKind.DEVICE_LOST and spec.core is not None:
        return Rejection(f"{spec.kind} affects a whole device, not core {spec.core}")
    return None


def _bad_link_target(spec: FaultSpec, layout: Layout) -> Rejection | None:
    if spec.device is None or spec.to is None:
        return Rejection(f"{spec.kind} needs the two devices of a link")
    if spec.pid is not None or spec.tag is not None or spec.core is not None:
        return Rejection(f"{spec.kind} affects a link, not a process or a core")
    neighbours = layout.links[spec.device] if layout.links else ()
    if layout.links and spec.to not in neighbours:
        listed = ", ".join(map(str, neighbours)) or "none"
        return Rejection(f"device {spec.device} has no link to device {spec.to}", f"its neighbours: {listed}")
    return None


def _bad_time(spec: FaultSpec) -> Rejection | None:
    for name, value, least in (
        ("delay", spec.after_s, 0.0),
        ("duration", spec.duration_s, 0.001),
        ("interval", spec.every_s, MIN_EVERY_S),
    ):
        if value is not None and not (math.isfinite(value) and least <= value <= MAX_SECONDS):
            return Rejection(f"{name} {value:g} s out of range: must be {least:g} s to 1 year")
    if spec.every_s is not None and spec.kind is not FaultKind.ECC:
        return Rejection(f"{spec.kind} does not take an interval, only {FaultKind.ECC} does")
    return None


def _bad_amount(spec: FaultSpec) -> Rejection | None:
    for name, amount, least in (
        ("count", 1 if spec.count is None else spec.count, 1),
        ("number of executions to pass", spec.after_executions, 0),
        ("number of memory errors", spec.amount, 1),
    ):
        if not least <= amount <= MAX_COUNT:
            return Rejection(f"{name} {amount} out of range: must be {least} to {MAX_COUNT}")
    if not (math.isfinite(spec.factor) and 1.0 <= spec.factor <= MAX_FACTOR):
        return Rejection(f"factor {spec.factor:g} out of range: must be 1 to {MAX_FACTOR:g}")
    counts_nothing = spec.kind in {FaultKind.DEVICE_LOST, FaultKind.LINK_DOWN}
    if counts_nothing and spec.count is not None:
        return Rejection(f"{spec.kind} does not take a count: it lasts until cleared or for its duration")
    if spec.after_executions and KINDS[spec.kind].reach not in {Reach.EXECUTION, Reach.ALLOCATION}:
        return Rejection(f"{spec.kind} can't wait for executions", "give a delay in seconds")
    return None
