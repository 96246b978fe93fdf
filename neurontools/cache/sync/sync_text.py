"""What a sync would do or did, as text and JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neurontools.cache.quantities import format_size, format_size_both
from neurontools.cache.sync.moving import Fate
from neurontools.cache.tables import counted, plain, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.cache.entries import Entry
    from neurontools.cache.pruning.removal import Removal
    from neurontools.cache.pruning.rules import Plan
    from neurontools.cache.sync.moving import SyncResult
    from neurontools.cache.sync.sync_plan import SyncPlan


def sync_plan_text(plan: SyncPlan) -> str:
    """Return each entry that would be moved, with size and state, and the total."""
    rows = [(format_size(entry.size_bytes), entry.state.value, entry.path) for entry in plan.move]
    lines = [table(None, rows, "><<")] if rows else []
    number = counted(len(rows), "entry", "entries")
    lines.append(f"{number} to move, {format_size_both(plan.move_bytes)}, to {plan.target}{_there(plan)}")
    return "\n".join(lines)


def left_out_rows(plan: SyncPlan, result: SyncResult | None) -> list[tuple[str, str]]:
    """Return path and reason of what is not moved although it was chosen."""
    rows = [(item.path, item.reason) for item in plan.left_out]
    for fate in (Fate.LEFT_OUT, Fate.FAILED) if result is not None else ():
        rows += [(outcome.entry.path, outcome.reason) for outcome in result.of(fate)] if result else []
    return rows


def sync_text(plan: SyncPlan, result: SyncResult) -> str:
    """Return what was moved in the end."""
    moved = result.of(Fate.MOVED)
    size = format_size_both(sum(outcome.entry.size_bytes for outcome in moved))
    text = f"{counted(len(moved), 'entry', 'entries')} moved, {size}, to {plan.target}{_there(plan, result)}"
    failed = result.of(Fate.FAILED)
    return f"{text}; {len(failed)} failed" if failed else text


def stopped_text(plan: SyncPlan, result: SyncResult) -> str:
    """Return how far a sync came that could not go on."""
    rest = len(plan.move) - len(result.outcomes)
    moved = len(result.of(Fate.MOVED))
    return (
        f"stopped after {counted(moved, 'entry', 'entries')}, {rest} left; run it again to go on from there"
    )


def sync_json(
    plan: SyncPlan, result: SyncResult | None, deletion: Plan | None, removal: Removal | None
) -> dict[str, Any]:
    """Return the JSON form of a plan (`result` None) or of what came of it."""
    moved = plan.move if result is None else [outcome.entry for outcome in result.of(Fate.MOVED)]
    present = [*plan.present, *(() if result is None else (item.entry for item in result.of(Fate.PRESENT)))]
    stopped = None if result is None else result.stopped
    return {
        "from": plan.source,
        "to": plan.target,
        "dry_run": result is None,
        "moved": _entries(moved),
        "moved_bytes": sum(entry.size_bytes for entry in moved),
        "present": [entry.path for entry in present],
        "left_out": [{"path": plain(path), "reason": reason} for path, reason in left_out_rows(plan, result)],
        "failed": 0 if result is None else len(result.of(Fate.FAILED)),
        "removed": _removed(deletion, removal),
        "spared": _spared(deletion, removal),
        "stopped": None if stopped is None else stopped.message,
    }


def _there(plan: SyncPlan, result: SyncResult | None = None) -> str:
    number = len(plan.present) + (0 if result is None else len(result.of(Fate.PRESENT)))
    return f"; {counted(number, 'was', 'were')} there" if number else ""


def _entries(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    return [
        {"path": entry.path, "state": entry.state.value, "size_bytes": entry.size_bytes} for entry in entries
    ]


def _removed(deletion: Plan | None, removal: Removal | None) -> list[dict[str, Any]]:
    chosen = deletion.remove if removal is None and deletion is not None else ()
    return _entries([choice.entry for choice in (chosen if removal is None else removal.removed)])


def _spared(deletion: Plan | None, removal: Removal | None) -> list[dict[str, str]]:
    chosen = [*(deletion.spare if deletion is not None else ()), *(removal.spared if removal else ())]
    return [{"path": choice.entry.path, "reason": choice.reason} for choice in chosen]
