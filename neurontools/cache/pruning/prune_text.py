"""What is or would be removed, as text and JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neurontools.cache.quantities import format_duration, format_size, format_size_both
from neurontools.cache.remote.url import LAST_USE_NOTE, is_remote
from neurontools.cache.tables import below, counted, plain, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.cache.leftovers import Leftover
    from neurontools.cache.pruning.removal import BrokenLock, Removal
    from neurontools.cache.pruning.rules import Choice, Plan


MOST_ASKED = 20


def plan_text(
    plan: Plan,
    locks: Sequence[BrokenLock] = (),
    left: Sequence[Leftover] = (),
    *,
    most: int | None = None,
    width: int | None = None,
) -> str:
    """Return each path that would be removed with size and reason, what is spared, and the total.

    Args:
        plan: what goes and what stays.
        locks: what goes, too.
        left: what killed processes left, which goes, too.
        most: show so many paths at most, all for None.
        width: the terminal's columns; None where lines may have any length.
    """
    lines = []
    if plan.remove:
        lines.append(_choices(plan.root, plan.remove[:most], width))
        if most is not None and len(plan.remove) > most:
            lines.append(f"... and {len(plan.remove) - most} more; --dry-run lists all")
    lines += [_lock_line(lock) for lock in locks]
    lines += [_left_line(item) for item in left]
    if plan.spare:
        lines += ["spared:", _choices(plan.root, plan.spare[:most], width)]
        if most is not None and len(plan.spare) > most:
            lines.append(f"... and {len(plan.spare) - most} more")
    if is_remote(plan.root):
        lines.append(LAST_USE_NOTE)
    where = "" if width is None else f" in {plan.root}"
    before, freed = plan.total_bytes, plan.freed_bytes
    lines.append(
        f"{counted(len(plan.remove), 'entry', 'entries')} to remove, {format_size_both(freed)} "
        f"of {format_size_both(before)}{where}"
    )
    return "\n".join(lines)


def question(plan: Plan, locks: Sequence[BrokenLock], left: Sequence[Leftover] = ()) -> str:
    """Return the question before a removal, which says what goes."""
    parts = []
    if plan.remove:
        parts.append(f"{counted(len(plan.remove), 'entry', 'entries')}, {format_size(plan.freed_bytes)}")
    if locks:
        parts.append(counted(len(locks), "stale lock", "stale locks"))
    if left:
        size_bytes = sum(item.size_bytes for item in left)
        parts.append(f"{counted(len(left), 'leftover', 'leftovers')}, {format_size(size_bytes)}")
    return f"Remove {' and '.join(parts)}?"


def plan_json(
    plan: Plan, removal: Removal | None, locks: Sequence[BrokenLock], left: Sequence[Leftover] = ()
) -> dict[str, Any]:
    """Return the JSON form of a plan (`removal` None) or of what came of it."""
    remove = plan.remove if removal is None else removal.removed
    spare = plan.spare if removal is None else (*plan.spare, *removal.spared)
    return {
        "root": plan.root,
        "dry_run": removal is None,
        "removed": [_choice_json(choice) for choice in remove],
        "spared": [_choice_json(choice) for choice in spare],
        "locks": [_lock_json(lock) for lock in locks],
        "leftovers": [
            {"path": item.path, "size_bytes": item.size_bytes, "reason": item.words} for item in left
        ],
        "freed_bytes": sum(choice.entry.size_bytes for choice in remove),
        "total_bytes": plan.total_bytes,
    }


def removal_text(
    removal: Removal,
    locks: Sequence[BrokenLock] = (),
    left: Sequence[Leftover] = (),
    *,
    root: str = "",
    width: int | None = None,
) -> str:
    """Return what was removed from a root in the end, no wider than a terminal's columns."""
    lines = [_lock_line(lock) for lock in locks] + [_left_line(item) for item in left]
    if removal.spared:
        lines += ["spared:", _choices(root, removal.spared, width)]
    lines.append(
        f"{counted(len(removal.removed), 'entry', 'entries')} removed, "
        f"{format_size_both(removal.freed_bytes)} freed"
    )
    return "\n".join(lines)


def locks_lines(locks: Sequence[BrokenLock]) -> str:
    """Return one line per lock that goes."""
    return "\n".join(_lock_line(lock) for lock in locks)


def locks_removed_json(root: str, locks: Sequence[BrokenLock], *, dry_run: bool) -> dict[str, Any]:
    """Return the JSON form of locks that were removed, or would be."""
    return {"root": root, "dry_run": dry_run, "locks": [_lock_json(lock) for lock in locks]}


def _lock_json(lock: BrokenLock) -> dict[str, Any]:
    return {"path": lock.path, "age_s": lock.age_s, "holder": lock.holder}


def _choices(root: str, choices: Sequence[Choice], width: int | None) -> str:
    rows = [
        (format_size(choice.entry.size_bytes), below(choice.entry.path, root, width), choice.reason)
        for choice in choices
    ]
    return table(None, rows, "><<", width=width)


def _choice_json(choice: Choice) -> dict[str, Any]:
    return {
        "path": choice.entry.path,
        "state": choice.entry.state.value,
        "size_bytes": choice.entry.size_bytes,
        "used_unix_s": choice.entry.used_unix_s,
        "reason": choice.reason,
    }


def _left_line(item: Leftover) -> str:
    return f"{item.words}: {item.path}, {format_size(item.size_bytes)}"


def _lock_line(lock: BrokenLock) -> str:
    return f"lock {lock.path} of {plain(lock.holder)}, {format_duration(lock.age_s)} old"
