"""Planning a removal, carrying it out, and reporting it as text and JSON."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from neurontools.base.text import plural, printable, table
from neurontools.base.units import format_age, format_size, format_size_both
from neurontools.cache.entries import EntryReader, Scan
from neurontools.cache.layouts import display_path
from neurontools.cache.location import LAST_USE_NOTE, is_network_root, is_remote
from neurontools.cache.locks import in_use_checker
from neurontools.cache.pruning.removal import (
    Orphan,
    Removal,
    break_locks,
    find_orphans,
    remove_entries,
    remove_orphan,
)
from neurontools.cache.pruning.rule_options import RULES
from neurontools.cache.pruning.rules import PrunePlan, PruneRules, make_plan
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.cache.locks import LockState
    from neurontools.cache.pruning.rules import PruneDecision
    from neurontools.cache.walk import EntryRef

MOST_ASKED = 20


@dataclass(frozen=True, slots=True)
class Pruning:
    """A planned removal from a root; `orphans` are leftovers of killed removals and copies."""

    plan: PrunePlan
    rules: PruneRules
    locks: tuple[LockState, ...]
    stale_s: float
    network: bool
    orphans: tuple[Orphan, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is removed."""
        return not self.plan.remove and not self.locks and not self.orphans

    def removed_orphans(self) -> tuple[Orphan, ...]:
        """Return the orphans that are gone; others may be in use again."""
        return tuple(item for item in self.orphans if not os.path.lexists(item.path))

    def carry_out(
        self, progress: Callable[[int, int], None] | None = None
    ) -> tuple[Removal, tuple[LockState, ...]]:
        """Carry out the removal and return its result.

        Args:
            progress: called periodically with the number of finished entries and the total.

        Raises:
            NeuronToolsError: the root cannot be written to.
        """
        for item in self.orphans:
            remove_orphan(self.plan.root, item.path)
        # Locks come last: without its dead lock, an entry would be in another state than when it was selected.
        removal = self._remove_entries(progress) if self.plan.remove else Removal((), ())
        return removal, break_any_locks(self.plan.root, self.locks, self.stale_s) if self.locks else ()

    def _remove_entries(self, progress: Callable[[int, int], None] | None) -> Removal:
        if is_remote(self.plan.root):
            from neurontools.cache.remote.store import remove_from_bucket

            return remove_from_bucket(self.plan, self.rules, progress)
        return remove_entries(self.plan, self.rules, network=self.network, progress=progress)


def break_any_locks(root: str, locks: tuple[LockState, ...], age_s: float) -> tuple[LockState, ...]:
    """Remove locks of a directory or bucket that are still stale; return those removed.

    Raises:
        NeuronToolsError: the root cannot be written to.
    """
    if is_remote(root):
        from neurontools.cache.remote.store import break_bucket_locks

        return break_bucket_locks(root, locks, age_s)
    return break_locks(root, locks, age_s)


def scan_only(root: str, places: Sequence[EntryRef]) -> Scan:
    """Return the content of a root with only some of its entries."""
    reader = EntryReader(root)
    read = (reader.read(place, details=False) for place in places)
    return Scan(root, exists=True, entries=tuple(entry for entry in read if entry is not None), skipped=0)


def prepare_pruning(found: Scan, rules: PruneRules, break_stale_s: float | None = None) -> Pruning:
    """Return the removal that rules select, and of orphans unless the rules name entries; nothing is changed.

    Args:
        found: the root's content.
        rules: which entries to remove.
        break_stale_s: also remove locks of dead owners, and unnamed ones older than this; None for no locks.

    Raises:
        UsageError: no rule is given.
    """
    if rules.is_empty and break_stale_s is None:
        raise UsageError(
            "no rule given",
            f"add {', '.join(rule.flag for rule in RULES)}, --locks or --policy",
        )
    network = is_network_root(found.root)
    plan = make_plan(found, rules, time.time(), in_use_checker(found.root), network=network)
    return Pruning(
        plan=plan,
        rules=rules,
        locks=() if break_stale_s is None else breakable_locks(_remaining(found, plan), break_stale_s),
        stale_s=break_stale_s or 0.0,
        network=network,
        orphans=() if rules.named else find_orphans(found.root),
    )


def breakable_locks(content: Scan, age_s: float) -> tuple[LockState, ...]:
    """Return the locks of dead owners, and unnamed locks older than an age."""
    locks = (entry.lock for entry in content.entries)
    return tuple(lock for lock in locks if lock is not None and lock.is_stale(age_s))


def _remaining(found: Scan, plan: PrunePlan) -> Scan:
    """Return the content of a root without the entries to remove, whose locks go with them."""
    going = {choice.entry.path for choice in plan.remove}
    return replace(found, entries=tuple(entry for entry in found.entries if entry.path not in going))


