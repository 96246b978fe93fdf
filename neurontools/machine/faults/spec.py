"""A fault as it is wished for, as it stands in the machine, whom it can hit, and how it hits; and their JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from neurontools.machine.faults.kinds import EccType, FaultKind


@dataclass(frozen=True, slots=True)
class FaultSpec:
    """A fault to inject.

    Args:
        kind: what goes wrong.
        device: only this device; `core`: only this core (machine-wide logical id).
        core: see `device`.
        to: the device at the other end of a link.
        pid: only this process; `tag`: only processes with this NEURON_PROCESS_TAG.
        tag: see `pid`.
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
        """Return what the fault is aimed at, for a person."""
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


@dataclass(frozen=True, slots=True)
class Fault:
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

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


class Action(StrEnum):
    """What a process is about to do when it asks for faults."""

    EXECUTION = "execution"
    ALLOCATION = "allocation"


@dataclass(frozen=True, slots=True)
class Victim:
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


@dataclass(frozen=True, slots=True)
class Hit:
    """How a fault hits: the kind, the NRT status (0: the execution succeeds), and what kind needs which fact.

    `device` and `nc` are the device and the core inside of it; `peer` is the other device of a broken link.
    """

    fault: int
    kind: FaultKind
    status: int
    device: int
    nc: int
    factor: float = 1.0
    peer: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class MemoryErrors:
    """Memory errors that a device has just met."""

    device: int
    ecc: EccType
    amount: int


def spec_from_json(data: dict[str, Any]) -> FaultSpec:
    """Return the wish of its JSON form.

    Raises:
        KeyError, TypeError, ValueError: the value is none.
    """
    kind, ecc = FaultKind(data["kind"]), EccType(data.get("ecc", EccType.MEM_UNCORRECTED))
    return FaultSpec(**{**data, "kind": kind, "ecc": ecc})


def fault_from_json(data: dict[str, Any]) -> Fault:
    """Return the fault of its JSON form.

    Raises:
        KeyError, TypeError, ValueError: the value is none.
    """
    return Fault(
        **{
            **data,
            "spec": spec_from_json(data["spec"]),
            "phase": Phase(data["phase"]),
            "broken_cores": tuple(data["broken_cores"]),
            "held": tuple((pid, core) for pid, core in data["held"]),
        }
    )


def hit_from_json(data: dict[str, Any]) -> Hit:
    """Return the hit of its JSON form.

    Raises:
        KeyError, TypeError, ValueError: the value is none.
    """
    return Hit(**{**data, "kind": FaultKind(data["kind"])})
