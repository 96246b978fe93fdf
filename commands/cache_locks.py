"""The verb of neuron-cache about locks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.commands import console
from neurontools.commands.cache_options import (
    add_confirmation,
    add_verb,
    confirmed,
    exclude_each_other,
    location,
    option,
    print_json,
    width,
)
from neurontools.commands.progress import ProgressCounter
from neurontools.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from neurontools.cache.lock_list import HeldLock
    from neurontools.cache.pruning.removal import BrokenLock
    from neurontools.commands.cache_options import Verbs

_EXAMPLES = """examples:
  neuron-cache locks
  neuron-cache locks --break-stale 4h --dry-run
  neuron-cache locks --break-stale 30m -y

A lock of ours names its process: a dead one's goes whatever AGE says, a living one's never. Locks of the real wrapper
name nobody: they go when they are older than AGE."""


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "locks",
        _locks,
        words="who compiles what, who waits, which locks are stale",
        description="List the locks: state of the owner, time since its last sign of life, process, host, who waits.",
        examples=_EXAMPLES,
    )
    parser.add_argument(
        "--break-stale",
        metavar="AGE",
        help="remove locks of dead processes, and unnamed locks older than AGE",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print only paths")
    add_confirmation(parser)


def _locks(arguments: argparse.Namespace) -> int:
    import time

    from neurontools.cache import lock_list
    from neurontools.cache.entries import check_root_exists
    from neurontools.cache.fields import parse_age
    from neurontools.cache.walk import walk

    exclude_each_other(arguments, "json", "quiet")
    exclude_each_other(arguments, "break_stale", "quiet")
    exclude_each_other(arguments, "dry_run", "yes")
    if arguments.break_stale is None and (arguments.dry_run or arguments.yes):
        raise UsageError("nothing says which locks to remove", "give --break-stale AGE, for example 4h")
    age_s = option(arguments, "break_stale", parse_age)
    where = location(arguments, remote=True)
    root = where.root
    with ProgressCounter("listing", "objects") as progress:
        walked = walk(root, progress)
    check_root_exists(where, walked)
    found = lock_list.list_locks(walked.places, walked.tree)
    if age_s is not None:
        return _break(arguments, root, found, age_s)
    if arguments.json:
        print_json(lock_list.locks_json(root, found, time.time()))
    elif arguments.quiet:
        for held in found:
            console.out(held.lock.path)
    else:
        console.out(lock_list.format_locks(root, found, time.time(), width()))
    return 0


def _break(arguments: argparse.Namespace, root: str, found: tuple[HeldLock, ...], age_s: float) -> int:
    from neurontools.cache.pruning import prune
    from neurontools.commands.cache_removal import break_stale

    def agreed(stale: tuple[BrokenLock, ...]) -> bool:
        question = f"Remove {len(stale)} of {len(found)} locks?"
        return arguments.yes or confirmed("locks", prune.format_stale_locks(stale), question)

    if break_stale(root, found, age_s, dry_run=arguments.dry_run, as_json=arguments.json, agreed=agreed):
        return 0
    console.warn("nothing removed")
    return 1
