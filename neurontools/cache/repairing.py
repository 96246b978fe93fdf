"""What `verify --fix` does about what was found: damage into the quarantine, leftovers away, all else left as it is."""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.cache.leftovers import is_leftover, remove_leftover
from neurontools.cache.locks import root_locked
from neurontools.cache.pruning.removal import delete_tree
from neurontools.cache.quarantine import quarantine_entry
from neurontools.cache.verify import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neurontools.cache.verify import Finding


@dataclass(frozen=True, slots=True)
class Repair:
    """What was done about a path, or why nothing was (`done` False)."""

    path: str
    done: bool
    words: str


def repair(root: str, findings: Sequence[Finding]) -> tuple[Repair, ...]:
    """Put what is damaged or unfinished into the quarantine and remove leftovers; what is in use stays."""
    with ExitStack() as stack:
        if any(finding.entry is not None and not finding.entry.ours for finding in findings):
            with suppress(OSError):
                stack.enter_context(root_locked(root))
        return tuple(_repairs(root, findings))


def _repairs(root: str, findings: Sequence[Finding]) -> Iterator[Repair]:
    seen: set[str] = set()
    for finding in findings:
        if finding.problem is Problem.LEFTOVER:
            gone = _remove(root, finding.path)
            yield Repair(finding.path, gone, "removed" if gone else "cannot be removed")
        elif finding.problem is Problem.UNREADABLE:
            yield Repair(finding.path, False, f"left as it is, {finding.words}")
        elif finding.entry is not None and finding.entry.path not in seen:
            seen.add(finding.entry.path)
            reason = quarantine_entry(root, finding.entry, f"{finding.problem}: {finding.words}")
            yield Repair(finding.entry.path, not reason, reason or "moved to the quarantine")


def _remove(root: str, path: str) -> bool:
    if is_leftover(root, path):
        return remove_leftover(path)
    delete_tree(path)
    return not os.path.lexists(path)
