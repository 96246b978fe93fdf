"""Actions of the cache browser that need no screen: texts about an entry, pins, deletion."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from neurontools.base.text import plural
from neurontools.base.units import format_size
from neurontools.cache import pins_and_tags
from neurontools.cache.pruning import prune
from neurontools.cache.show import format_details, read_details
from neurontools.cache.why import explain, report

if TYPE_CHECKING:
    from neurontools.cache.entries import Entry
    from neurontools.cache.pruning.prune import Pruning


def entry_text(root: str, entry: Entry, width: int) -> str:
    """Return the text of `neuron-cache show` for an entry, wrapped to a width.

    Raises:
        NeuronToolsError: it is gone.
    """
    return format_details(read_details(root, entry.place), time.time(), width)


def why_text(root: str, paths: tuple[str, ...], width: int) -> str:
    """Return the text of `neuron-cache why` for one entry, or for two in this order.

    Raises:
        NeuronToolsError: an entry is gone or not readable.
    """
    found = explain.explain_pair(root, *paths) if len(paths) > 1 else explain.explain_entry(root, paths[0])
    return report.format_explanation(found, report.ReportStyle(width=width, full=True, most_lines=1000))


def change_pins(root: str, entries: tuple[Entry, ...]) -> str:
    """Pin entries, or unpin them if all are pinned; return a message.

    Raises:
        TagError: an entry is gone or not writable.
    """
    unpin = all(entry.pinned for entry in entries)
    change = pins_and_tags.remove_pin if unpin else pins_and_tags.set_pin
    return f"{sum(change(root, entry.place) for entry in entries)} {'un' * unpin}pinned"


def question_lines(work: Pruning, most: int) -> tuple[str, ...]:
    """Return the lines shown before entries are deleted: the first entries, and the total."""
    plan = work.plan
    lines = [
        f"{format_size(choice.entry.size_bytes):>9}  {choice.entry.module}" for choice in plan.remove[:most]
    ]
    if len(plan.remove) > most:
        lines.append(f"{'':>9}  and {len(plan.remove) - most} more")
    lines += [f"stays: {choice.entry.module}: {choice.reason}" for choice in plan.spare[:most]]
    total = plural(len(plan.remove), "entry", "entries")
    return (*lines, f"{format_size(plan.freed_bytes):>9}  {total} in all")


def delete(work: Pruning) -> str:
    """Delete those entries that may still be removed, and return a message."""
    removal, _ = work.carry_out()
    spared = (*work.plan.spare, *removal.spared)
    words = prune.format_removal(removal).splitlines()[-1]
    return f"{words}; {len(spared)} spared: {spared[0].reason}" if spared else words
