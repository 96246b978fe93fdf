"""What is or would be removed, as text and JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neurontools.cache.quantities import format_duration, format_size, format_size_both
from neurontools.cache.tables import counted, plain, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.cache.prune import Choice, Plan
    from neurontools.cache.removal import BrokenLock, Removal


def plan_text(plan: Plan, locks: Sequence[BrokenLock] = ()) -> str:
    """Return each path that would be removed with size and reason, what is spared, and the total."""
    lines = []
    if plan.remove:
        lines.append(_choices(plan.remove))
    lines += [_lock_line(lock) for lock in locks]
    if plan.spare:
        lines += ["spared:", _choices(plan.spare)]
    before, freed = plan.total_bytes, plan.freed_bytes
    lines.append(
        f"{counted(len(plan.remove), 'entry', 'entries')} to remove, {format_size_both(freed)} "
        f"of {format_size_both(before)}"
    )
    return "\n".join(lines)


def plan_json(plan: Plan, removal: Removal | None, locks: Sequence[BrokenLock]) -> dict[str, Any]:
    """Return the JSON form of a plan (`removal` None) or of what came of it."""
    remove = plan.remove if removal is None else removal.removed
    spare = plan.spare if removal is None else (*plan.spare, *removal.spared)
    return {
        "root": plan.root,
        "dry_run": removal is None,
        "removed": [_choice_json(choice) for choice in remove],
        "spared": [_choice_json(choice) for choice in spare],
        "locks": [{"path": lock.path, "age_s": lock.age_s, "holder": lock.holder} for lock in locks],
        "freed_bytes": sum(choice.entry.size_bytes for choice in remove),
        "total_bytes": plan.total_bytes,
    }


def removal_text(removal: Removal, locks: Sequence[BrokenLock] = ()) -> str:
    """Return what was removed in the end."""
    lines = [_lock_line(lock) for lock in locks]
    if removal.spared:
        lines += ["spared:", _choices(removal.spared)]
    lines.append(
        f"{counted(len(removal.removed), 'entry', 'entries')} removed, "
        f"{format_size_both(removal.freed_bytes)} freed"
    )
    return "\n".join(lines)


def _choices(choices: Sequence[Choice]) -> str:
    rows = [(format_size(choice.entry.size_bytes), choice.entry.path, choice.reason) for choice in choices]
    return table(None, rows, "><<")


def _choice_json(choice: Choice) -> dict[str, Any]:
    return {
        "path": choice.entry.path,
        "state": choice.entry.state.value,
        "size_bytes": choice.entry.size_bytes,
        "used_unix_s": choice.entry.used_unix_s,
        "reason": choice.reason,
    }


def _lock_line(lock: BrokenLock) -> str:
    return f"lock {lock.path} of {plain(lock.holder)}, {format_duration(lock.age_s)} old"
