"""The sums over a cache as text and JSON."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from neurontools.cache.listing import left_out_words
from neurontools.cache.quantities import format_size
from neurontools.cache.tables import counted, moment, table, wrapped

if TYPE_CHECKING:
    from neurontools.cache.stats import Stats, Sum


def stats_text(stats: Stats, width: int | None = None) -> str:
    """Return the sums and what lookups did, no wider than a terminal's columns."""
    return f"{sums_text(stats, width)}\n\n{wrapped(_usage_text(stats), width)}"


def sums_text(stats: Stats, width: int | None = None) -> str:
    """Return the sums by state, by compiler and, where there are several, by layout, no wider than a terminal's columns."""
    head = ("STATE", "ENTRIES", "ACTIVE", "SIZE", "RECLAIMABLE")
    show = partial(table, align="<>>>>", width=width, spare=(2, 4))
    blocks = [show(head, [_sum_row(group) for group in (*stats.states, stats.total)])]
    for name, groups, fewest in (("COMPILER", stats.compilers, 1), ("LAYOUT", stats.layouts, 2)):
        if len(groups) >= fewest:
            blocks.append(show((name, *head[1:]), [_sum_row(group) for group in groups]))
    others = []
    if stats.registry:
        others.append(counted(stats.registry, "registry record of optimum", "registry records of optimum"))
    others += left_out_words(stats.skipped, stats.unread)
    if others:
        blocks.append(wrapped("; ".join(others), width))
    return "\n\n".join(blocks)


def stats_json(stats: Stats) -> dict[str, Any]:
    """Return the JSON form of `stats_text`."""
    usage, recorded = stats.usage, stats.recorded
    return {
        **sums_json(stats),
        "usage": {
            "hits": usage.hits,
            "misses": usage.misses,
            "failures": usage.failures,
            "damaged": usage.damaged,
            "hit_share": usage.hit_share,
            "since_unix_s": usage.since_unix_s or None,
            "waits": recorded.waits,
            "waited_s": recorded.waited_s,
            "saved_s": recorded.saved_s,
            "compiled_s": recorded.compiled_s,
            "recorded_since_unix_s": recorded.started_unix_s or None,
        },
    }


def sums_json(stats: Stats) -> dict[str, Any]:
    """Return the JSON form of `sums_text`."""
    return {
        "root": stats.root,
        "states": [_sum_json(group) for group in stats.states],
        "layouts": [_sum_json(group) for group in stats.layouts],
        "compilers": [_sum_json(group) for group in stats.compilers],
        "total": _sum_json(stats.total),
        "registry": stats.registry,
        "skipped": stats.skipped,
        "unread": stats.unread,
    }


def _usage_text(stats: Stats) -> str:
    usage = stats.usage
    share = usage.hit_share
    if share is None:
        return "no lookups counted yet"
    line = (
        f"{counted(usage.hits, 'hit', 'hits')}, {counted(usage.misses, 'miss', 'misses')} ({share:.1%} hits)"
    )
    if usage.failures:
        line += f", {counted(usage.failures, 'failed compile', 'failed compiles')}"
    if usage.damaged:
        line += f", {counted(usage.damaged, 'damaged neff', 'damaged neffs')}"
    recorded = stats.recorded
    seconds = f"{recorded.saved_s:.3g} s of compiling saved, {recorded.compiled_s:.3g} s compiled"
    if recorded.waits:
        seconds += f", {counted(recorded.waits, 'wait', 'waits')} of {recorded.waited_s:.3g} s"
    return f"{line} by this user since {moment(usage.since_unix_s)[:-3]}; {seconds}"


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
