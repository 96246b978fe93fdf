"""The work of processes in a scenario file: curves for a whole run, phases that replace some of them, latencies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from neurontools.base.text import did_you_mean
from neurontools.config import types
from neurontools.config.reader import LIST, MismatchError
from neurontools.config.types import DURATION, NUMBER, PERCENT, POSITIVE_DURATION, SIZE, WORDS, Type
from neurontools.machine.snapshot import MemoryCategory
from neurontools.runtime.status import NrtStatus
from neurontools.scenario.curves import NOTHING, Constant, Curve, Noise, Pieces, Ramp, Scaled, Sine, Sum
from neurontools.scenario.model import Latency, Work

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.config.reader import Section, Value

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

_A_CURVE = "a value or a curve such as {curve: ramp, from: 0, to: 90, over: 60s}"
_A_PAIR = "a pair [time, value]"
_PHASE = types.number(expected="a part of a period, 0 to 1")
_P99_OF_P50 = 3.0
_Name = tuple[str, str]  # such as ("memory", "tensors") or ("utilization", "")

_RATE = types.number(expected="a number per second")


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


def _read_curves(section: Section) -> dict[_Name, Curve]:
    found: dict[_Name, Curve] = {}
    for name, curve in (("utilization", curve_of(PERCENT, 100.0)), ("executions", _RATE_CURVE)):
        if (value := section.get(name)) is not None:
            found[name, ""] = value.read(curve, NOTHING)
    for name, curves in _CURVE_MAPPINGS:
        found.update({(name, key): level for key, level in section.read(name, curves, {}).items()})
    for name, value in section.section("errors", "a mapping of NRT statuses") or ():
        try:
            status = _parse_status(name)
        except MismatchError as error:
            value.fail(error.message, error.hint)
        else:
            found["errors", str(status)] = value.read(_RATE_CURVE, NOTHING)
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


def curve_of(quantity: Type[float], greatest: float | None = None) -> Type[Curve]:
    """Return the type of a curve: a single value, or a mapping with `curve`.

    Args:
        quantity: the type of a level.
        greatest: the limit of the quantity.
    """

    def parse(value: Value) -> Curve:
        before = len(value.problems)
        curve = _curve(value, quantity)
        if len(value.problems) == before:
            _check_bounds(value, curve, greatest)
        return curve

    return Type(_A_CURVE, parse, NOTHING)


def read_latencies(value: Value | None) -> tuple[tuple[float, Latency], ...]:
    """Return the latency distributions of a value of the file: one, or a list of them with `from`."""
    if value is None:
        return ()
    if value.kind != LIST:
        return ((0.0, _latency(value.section("a mapping such as {p50: 12ms, p99: 40ms}"))),)
    found = []
    for item in value.items():
        section = item.section("a mapping such as {from: 5m, p50: 12ms, p99: 40ms}")
        found.append((section.read("from", DURATION, 0.0), _latency(section)))
    starts = [start_s for start_s, _ in found]
    if not starts or starts[0] != 0 or starts != sorted(set(starts)):
        value.fail("expected distributions in order of time, the first one from 0s")
    return tuple(found)


def _curve(value: Value, quantity: Type[float]) -> Curve:
    if value.is_scalar:
        return Constant(value.read(quantity, 0.0))
    section = value.section(_A_CURVE)
    kind = section.require("curve", _KIND)
    if kind is None:
        return NOTHING
    curve = _READERS[kind](section, quantity)
    section.finish()
    return curve


def _by_keys(
    make: Callable[..., Curve], levels: tuple[str, ...], times: tuple[str, ...] = ()
) -> Callable[[Section, Type[float]], Curve]:
    return lambda section, quantity: make(
        *(section.require(key, quantity) for key in levels),
        *(section.require(key, POSITIVE_DURATION) for key in times),
    )


def _sine(section: Section, quantity: Type[float]) -> Curve:
    low, high = section.require("low", quantity), section.require("high", quantity)
    phase = section.read("phase", _PHASE, 0.0)
    if low > high:
        section.value.fail("'low' is greater than 'high'")
    return Sine(low, high, section.require("period", POSITIVE_DURATION), phase)


def _steps(section: Section, quantity: Type[float]) -> Curve:
    steps = section.need("steps")
    pairs: list[tuple[float, float]] = []
    for item in [] if steps is None else steps.items("a list of pairs [time, value]"):
        pair = item.items(_A_PAIR)
        if len(pair) == 2:
            pairs.append((pair[0].read(DURATION, 0.0), pair[1].read(quantity, 0.0)))
        elif item.kind == LIST:
            item.fail_expected(_A_PAIR)
    every_s = section.read("every", DURATION, None)
    times = [time_s for time_s, _ in pairs]
    if steps is not None and (not times or times[0] != 0 or times != sorted(set(times))):
        steps.fail("expected steps in order of time, the first one at 0s")
        return NOTHING
    if every_s is not None and times and every_s <= times[-1]:
        section.value.fail("'every' must be later than the last step")
        return NOTHING
    if not pairs:
        return NOTHING
    ends = [*times[1:], times[-1] + 1.0 if every_s is None else every_s]
    pieces = [(end_s - time_s, Constant(level)) for (time_s, level), end_s in zip(pairs, ends, strict=True)]
    return Pieces(pieces, None if every_s is None else 0)


def _sum(section: Section, quantity: Type[float]) -> Curve:
    parts = section.need("of")
    items = [] if parts is None else parts.items("a list of curves")
    return Sum(tuple(_curve(item, quantity) for item in items)) if items else NOTHING


_READERS = {
    "constant": _by_keys(Constant, ("value",)),
    "ramp": _by_keys(Ramp, ("from", "to"), ("over",)),
    "sine": _sine,
    "steps": _steps,
    "noise": _by_keys(Noise, ("mean", "amplitude"), ("period",)),
    "sum": _sum,
}
_KIND = types.choice(_READERS, "curve")
_RATE_CURVE = curve_of(_RATE, _MAX_RATE)


def _curves(expected: str, keys: Sequence[str], curve: Type[Curve]) -> Type[dict[str, Curve]]:
    return types.record(dict, expected, {}, {str(key): (str(key), curve) for key in keys})


_MEMORY = curve_of(SIZE, MAX_BYTES)
_CURVE_MAPPINGS = (
    ("memory", _curves("a mapping of memory categories", DEVICE_CATEGORIES, _MEMORY)),
    ("host_memory", _curves("a mapping of memory categories", HOST_CATEGORIES, _MEMORY)),
    (
        "cpu",
        _curves(
            "a mapping such as {user: 120, system: 5}",
            ("user", "system"),
            curve_of(PERCENT, _MAX_CPU_PERCENT),
        ),
    ),
)


def _check_bounds(value: Value, curve: Curve, greatest: float | None) -> None:
    if curve.low < -1e-9 * max(1.0, curve.high):
        value.fail(f"falls to {curve.low:g}; the minimum is 0")
    if greatest is not None and curve.high > greatest * (1 + 1e-9):
        value.fail(f"rises to {curve.high:g}; the maximum is {greatest:g}")


def _latency(section: Section) -> Latency:
    before = len(section.value.problems)
    p50_s = section.require("p50", POSITIVE_DURATION)
    p99_s = section.read("p99", DURATION, p50_s * _P99_OF_P50)
    if p99_s < p50_s and len(section.value.problems) == before:
        section.value.fail("'p99' is less than 'p50'")
    p99_s = max(p99_s, p50_s)
    share, factor = 0.0, 1.0
    tail = section.section("tail", "a mapping such as {share: 1%, factor: 10}")
    if tail is not None:
        share = tail.read("share", PERCENT, 0.0) / 100
        factor = tail.read("factor", NUMBER, 1.0)
        if share > 0.5 or factor < 1:
            tail.value.fail("expected a share of at most 50% and a factor of at least 1")
            share, factor = 0.0, 1.0
        tail.finish()
    section.finish()
    return Latency(p50_s, p99_s, share, factor)
