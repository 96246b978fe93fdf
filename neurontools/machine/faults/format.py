"""Faults for people and scripts: table rows, a sentence, JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from neurontools.base.text import did_you_mean, plural, printable, suggest, table
from neurontools.base.units import format_duration
from neurontools.errors import UsageError
from neurontools.machine import codec
from neurontools.machine.faults.kinds import ECC, KINDS, EccType, FaultKind, Reach, Recovery
from neurontools.machine.faults.params import ONLY_FOR, Phase

if TYPE_CHECKING:
    from collections.abc import Iterable
    from enum import StrEnum

    from neurontools.machine.faults.params import Fault, FaultSpec
    from neurontools.machine.snapshot import ProcessState

Choice = TypeVar("Choice", bound="StrEnum")


def parse_kind(text: str) -> FaultKind:
    """Return the kind of a name.

    Raises:
        UsageError: there is no such kind.
    """
    return _parse_choice(text, FaultKind, "fault kind")


def parse_ecc_type(text: str) -> EccType:
    """Return the type of memory errors of a name.

    Raises:
        UsageError: there is no such type.
    """
    return _parse_choice(text, EccType, "type of memory errors")


def to_json(fault: Fault) -> dict[str, Any]:
    """Return the JSON form of `neurontools fault list --json`; seconds, counts and ids, null where not given."""
    params = {
        name: value if ONLY_FOR.get(name, fault.kind) == fault.kind else None
        for name, value in codec.to_builtins(fault.spec).items()
    }
    return {
        "id": fault.id,
        "kind": params.pop("kind"),
        "state": str(fault.phase),
        "target": fault.spec.target(),
        "type": params.pop("ecc"),
        **params,
        "hits": fault.hits,
        "left": fault.left,
        "broken_cores": list(fault.broken_cores),
        "held": [{"pid": pid, "core": core} for pid, core in fault.held],
    }


def fault_table(faults: tuple[Fault, ...], now_ns: int) -> str:
    """Return the text of `neurontools fault list`; `now_ns` is on the clock of the faults (CLOCK_MONOTONIC)."""
    rows = [
        (
            str(fault.id),
            format_kind(fault),
            fault.spec.target(),
            str(fault.phase),
            str(fault.hits),
            _remaining(fault, now_ns),
        )
        for fault in faults
    ]
    return table(("ID", "KIND", "TARGET", "STATE", "HITS", "LEFT"), rows, "<<<<<<")


def kind_tables() -> str:
    """Return the text of `neurontools fault kinds`."""
    kinds = [
        (str(kind), str(facts.status or "-"), facts.what, str(facts.recovery))
        for kind, facts in KINDS.items()
    ]
    types = [
        (
            str(ecc),
            str(facts.status or "-"),
            str(facts.counter),
            str(Recovery.RESET if facts.breaks else Recovery.NONE),
        )
        for ecc, facts in ECC.items()
    ]
    return "\n\n".join(
        [
            table(("KIND", "STATUS", "WHAT HAPPENS", "ENDS BY"), kinds, "<<<<"),
            table(("ECC TYPE", "STATUS", "COUNTS", "ENDS BY"), types, "<<<<"),
        ]
    )


def kinds_json() -> list[dict[str, Any]]:
    """Return the JSON form of `neurontools fault kinds --json`."""
    return [
        {
            "kind": str(kind),
            "what": facts.what,
            "target": str(facts.reach),
            "status": facts.status or None,
            "kernel": facts.kernel_word or None,
            "recovery": str(facts.recovery),
        }
        for kind, facts in KINDS.items()
    ]


def describe(fault: Fault) -> str:
    """Return one line about what an injected fault will do."""
    when = {
        Phase.WAITING: f"armed in {format_duration(fault.spec.after_s)}",
        Phase.BROKEN: "fired, the device needs a reset",
        Phase.OVER: "fired",
    }.get(fault.phase, "armed")
    limits = [] if fault.phase in {Phase.BROKEN, Phase.OVER} else _limits(fault)
    what = [f"{format_kind(fault)} on {printable(fault.spec.target())}", when, *limits]
    return f"fault {fault.id}: " + ", ".join(what)


def absent_target(spec: FaultSpec, processes: Iterable[ProcessState]) -> str:
    """Return the error in the process that a fault names; "" if the machine has it."""
    present = list(processes)
    if spec.tag is not None and all(process.tag != spec.tag for process in present):
        tags = sorted({process.tag for process in present if process.tag})
        match = suggest(spec.tag, tags) or next((tag for tag in tags if spec.tag in tag), None)
        remedy = f"; did you mean {match!r}?" if match else ""
        return f"no process has the tag {spec.tag!r} now{remedy}"
    if spec.pid is not None and all(process.pid != spec.pid for process in present):
        return f"no process with the pid {spec.pid} uses the machine now"
    return ""


def format_kind(fault: Fault) -> str:
    """Return a fault's kind, with its type of memory errors or its factor."""
    match fault.kind:
        case FaultKind.ECC:
            return f"{fault.kind} {fault.spec.ecc}"
        case FaultKind.SLOW_CORE:
            return f"{fault.kind} {fault.spec.factor:g}x"
    return str(fault.kind)


def _limits(fault: Fault) -> list[str]:
    """Return what ends an injected fault: `2 errors`, `for 5s`."""
    duration_s = fault.spec.duration_s
    limits = [_hits_left(fault), "" if duration_s is None else f"for {format_duration(duration_s)}"]
    return [limit for limit in limits if limit] or ["until cleared"]


def _remaining(fault: Fault, now_ns: int) -> str:
    """Return the remaining extent of a fault for the list: `2 errors`, `4.2s`."""
    if fault.phase not in {Phase.WAITING, Phase.ARMED}:
        return "-"
    limits = [_hits_left(fault)]
    if fault.end_ns is not None:
        left_s = max(0, fault.end_ns - max(now_ns, fault.due_ns)) / 1e9
        limits.append(format_duration(left_s) + (" once armed" if fault.phase is Phase.WAITING else ""))
    return ", ".join(limit for limit in limits if limit) or "until cleared"


def _hits_left(fault: Fault) -> str:
    if fault.left is None:
        return ""
    reach = KINDS[fault.kind].reach
    return plural(fault.left, {Reach.ALLOCATION: "allocation", Reach.DEVICE: "error"}.get(reach, "execution"))


def _parse_choice(text: str, choices: type[Choice], what: str) -> Choice:
    if text in list(choices):
        return choices(text)
    raise UsageError(f"unknown {what} {text!r}", did_you_mean(text, choices))