def format_plan(
    plan: PrunePlan,
    locks: Sequence[LockState] = (),
    orphans: Sequence[Orphan] = (),
    *,
    most: int | None = None,
    width: int | None = None,
) -> str:
    """Return the plan as text: each path with size and reason, spared entries, totals.

    Args:
        plan: the entries to remove and to keep.
        locks: the locks to remove.
        orphans: the leftovers of killed processes to remove.
        most: the largest number of paths to show, None for all.
        width: of the terminal; None for lines of any length.
    """
    lines = []
    if plan.remove:
        lines.append(_format_decisions(plan.root, plan.remove[:most], width))
        if most is not None and len(plan.remove) > most:
            lines.append(f"... and {len(plan.remove) - most} more; --dry-run lists all")
    lines += [_lock_line(lock) for lock in locks]
    lines += [_orphan_line(item) for item in orphans]
    if plan.spare:
        lines += ["spared:", _format_decisions(plan.root, plan.spare[:most], width)]
        if most is not None and len(plan.spare) > most:
            lines.append(f"... and {len(plan.spare) - most} more")
    if is_remote(plan.root):
        lines.append(LAST_USE_NOTE)
    where = "" if width is None else f" in {plan.root}"
    before, freed = plan.total_bytes, plan.freed_bytes
    lines.append(
        f"{plural(len(plan.remove), 'entry', 'entries')} to remove, {format_size_both(freed)} "
        f"of {format_size_both(before)}{where}"
    )
    return "\n".join(lines)


def removal_question(plan: PrunePlan, locks: Sequence[LockState], orphans: Sequence[Orphan] = ()) -> str:
    """Return the question that confirms a removal."""
    parts = []
    if plan.remove:
        parts.append(f"{plural(len(plan.remove), 'entry', 'entries')}, {format_size(plan.freed_bytes)}")
    if locks:
        parts.append(plural(len(locks), "stale lock", "stale locks"))
    if orphans:
        size_bytes = sum(item.size_bytes for item in orphans)
        parts.append(f"{plural(len(orphans), 'leftover', 'leftovers')}, {format_size(size_bytes)}")
    return f"Remove {' and '.join(parts)}?"


def plan_json(
    plan: PrunePlan, removal: Removal | None, locks: Sequence[LockState], orphans: Sequence[Orphan] = ()
) -> dict[str, Any]:
    """Return the JSON form of a plan (`removal` None) or of its result."""
    remove = plan.remove if removal is None else removal.removed
    spare = plan.spare if removal is None else (*plan.spare, *removal.spared)
    return {
        "root": plan.root,
        "dry_run": removal is None,
        "removed": [_decision_json(choice) for choice in remove],
        "spared": [_decision_json(choice) for choice in spare],
        "locks": [_lock_json(lock) for lock in locks],
        "leftovers": [
            {"path": item.path, "size_bytes": item.size_bytes, "reason": item.words} for item in orphans
        ],
        "freed_bytes": sum(choice.entry.size_bytes for choice in remove),
        "total_bytes": plan.total_bytes,
    }


def format_removal(
    removal: Removal,
    locks: Sequence[LockState] = (),
    orphans: Sequence[Orphan] = (),
    *,
    root: str = "",
    width: int | None = None,
) -> str:
    """Return the result of a removal as text."""
    lines = [_lock_line(lock) for lock in locks] + [_orphan_line(item) for item in orphans]
    if removal.spared:
        lines += ["spared:", _format_decisions(root, removal.spared, width)]
    lines.append(
        f"{plural(len(removal.removed), 'entry', 'entries')} removed, "
        f"{format_size_both(removal.freed_bytes)} freed"
    )
    return "\n".join(lines)


def format_stale_locks(locks: Sequence[LockState]) -> str:
    """Return one line per stale lock."""
    return "\n".join(_lock_line(lock) for lock in locks)


def locks_removed_json(root: str, locks: Sequence[LockState], *, dry_run: bool) -> dict[str, Any]:
    """Return the JSON form of removed (or removable) locks."""
    return {"root": root, "dry_run": dry_run, "locks": [_lock_json(lock) for lock in locks]}


def _format_decisions(root: str, choices: Sequence[PruneDecision], width: int | None) -> str:
    rows = [
        (format_size(choice.entry.size_bytes), display_path(choice.entry.path, root, width), choice.reason)
        for choice in choices
    ]
    return table(None, rows, "><<", width=width)


def _decision_json(choice: PruneDecision) -> dict[str, Any]:
    return {
        "path": choice.entry.path,
        "state": choice.entry.state.value,
        "size_bytes": choice.entry.size_bytes,
        "used_unix_s": choice.entry.used_unix_s,
        "reason": choice.reason,
    }


def _orphan_line(item: Orphan) -> str:
    return printable(f"{item.words}: {item.path}, {format_size(item.size_bytes)}")


def _lock_json(lock: LockState) -> dict[str, Any]:
    return {"path": lock.path, "age_s": lock.age_s, "holder": lock.holder}


def _lock_line(lock: LockState) -> str:
    return printable(f"lock {lock.path} of {lock.holder}, {format_age(lock.age_s)} old")
