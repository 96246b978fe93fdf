"""Faults for people and scripts: rows of a list, a sentence, durations as they are typed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from neurontools.errors import UsageError
from neurontools.machine.faults.kinds import ECC, KINDS, EccType, FaultKind, Reach, Recovery
from neurontools.machine.faults.spec import Phase

if TYPE_CHECKING:
    from collections.abc import Sequence
    from enum import StrEnum

    from neurontools.machine.faults.spec import Fault

_DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)(ms|s|m|h|d|)", re.ASCII)
_UNITS_S = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_ENDLESS = "until cleared"


def seconds_of(text: str) -> float:
    """Return the seconds of a duration such as `10s`, `250ms`, `2m`, `1h`; a bare number is seconds.

    Raises:
        UsageError: it is none, or negative.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"not a duration: {text!r}", "write for example 10s, 250ms or 2m")
    return float(found[1]) * _UNITS_S[found[2]]


def kind_of(text: str) -> FaultKind:
    """Return the kind of a name.

    Raises:
        UsageError: there is none of that name.
    """
    return FaultKind(_known(text, FaultKind, "kind of fault", "`neurontools fault kinds` lists them"))


def ecc_of(text: str) -> EccType:
    """Return the type of memory errors of a name.

    Raises:
        UsageError: there is none of that name.
    """
    return EccType(_known(text, EccType, "type of memory errors", f"there are {', '.join(EccType)}"))


def public_json(fault: Fault) -> dict[str, Any]:
    """Return what `neurontools fault list --json` says of a fault; seconds, counts and ids, null for not given."""
    spec = fault.spec
    return {
        "id": fault.id,
        "kind": str(fault.kind),
        "state": str(fault.phase),
        "target": spec.target(),
        "device": spec.device,
        "core": spec.core,
        "to": spec.to,
        "pid": spec.pid,
        "tag": spec.tag,
        "after_s": spec.after_s,
        "after_executions": spec.after_executions,
        "count": spec.count,
        "hits": fault.hits,
        "left": fault.left,
        "duration_s": spec.duration_s,
        "factor": spec.factor if spec.kind is FaultKind.SLOW_CORE else None,
        "type": str(spec.ecc) if spec.kind is FaultKind.ECC else None,
        "amount": spec.amount if spec.kind is FaultKind.ECC else None,
        "every_s": spec.every_s,
        "broken_cores": list(fault.broken_cores),
        "held": [{"pid": pid, "core": core} for pid, core in fault.held],
    }


def table(faults: tuple[Fault, ...]) -> list[str]:
    """Return the lines of `neurontools fault list`."""
    rows = [("ID", "KIND", "TARGET", "STATE", "HITS", "LEFT")]
    rows += [
        (
            str(fault.id),
            name_of(fault),
            fault.spec.target(),
            str(fault.phase),
            str(fault.hits),
            _left(fault) if fault.phase in {Phase.WAITING, Phase.ARMED} else "-",
        )
        for fault in faults
    ]
    return _aligned(rows)


def kinds_table() -> list[str]:
    """Return the lines of `neurontools fault kinds`."""
    rows = [("KIND", "STATUS", "WHAT HAPPENS", "ENDS BY")]
    rows += [
        (str(kind), str(facts.status or "-"), facts.what, str(facts.recovery))
        for kind, facts in KINDS.items()
    ]
    types = [("ECC TYPE", "STATUS", "COUNTS", "ENDS BY")]
    types += [
        (
            str(ecc),
            str(facts.status or "-"),
            str(facts.counter),
            str(Recovery.RESET if facts.breaks else Recovery.NONE),
        )
        for ecc, facts in ECC.items()
    ]
    return [*_aligned(rows), "", *_aligned(types)]


def kinds_json() -> list[dict[str, Any]]:
    """Return what `neurontools fault kinds --json` says."""
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


def sentence(fault: Fault) -> str:
    """Return what an injected fault is going to do."""
    when = {
        Phase.WAITING: f"armed in {fault.spec.after_s:g} s",
        Phase.BROKEN: "has struck, the device needs a reset",
        Phase.OVER: "has struck",
    }.get(fault.phase, "armed")
    left = "" if fault.phase in {Phase.BROKEN, Phase.OVER} else f", {_left(fault)}"
    return f"fault {fault.id}: {name_of(fault)} on {fault.spec.target()}, {when}{left}"


def name_of(fault: Fault) -> str:
    """Return a fault's kind, with what belongs to it."""
    match fault.kind:
        case FaultKind.ECC:
            return f"{fault.kind} {fault.spec.ecc}"
        case FaultKind.SLOW_CORE:
            return f"{fault.kind} {fault.spec.factor:g}x"
    return str(fault.kind)


def _left(fault: Fault) -> str:
    if fault.left is None:
        return _ENDLESS
    what = {Reach.ALLOCATION: "allocation", Reach.DEVICE: "error"}.get(KINDS[fault.kind].reach, "execution")
    return f"{fault.left} {what}{'' if fault.left == 1 else 's'}"


def _known(text: str, names: type[StrEnum], what: str, otherwise: str) -> str:
    if text in list(names):
        return text
    from difflib import get_close_matches

    near = get_close_matches(text, map(str, names), n=1)
    raise UsageError(f"no {what} {text!r}", f"did you mean {near[0]!r}?" if near else otherwise)


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
