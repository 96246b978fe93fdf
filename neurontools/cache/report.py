"""The texts and JSON values of `neuron-cache`: functions from values to words, which print nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neurontools.cache.quantities import format_duration, format_size, format_size_both

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.cache.entries import Entry, Scan
    from neurontools.cache.location import Location
    from neurontools.cache.prune import Choice, Plan
    from neurontools.cache.removal import BrokenLock, Removal
    from neurontools.cache.stats import Stats, Sum


def entries_text(scan: Scan, entries: Sequence[Entry], now: float) -> str:
    """Return the table of a scan's chosen entries, and a line with their number, their size and the root."""
    rows = [
        (
            entry.state.value,
            format_size(entry.size_bytes),
            format_duration(now - entry.made_unix_s),
            format_duration(now - entry.used_unix_s),
            str(entry.hits),
            entry.compiler,
            " ".join(entry.flags) or "-",
            entry.name or "-",
            entry.module,
        )
        for entry in entries
    ]
    head = ("STATE", "SIZE", "AGE", "USED", "HITS", "COMPILER", "FLAGS", "NAME", "MODULE")
    lines = [_table(head, rows, "<>>>><<<<")] if rows else []
    lines += [f"{entry.module}: {_plain(entry.note)}" for entry in entries if entry.note]
    total = sum(entry.size_bytes for entry in entries)
    counted = f"{_count(len(entries), 'entry', 'entries')}, {format_size_both(total)}"
    lines.append(f"{counted} in {scan.root}{_skipped(scan.skipped)}")
    return "\n".join(lines)


def entry_json(entry: Entry) -> dict[str, Any]:
    """Return an entry's JSON form: bytes and Unix seconds."""
    return {
        "path": entry.path,
        "module": entry.module,
        "compiler": entry.compiler,
        "state": entry.state.value,
        "size_bytes": entry.size_bytes,
        "made_unix_s": entry.made_unix_s,
        "used_unix_s": entry.used_unix_s,
        "hits": entry.hits,
        "flags": list(entry.flags),
        "name": entry.name,
        "note": entry.note,
    }


def stats_text(stats: Stats) -> str:
    """Return the sums by state and by compiler, and the hits."""
    head = ("STATE", "ENTRIES", "ACTIVE", "SIZE", "RECLAIMABLE")
    blocks = [_table(head, [_sum_row(group) for group in (*stats.states, stats.total)], "<>>>>")]
    if stats.compilers:
        head = ("COMPILER", *head[1:])
        blocks.append(_table(head, [_sum_row(group) for group in stats.compilers], "<>>>>"))
    blocks.append(_usage_text(stats) + _skipped(stats.skipped))
    return "\n\n".join(blocks)


def stats_json(stats: Stats) -> dict[str, Any]:
    """Return the JSON form of `stats_text`."""
    usage = stats.usage
    return {
        "root": stats.root,
        "states": [_sum_json(group) for group in stats.states],
        "compilers": [_sum_json(group) for group in stats.compilers],
        "total": _sum_json(stats.total),
        "skipped": stats.skipped,
        "usage": {
            "hits": usage.hits,
            "misses": usage.misses,
            "failures": usage.failures,
            "damaged": usage.damaged,
            "hit_share": usage.hit_share,
            "since_unix_s": usage.since_unix_s or None,
        },
    }


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
        f"{_count(len(plan.remove), 'entry', 'entries')} to remove, {format_size_both(freed)} "
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
        f"{_count(len(removal.removed), 'entry', 'entries')} removed, "
        f"{format_size_both(removal.freed_bytes)} freed"
    )
    return "\n".join(lines)


def location_text(location: Location) -> str:
    """Return the root and the settings that could have named it, the winner marked."""
    lines = [location.root]
    for candidate in location.candidates:
        mark = "*" if candidate.source == location.source else " "
        lines.append(f"{mark} {candidate.source:<31} {candidate.value or '(not set)'}")
    return "\n".join(lines)


def location_json(location: Location) -> dict[str, Any]:
    """Return the JSON form of `location_text`."""
    return {
        "root": location.root,
        "source": location.source,
        "candidates": [{"source": item.source, "value": item.value or None} for item in location.candidates],
    }


def _usage_text(stats: Stats) -> str:
    usage = stats.usage
    share = usage.hit_share
    if share is None:
        return "no lookups counted yet"
    from time import localtime, strftime

    since = strftime("%Y-%m-%d %H:%M", localtime(usage.since_unix_s))
    line = f"{_count(usage.hits, 'hit', 'hits')}, {_count(usage.misses, 'miss', 'misses')} ({share:.1%} hits)"
    if usage.failures:
        line += f", {_count(usage.failures, 'failed compile', 'failed compiles')}"
    if usage.damaged:
        line += f", {_count(usage.damaged, 'damaged neff', 'damaged neffs')}"
    return f"{line} by this user since {since}"


def _sum_row(group: Sum) -> tuple[str, ...]:
    share = group.reclaimable_bytes / group.size_bytes if group.size_bytes else 0.0
    return (
        group.name,
        str(group.count),
        str(group.active),
        format_size(group.size_bytes),
        f"{format_size(group.reclaimable_bytes)} ({share:.0%})",
    )


def _sum_json(group: Sum) -> dict[str, Any]:
    return {
        "name": str(group.name),
        "count": group.count,
        "active": group.active,
        "size_bytes": group.size_bytes,
        "reclaimable_bytes": group.reclaimable_bytes,
    }


def _choices(choices: Sequence[Choice]) -> str:
    rows = [(format_size(choice.entry.size_bytes), choice.entry.path, choice.reason) for choice in choices]
    return _table(None, rows, "><<")


def _choice_json(choice: Choice) -> dict[str, Any]:
    return {
        "path": choice.entry.path,
        "state": choice.entry.state.value,
        "size_bytes": choice.entry.size_bytes,
        "used_unix_s": choice.entry.used_unix_s,
        "reason": choice.reason,
    }


def _lock_line(lock: BrokenLock) -> str:
    return f"lock {lock.path} of {_plain(lock.holder)}, {format_duration(lock.age_s)} old"


def _skipped(number: int) -> str:
    return f"; {_count(number, 'name', 'names')} of another layout skipped" if number else ""


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _plain(text: str) -> str:
    """Return a text that cannot steer a terminal: flags, names and logs come from files that others may write."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def _table(head: Sequence[str] | None, rows: Sequence[Sequence[str]], align: str) -> str:
    printed = [[_plain(cell) for cell in row] for row in ([head] if head else []) + list(rows)]
    widths = [max(len(row[column]) for row in printed) for column in range(len(align))]
    lines = []
    for row in printed:
        cells = [f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
