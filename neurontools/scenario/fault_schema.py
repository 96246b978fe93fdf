"""Faults as a scenario writes them: a time, and what `neurontools fault inject` takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from neurontools.machine.events import Layout
from neurontools.machine.faults.checks import why_not
from neurontools.machine.faults.kinds import EccType, FaultKind
from neurontools.machine.faults.spec import FaultSpec
from neurontools.scenario.model import FaultPlan
from neurontools.scenario.problems import suggestion
from neurontools.scenario.quantities import DURATION_FORM, duration, number, whole

if TYPE_CHECKING:
    from collections.abc import Callable
    from enum import StrEnum

    from neurontools.machine.instances.catalogue import InstanceType
    from neurontools.scenario.nodes import Item, Section

    Choice = TypeVar("Choice", bound=StrEnum)
T = TypeVar("T")


def faults_of(item: Item | None, instance: InstanceType | None, lnc: int) -> tuple[FaultPlan, ...]:
    """Return the faults that a list of the file describes, in order of time."""
    if item is None:
        return ()
    plans = []
    for entry in item.items("a list of faults"):
        section = entry.section("a mapping such as {at: 1m, kind: ecc, device: 3}")
        at = section.need("at")
        at_s = 0.0 if at is None else at.scalar(duration, DURATION_FORM, 0.0)
        before = len(entry.problems)
        spec = _spec(section)
        section.finish()
        if spec is None or len(entry.problems) > before:
            continue
        reason = "" if instance is None else why_not(spec, _layout(instance, lnc))
        if reason:
            entry.wrong(reason)
        plans.append(FaultPlan(at_s, spec))
    return tuple(sorted(plans, key=lambda plan: plan.at_s))


def _spec(section: Section) -> FaultSpec | None:
    kind = _choice(section, "kind", list(FaultKind), None)
    ecc = _choice(section, "ecc", list(EccType), EccType.MEM_UNCORRECTED)
    spec = FaultSpec(
        kind=kind or FaultKind.ECC,
        device=_optional(section, "device", whole, "the number of a device"),
        core=_optional(section, "core", whole, "the number of a core"),
        to=_optional(section, "to", whole, "the number of a device"),
        tag=_optional(section, "tag", str, "a text"),
        after_executions=section.scalar("after_executions", whole, "a whole number", 0),
        count=_optional(section, "count", whole, "a whole number"),
        duration_s=_optional(section, "duration", duration, DURATION_FORM),
        factor=section.scalar("factor", number, "a number of at least 1", 2.0),
        ecc=ecc or EccType.MEM_UNCORRECTED,
        amount=section.scalar("amount", whole, "a whole number", 1),
        every_s=_optional(section, "every", duration, DURATION_FORM),
    )
    return None if kind is None else spec


def _choice(section: Section, name: str, choices: list[Choice], default: Choice | None) -> Choice | None:
    item = section.need(name) if default is None else section.get(name)
    if item is None:
        return default
    text = item.scalar(str, f"one of {', '.join(choices)}", "")
    for choice in choices:
        if choice == text:
            return choice
    if text:
        item.wrong(f"no {name} {text!r}; {suggestion(text, choices)}")
    return None


def _optional(section: Section, name: str, convert: Callable[[str], T], form: str) -> T | None:
    item = section.get(name)
    if item is None:
        return None
    nothing: T | None = None
    return item.scalar(convert, form, nothing)


def _layout(instance: InstanceType, lnc: int) -> Layout:
    links = tuple(neighbours or () for neighbours in instance.connected_to)
    return Layout(instance.device_count, instance.cores_per_device(lnc), instance.device.memory_bytes, links)
