"""What `neuron-cache verify` found and did, as text and JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neurontools.cache.tables import below, counted, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.cache.repairing import Repair
    from neurontools.cache.verify import Finding


def findings_text(
    root: str, checked: int, findings: Sequence[Finding], in_quarantine: int, width: int | None = None
) -> str:
    """Return what is wrong, one line each and no wider than a terminal's columns, and how much was checked."""
    rows = [(finding.problem.value, finding.words, below(finding.path, root, width)) for finding in findings]
    lines = [table(("PROBLEM", "WHAT", "PATH"), rows, "<<<", width=width, spare=(0,))] if rows else []
    number = counted(len(rows), "problem", "problems")
    lines.append(f"{counted(checked, 'entry', 'entries')} checked in {root}, {number}")
    if in_quarantine:
        lines.append(f"{in_quarantine} in quarantine; 'neuron-cache clean' empties it")
    return "\n".join(lines)


def repairs_text(repairs: Sequence[Repair]) -> str:
    """Return what was done, one line each."""
    return "\n".join(f"{repair.words}: {repair.path}" for repair in repairs)


def verify_json(
    root: str, checked: int, findings: Sequence[Finding], repairs: Sequence[Repair], in_quarantine: int
) -> dict[str, Any]:
    """Return the JSON form of findings and repairs."""
    return {
        "root": root,
        "checked": checked,
        "problems": [
            {"path": finding.path, "problem": finding.problem.value, "what": finding.words}
            for finding in findings
        ],
        "repairs": [{"path": repair.path, "done": repair.done, "what": repair.words} for repair in repairs],
        "quarantine": in_quarantine,
    }
