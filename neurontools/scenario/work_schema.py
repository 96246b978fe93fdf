"""What processes do over time, as a scenario writes it: curves for a whole life, and phases that replace some of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from neurontools.machine.memory import MemoryCategory
from neurontools.runtime.status import NrtStatus
from neurontools.scenario.curve_schema import curve_of
from neurontools.scenario.curves import NOTHING, Curve, Pieces, Scaled
from neurontools.scenario.model import Work
from neurontools.scenario.problems import suggestion
from neurontools.scenario.quantities import (
    DURATION_FORM,
    PERCENT_FORM,
    SIZE_FORM,
    duration,
    number,
    percent,
    size,
    status,
)

if TYPE_CHECKING:
    from neurontools.scenario.latency import Latency
    from neurontools.scenario.nodes import Item, Section

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
RATE_FORM = "a number per second"
MOST_BYTES = float(2**50)
_MOST_A_SECOND = 1e6
_MOST_CPU_PERCENT = 1e5

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


def work_of(section: Section, latencies: tuple[tuple[float, Latency], ...]) -> WorkPlan:
    """Return the work that a group of the file describes.

    Without `executions` their rate follows from utilization and the first mean latency.
    """
    base = _curves(section)
    phases, repeat_from = _phases(section)
    if phases:
        base = _with_phases(base, phases, repeat_from)
    executions = base.get(("executions", ""))
    utilization = base.get(("utilization", ""), NOTHING)
    if executions is None and latencies:
        executions = Scaled(utilization, 1 / (100 * latencies[0][1].mean_s))
    mfu = section.scalar("mfu", percent, PERCENT_FORM, 0.0)
    if mfu > 100:
        section.item.wrong(f"'mfu' is {mfu:g}; the greatest is 100")
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


def _curves(section: Section) -> dict[_Name, Curve]:
    found: dict[_Name, Curve] = {}
    for name, convert, form, greatest in (
        ("utilization", percent, PERCENT_FORM, 100.0),
        ("executions", number, RATE_FORM, _MOST_A_SECOND),
    ):
        item = section.get(name)
        if item is not None:
            found[name, ""] = curve_of(item, convert, form, greatest)
    for name, categories in (("memory", DEVICE_CATEGORIES), ("host_memory", HOST_CATEGORIES)):
        for key, item in _keys(section, name, "a mapping of memory categories", categories):
            found[name, key] = curve_of(item, size, SIZE_FORM, MOST_BYTES)
    for key, item in _keys(section, "cpu", "a mapping such as {user: 120, system: 5}", ("user", "system")):
        found["cpu", key] = curve_of(item, percent, PERCENT_FORM, _MOST_CPU_PERCENT)
    errors = section.get("errors")
    if errors is not None:
        for key, item in errors.section("a mapping of NRT statuses").all().items():
            found["errors", str(_status(key, item))] = curve_of(item, number, RATE_FORM, _MOST_A_SECOND)
    return found


def _keys(section: Section, name: str, form: str, known: tuple[str, ...]) -> list[tuple[str, Item]]:
    item = section.get(name)
    if item is None:
        return []
    inner = item.section(form)
    found = [(str(key), value) for key in known if (value := inner.get(key)) is not None]
    inner.finish()
    return found


def _status(name: str, item: Item) -> int:
    try:
        return status(name)
    except ValueError:
        known = [each.name for each in NrtStatus if each]
        item.wrong(f"no NRT status {name!r}; {suggestion(name.upper(), known)}")
        return 1


def _phases(section: Section) -> tuple[list[_Phase], int | None]:
    listed = section.get("phases")
    repeat = section.get("repeat_from")
    phases = []
    for item in [] if listed is None else listed.items("a list of phases"):
        inner = item.section("a mapping such as {name: train, for: 5m, utilization: 90}")
        name = inner.scalar("name", str, "a name", "")
        if not name:
            item.wrong("'name' is missing")
        length = inner.need("for")
        length_s = 1.0 if length is None else length.scalar(duration, DURATION_FORM, 1.0)
        if length is not None and length_s <= 0:
            length.wrong(f"expected {DURATION_FORM}, longer than 0")
            length_s = 1.0
        phases.append(_Phase(name, length_s, _curves(inner)))
        inner.finish()
    if repeat is None:
        return phases, None
    names = [phase.name for phase in phases]
    wanted = repeat.scalar(str, "the name of a phase", "")
    if wanted not in names:
        repeat.wrong(f"no phase {wanted!r}; {suggestion(wanted, names) if names else 'there are none'}")
        return phases, None
    return phases, names.index(wanted)


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
