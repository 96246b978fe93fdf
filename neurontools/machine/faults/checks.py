"""Whether a fault makes sense on a machine."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from neurontools.machine.faults.kinds import KINDS, FaultKind, Reach

if TYPE_CHECKING:
    from neurontools.machine.events import Layout
    from neurontools.machine.faults.spec import FaultSpec

MAX_SECONDS = 366 * 86400.0
MIN_EVERY_S = 0.01
MAX_FACTOR = 1e6
MAX_COUNT = 1 << 40


def why_not(spec: FaultSpec, layout: Layout) -> str:
    """Return why a fault can't be injected into a machine, or ""."""
    return _bad_target(spec, layout) or _bad_time(spec) or _bad_amount(spec)


def _bad_target(spec: FaultSpec, layout: Layout) -> str:
    for name, value, count in (
        ("device", spec.device, layout.device_count),
        ("device", spec.to, layout.device_count),
        ("core", spec.core, layout.core_count),
    ):
        if value is not None and not 0 <= value < count:
            return f"there is no {name} {value}, this machine has {_up_to(count, name)}"
    if spec.core is not None and spec.device not in {None, layout.device_of(spec.core)}:
        return f"core {spec.core} is on device {layout.device_of(spec.core)}, not on device {spec.device}"
    if spec.pid is not None and spec.pid <= 0:
        return f"{spec.pid} is no process id"
    match KINDS[spec.kind].reach:
        case Reach.DEVICE:
            return _not_one_device(spec)
        case Reach.LINK:
            return _not_one_link(spec, layout)
    if spec.to is not None:
        return f"a second device makes sense for {FaultKind.LINK_DOWN} only, not for {spec.kind}"
    return ""


def _not_one_device(spec: FaultSpec) -> str:
    if spec.device is None and spec.core is None:
        return f"{spec.kind} needs a device"
    if spec.pid is not None or spec.tag is not None or spec.to is not None:
        return f"{spec.kind} is about a device, not about a process or a link"
    if spec.kind is FaultKind.DEVICE_LOST and spec.core is not None:
        return f"{spec.kind} is about a whole device, not about core {spec.core}"
    return ""


def _not_one_link(spec: FaultSpec, layout: Layout) -> str:
    if spec.device is None or spec.to is None:
        return f"{spec.kind} needs the two devices of a link"
    if spec.pid is not None or spec.tag is not None or spec.core is not None:
        return f"{spec.kind} is about a link, not about a process or a core"
    neighbours = layout.links[spec.device] if layout.links else ()
    if layout.links and spec.to not in neighbours:
        has = ", ".join(map(str, neighbours)) or "none"
        return f"device {spec.device} has no link to device {spec.to}, its neighbours are: {has}"
    return ""


def _bad_time(spec: FaultSpec) -> str:
    for name, value, least in (
        ("a delay", spec.after_s, 0.0),
        ("a duration", spec.duration_s, 0.001),
        ("an interval", spec.every_s, MIN_EVERY_S),
    ):
        if value is not None and not (math.isfinite(value) and least <= value <= MAX_SECONDS):
            return f"{name} of {value:g} s makes no sense, it has {least:g} s to a year"
    if spec.every_s is not None and spec.kind is not FaultKind.ECC:
        return f"an interval makes sense for {FaultKind.ECC} only, not for {spec.kind}"
    return ""


def _bad_amount(spec: FaultSpec) -> str:
    if spec.count is not None and not 1 <= spec.count <= MAX_COUNT:
        return f"a count of {spec.count} makes no sense"
    if not 0 <= spec.after_executions <= MAX_COUNT:
        return f"{spec.after_executions} executions can't pass first"
    if not 1 <= spec.amount <= MAX_COUNT:
        return f"{spec.amount} memory errors at a time make no sense"
    if not (math.isfinite(spec.factor) and 1.0 <= spec.factor <= MAX_FACTOR):
        return f"a factor of {spec.factor:g} makes no sense, it has 1 to {MAX_FACTOR:g}"
    counts_nothing = spec.kind in {FaultKind.DEVICE_LOST, FaultKind.LINK_DOWN}
    if counts_nothing and spec.count is not None:
        return f"{spec.kind} lasts until it is cleared or its duration has passed, it has no count"
    if spec.after_executions and KINDS[spec.kind].reach not in {Reach.EXECUTION, Reach.ALLOCATION}:
        return f"{spec.kind} can't wait for executions, give a delay in seconds"
    return ""


def _up_to(count: int, name: str) -> str:
    return f"{name} 0 only" if count == 1 else f"0-{count - 1}"
