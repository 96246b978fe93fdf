"""`neuron-cache prune` as a library: plan first, carry out later."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from neurontools.cache.entries import Scan, is_in_use
from neurontools.cache.entry_reader import EntryReader
from neurontools.cache.files import remove_if_empty
from neurontools.cache.layout import QUARANTINE
from neurontools.cache.leftovers import Leftover, in_quarantine, leftovers, remove_leftover
from neurontools.cache.pruning.removal import (
    BrokenLock,
    Removal,
    break_locks,
    breakable_locks,
    carry_out,
    is_network,
)
from neurontools.cache.pruning.rules import Plan, Rules, make_plan
from neurontools.cache.remote.url import is_remote
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.cache.walk import Place


@dataclass(frozen=True, slots=True)
class Pruning:
    """What is going to be removed from a root.

    `leftovers` is what killed removals and imports left, and what is in quarantine where that goes, too.
    """

    plan: Plan
    rules: Rules
    locks: tuple[BrokenLock, ...]
    stale_s: float
    network: bool
    leftovers: tuple[Leftover, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.plan.remove and not self.locks and not self.leftovers

    def leftovers_gone(self) -> tuple[Leftover, ...]:
        """Return which of the leftovers are gone; a process may have begun to work on others."""
        return tuple(item for item in self.leftovers if not os.path.lexists(item.path))

    def carry_out(
        self, progress: Callable[[int, int], None] | None = None
    ) -> tuple[Removal, tuple[BrokenLock, ...]]:
        """Do it and return what was removed.

        Args:
            progress: is told now and then how many entries of how many are done.

        Raises:
            NeuronToolsError: the root cannot be written to.
        """
        for item in self.leftovers:
            remove_leftover(item.path)
        remove_if_empty(f"{self.plan.root}/{QUARANTINE}")
        # Locks come last: an entry without its dead lock would be in another state than when it was chosen.
        removal = self._remove_entries(progress) if self.plan.remove else Removal((), ())
        return removal, break_any_locks(self.plan.root, self.locks, self.stale_s) if self.locks else ()

    def _remove_entries(self, progress: Callable[[int, int], None] | None) -> Removal:
        if is_remote(self.plan.root):
            from neurontools.cache.remote.removal import remove_from_bucket

            return remove_from_bucket(self.plan, self.rules, progress)
        return carry_out(self.plan, self.rules, network=self.network, progress=progress)


def break_any_locks(root: str, locks: tuple[BrokenLock, ...], age_s: float) -> tuple[BrokenLock, ...]:
    """Remove locks of a directory or a bucket that are still as stale as they were found; return those removed.

    Raises:
        NeuronToolsError: the root cannot be written to.
    """
    if is_remote(root):
        from neurontools.cache.remote.removal import break_bucket_locks

        return break_bucket_locks(root, locks, age_s)
    return break_locks(root, locks, age_s)


def only(root: str, places: Sequence[Place]) -> Scan:
    """Return a root's content as if only the entries at some places were there."""
    reader = EntryReader(root)
    read = (reader.read(place, details=False) for place in places)
    return Scan(root, exists=True, entries=tuple(entry for entry in read if entry is not None), skipped=0)


def prepare(
    found: Scan, rules: Rules, break_stale_s: float | None = None, *, quarantine: bool = False
) -> Pruning:
    """Return what rules remove from a root, touching nothing: leftovers, too, unless the rules name entries.

    Args:
        found: the root's content.
        rules: which entries to remove.
        break_stale_s: also remove locks of dead owners, and unnamed ones older than this; None for no locks.
        quarantine: also empty the quarantine.

    Raises:
        UsageError: no rule is given.
    """
    if rules.is_empty and break_stale_s is None:
        raise UsageError(
            "nothing says what to remove",
            "give --max-size, --older-than, --keep-last, --failed, --interrupted, --incomplete, --old-compilers, "
            "--locks or --policy",
        )
    network = is_network(found.root)
    kept = in_quarantine(found.root) if quarantine else ()
    plan = make_plan(found, rules, time.time(), is_in_use, network=network)
    return Pruning(
        plan=plan,
        rules=rules,
        locks=() if break_stale_s is None else breakable_locks(_staying(found, plan), break_stale_s),
        stale_s=break_stale_s or 0.0,
        network=network,
        leftovers=() if rules.named else (*leftovers(found.root), *kept),
    )


def _staying(found: Scan, plan: Plan) -> Scan:
    """Return a root's content without what goes: locks in there go with it."""
    going = {choice.entry.path for choice in plan.remove}
    return replace(found, entries=tuple(entry for entry in found.entries if entry.path not in going))
