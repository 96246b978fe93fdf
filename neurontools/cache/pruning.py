"""`neuron-cache prune` as a library: plan first, carry out later."""

from __future__ import annotations

import time
from dataclasses import dataclass

from neurontools.cache.entries import Scan, is_in_use
from neurontools.cache.prune import Plan, Rules, make_plan
from neurontools.cache.removal import (
    BrokenLock,
    Removal,
    break_locks,
    breakable_locks,
    carry_out,
    is_network,
)
from neurontools.errors import UsageError


@dataclass(frozen=True, slots=True)
class Pruning:
    """What is going to be removed from a root."""

    plan: Plan
    rules: Rules
    locks: tuple[BrokenLock, ...]
    stale_s: float
    network: bool

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.plan.remove and not self.locks

    def carry_out(self) -> tuple[Removal, tuple[BrokenLock, ...]]:
        """Do it and return what was removed.

        Raises:
            NeuronToolsError: the root cannot be written to.
        """
        broken = break_locks(self.plan.root, self.locks, self.stale_s) if self.locks else ()
        if not self.plan.remove:
            return Removal((), ()), broken
        return carry_out(self.plan, self.rules, network=self.network), broken


def prepare(found: Scan, rules: Rules, break_stale_s: float | None = None) -> Pruning:
    """Return what rules remove from a root, touching nothing.

    Args:
        found: the root's content.
        rules: which entries to remove.
        break_stale_s: also remove locks of dead owners, and unnamed ones older than this; None for no locks.

    Raises:
        UsageError: no rule is given.
    """
    if rules.is_empty and break_stale_s is None:
        raise UsageError(
            "nothing says what to remove",
            "give --max-size, --older-than, --failed, --interrupted or --break-stale",
        )
    network = is_network(found.root)
    return Pruning(
        plan=make_plan(found, rules, time.time(), is_in_use, network=network),
        rules=rules,
        locks=() if break_stale_s is None else breakable_locks(found, break_stale_s),
        stale_s=break_stale_s or 0.0,
        network=network,
    )
