"""The plan and the result of a sync as text and JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neurontools.base.text import plural, printable, table
from neurontools.base.units import format_size, format_size_both
from neurontools.cache.sync.runner import SyncOutcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.cache.entries import Entry
    from neurontools.cache.pruning.removal import Removal
    from neurontools.cache.pruning.rules import PrunePlan
    from neurontools.cache.sync.plan import SyncPlan
    from neurontools.cache.sync.runner import SyncResult


def format_plan(plan: SyncPlan) -> str:
    """Return the entries to copy, with size and state, and the total."""
    rows = [(format_size(entry.size_bytes), entry.state.value, entry.path) for entry in plan.move]
    lines = [table(None, rows, "><<")] if rows else []
    number = plural(len(rows), "entry", "entries")
    lines.append(f"{number} to copy, {format_size_both(plan.move_bytes)}, to {plan.target}{_present(plan)}")
    return "\n".join(lines)


def left_out_rows(plan: SyncPlan, result: SyncResult | None) -> list[tuple[str, str]]:
    """Return path and reason of the selected entries that are not moved."""
    rows = [(item.path, item.reason) for item in plan.left_out]
    for outcome in (SyncOutcome.LEFT_OUT, SyncOutcome.FAILED) if result is not None else ():
        rows += [(item.entry.path, item.reason) for item in result.select(outcome)] if result else []
    return rows


def format_result(plan: SyncPlan, result: SyncResult) -> str:
    """Return what was moved."""
    moved = result.select(SyncOutcome.MOVED)
    size = format_size_both(sum(item.entry.size_bytes for item in moved))
    text = (
        f"{plural(len(moved), 'entry', 'entries')} copied, {size}, to {plan.target}{_present(plan, result)}"
    )
    failed = result.select(SyncOutcome.FAILED)
    return f"{text}; {len(failed)} failed" if failed else text


def format_stopped(plan: SyncPlan, result: SyncResult) -> str:
    """Return how far a sync came that ended early."""
    remaining = len(plan.move) - len(result.synced)
    moved = plural(len(result.select(SyncOutcome.MOVED)), "entry", "entries")
    return f"stopped after {moved}, {remaining} left; run the command again to continue"


def sync_json(
    plan: SyncPlan, result: SyncResult | None, deletion: PrunePlan | None, removal: Removal | None
) -> dict[str, Any]:
    """Return the JSON form of a plan (`result` None) or of its result."""

    def select(outcome: SyncOutcome) -> list[Entry]:
        return [] if result is None else [item.entry for item in result.select(outcome)]

    moved = plan.move if result is None else select(SyncOutcome.MOVED)
    present = [*plan.present, *select(SyncOutcome.PRESENT)]
    stopped = None if result is None else result.stopped
    planned = () if deletion is None else deletion.remove
    removed = planned if removal is None else removal.removed
    spared = [*(deletion.spare if deletion is not None else ()), *(removal.spared if removal else ())]
    return {
        "from": plan.source,
        "to": plan.target,
        "dry_run": result is None,
        "moved": _entries(moved),
        "moved_bytes": sum(entry.size_bytes for entry in moved),
        "present": [entry.path for entry in present],
        "left_out": [
            {"path": printable(path), "reason": reason} for path, reason in left_out_rows(plan, result)
        ],
        "failed": len(select(SyncOutcome.FAILED)),
        "removed": _entries([choice.entry for choice in removed]),
        "spared": [{"path": choice.entry.path, "reason": choice.reason} for choice in spared],
        "stopped": None if stopped is None else stopped.message,
    }


def _present(plan: SyncPlan, result: SyncResult | None = None) -> str:
    number = len(plan.present) + (0 if result is None else len(result.select(SyncOutcome.PRESENT)))
    return f"; {number} already there" if number else ""


def _entries(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    return [
        {"path": entry.path, "state": entry.state.value, "size_bytes": entry.size_bytes} for entry in entries
    ]
