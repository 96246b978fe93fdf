"""The work of processes in a scenario file: curves for a whole run, and phases that replace some of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from neurontools.base.text import did_you_mean
from neurontools.config import types
from neurontools.config.reader import MismatchError
from neurontools.config.types import PERCENT, POSITIVE_DURATION, SIZE, WORDS
from neurontools.machine.memory import MemoryCategory
from neurontools.runtime.status import NrtStatus
from neurontools.scenario.curve_schema import read_curve
from neurontools.scenario.curves import NOTHING, Curve, Pieces, Scaled
from neurontools.scenario.model import Work

if TYPE_CHECKING:
    from neurontools.config.reader import Section
    from neurontools.scenario.latency import Latency

DEVICE_CATEGORIES = (
    MemoryCategory.CONSTANTS,
    MemoryCategory.MODEL_CODE,
    MemoryCategory.MODEL_SHARED_SCRATCHPAD,
    MemoryCategory.RUNTIME_MEMORY,
    MemoryCategory.TENSORS,
)
HOST_CATEGORIES = (
    MemoryCategory.APPLICATION_MEMORY,
    MemoryCategory.CONSTANTS,
    MemoryCategory.DMA_BUFFERS,
    MemoryCategory.TENSORS,
)
MAX_BYTES = float(2**50)
_MAX_RATE = 1e6
_MAX_CPU_PERCENT = 1e5

_CURVE_MAPPINGS = (
    ("memory", "a mapping of memory categories", DEVICE_CATEGORIES, SIZE, MAX_BYTES),
    ("host_memory", "a mapping of memory categories", HOST_CATEGORIES, SIZE, MAX_BYTES),
    ("cpu", "a mapping such as {user: 120, system: 5}", ("user", "system"), PERCENT, _MAX_CPU_PERCENT),
)

_Name = tuple[str, str]  # such as ("memory", "tensors") or ("utilization", "")


@dataclass(frozen=True, slots=True)
class WorkPlan:
    """The work of a group: `Work` with the names of its phases, and whether anything of it needs cores."""

    work: Work
    phases: tuple[str, ...] = ()
    needs_cores: bool = False


@dataclass(slots=True)
class _Phase:
    name: str
    length_s: float
    curves: dict[_Name, Curve] = field(default_factory=dict)


def read_work(section: Section, latencies: tuple[tuple[float, Latency], ...]) -> WorkPlan:
    """Return the work that a group of the file describes.

    Without `executions` their rate follows from utilization and the first mean latency.
    """
    base = _read_curves(section)
    phases, repeat_from = _read_phases(section)
    if phases:
        base = _with_phases(base, phases, repeat_from)
    executions = base.get(("executions", ""))
    utilization = base.get(("utilization", ""), NOTHING)
    if executions is None and latencies:
        executions = Scaled(utilization, 1 / (100 * latencies[0][1].mean_s))
    mfu = section.read("mfu", PERCENT, 0.0)
    if mfu > 100:
        section.fail("mfu", f"expected at most 100 percent, found {mfu:g}")
    work = Work(
        utilization=utilization,
        executions=executions or NOTHING,
        errors=tuple((int(number), curve) for number, curve in _named(base, "errors")),
        memory=_named(base, "memory"),
        host_memory=_named(base, "host_memory"),
        cpu_user=base.get(("cpu", "user"), NOTHING),
        cpu_system=base.get(("cpu", "system"), NOTHING),
        mfu=mfu / 100,
    )
    on_cores = {"utilization", "executions", "errors", "memory"}
    return WorkPlan(work, tuple(phase.name for phase in phases), any(name in on_cores for name, _ in base))


def _parse_status(text: str) -> int:
    name = text.upper()
    known = {status.name: int(status) for status in NrtStatus if status is not NrtStatus.NRT_SUCCESS}
    if text.isdecimal() and int(text) in known.values():
        return int(text)
    number = known.get(name if name.startswith("NRT_") else f"NRT_{name}")
    if number is None:
        raise MismatchError(f"unknown NRT status {text!r}", did_you_mean(name, known))
    return number


STATUS = types.scalar("an NRT status such as NRT_EXEC_BAD_INPUT", _parse_status, 1)
_RATE = types.number(expected="a number per second")


def _read_curves(section: Section) -> dict[_Name, Curve]:
    found: dict[_Name, Curve] = {}
    for name, quantity, greatest in (("utilization", PERCENT, 100.0), ("executions", _RATE, _MAX_RATE)):
        value = section.get(name)
        if value is not None:
            found[name, ""] = read_curve(value, quantity, greatest)
    for name, form, keys, quantity, greatest in _CURVE_MAPPINGS:
        inner = section.section(name, form)
        if inner is not None:
            for key in keys:
                if (value := inner.get(key)) is not None:
                    found[name, str(key)] = read_curve(value, quantity, greatest)
            inner.finish()
    for name, value in section.section("errors", "a mapping of NRT statuses") or ():
        try:
            status = _parse_status(name)
        except MismatchError as error:
            value.fail(error.message, error.hint)
        else:
            found["errors", str(status)] = read_curve(value, _RATE, _MAX_RATE)
    return found


def _read_phases(section: Section) -> tuple[list[_Phase], int | None]:
    phases = []
    for item in section.items("phases", "a list of phases"):
        phase = item.section("a mapping such as {name: train, for: 5m, utilization: 90}")
        name, length_s = phase.require("name", WORDS), phase.require("for", POSITIVE_DURATION)
        phases.append(_Phase(name, length_s, _read_curves(phase)))
        phase.finish()
    names = [phase.name for phase in phases]
    first = section.read("repeat_from", types.choice(names, "phase"), None)
    return phases, None if first is None else names.index(first)


def _with_phases(
    base: dict[_Name, Curve], phases: list[_Phase], repeat_from: int | None
) -> dict[_Name, Curve]:
    merged = dict(base)
    for name in dict.fromkeys(name for phase in phases for name in phase.curves):
        usual = base.get(name, NOTHING)
        merged[name] = Pieces(
            [(phase.length_s, phase.curves.get(name, usual)) for phase in phases], repeat_from
        )
    return merged


def _named(curves: dict[_Name, Curve], name: str) -> tuple[tuple[str, Curve], ...]:
    return tuple((key, curve) for (group, key), curve in curves.items() if group == name)
