"""What all commands that remove from a cache share: a plan shown, a plan carried out, locks broken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.commands import console
from neurontools.commands.cache_options import print_json, width
from neurontools.commands.progress import ProgressCounter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.cache.lock_list import HeldLock
    from neurontools.cache.pruning.prune import Pruning
    from neurontools.cache.pruning.removal import BrokenLock


def show_plan(work: Pruning, *, as_json: bool) -> None:
    """Print what would be removed."""
    from neurontools.cache.pruning import prune

    if as_json:
        print_json(prune.plan_json(work.plan, None, work.locks, work.orphans))
    else:
        console.out(prune.format_plan(work.plan, work.locks, work.orphans, width=width()))


def remove(work: Pruning, *, as_json: bool) -> None:
    """Carry a plan out and print what was removed.

    Raises:
        NeuronToolsError: the root cannot be written to.
    """
    from neurontools.cache.pruning import prune

    with ProgressCounter("removing", "entries") as progress:
        removal, broken = work.carry_out(progress)
    gone = work.removed_orphans()
    if as_json:
        print_json(prune.plan_json(work.plan, removal, broken, gone))
    else:
        console.out(prune.format_removal(removal, broken, gone, root=work.plan.root, width=width()))


def break_stale(
    root: str,
    found: Sequence[HeldLock],
    age_s: float,
    *,
    dry_run: bool,
    as_json: bool,
    agreed: Callable[[tuple[BrokenLock, ...]], bool] = lambda _: True,
) -> bool:
    """Remove stale locks, or say which those are, and print it.

    Args:
        root: the cache.
        found: its locks.
        age_s: from which age those that name nobody are stale.
        dry_run: remove nothing.
        as_json: print JSON.
        agreed: is asked before locks are removed.

    Returns:
        False when the answer was no.

    Raises:
        NeuronToolsError: the root cannot be written to.
    """
    from neurontools.cache import lock_list
    from neurontools.cache.pruning import prune
    from neurontools.cache.pruning.prune import break_any_locks

    stale = lock_list.stale_locks(found, age_s)
    if stale and not dry_run:
        if not agreed(stale):
            return False
        stale = break_any_locks(root, stale, age_s)
    if as_json:
        print_json(prune.locks_removed_json(root, stale, dry_run=dry_run))
    else:
        lines = prune.format_stale_locks(stale)
        console.out(f"{lines}\n{lock_list.format_broken_locks(found, stale, dry_run=dry_run)}".lstrip())
    return True
