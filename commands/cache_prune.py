"""The verb of neuron-cache that removes by rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.commands import console
from neurontools.commands.cache_options import (
    add_confirmation,
    add_verb,
    confirmed,
    duration,
    location,
    print_json,
)

if TYPE_CHECKING:
    import argparse

    from neurontools.cache.prune import Rules
    from neurontools.cache.pruning import Pruning
    from neurontools.commands.cache_options import Verbs

_EXAMPLES = """examples:
  neuron-cache prune --max-size 20GB --dry-run
  neuron-cache prune --older-than 30d --failed -y
  neuron-cache prune --break-stale 4h -y

Entries that are locked or loaded by a process are spared. Where flock does not show what is loaded (network file
systems), what was used within 24 hours is spared; entries of other tools are spared for 10 minutes."""


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "prune",
        _prune,
        words="remove entries by rules",
        description="Remove the entries that any of the rules selects.",
        examples=_EXAMPLES,
    )
    parser.add_argument("--max-size", metavar="SIZE", help="remove the longest unused until the rest fits")
    parser.add_argument("--older-than", metavar="AGE", help="remove what was not used for AGE (30d, 12h)")
    parser.add_argument("--failed", action="store_true", help="remove cached failures")
    parser.add_argument("--interrupted", action="store_true", help="remove what killed compiles left behind")
    parser.add_argument(
        "--break-stale",
        metavar="AGE",
        help="remove locks of dead processes, and unnamed locks older than AGE (4h is sensible)",
    )
    parser.add_argument("--grace", metavar="AGE", help="spare what was used less than AGE ago")
    add_confirmation(parser)


def _prune(arguments: argparse.Namespace) -> int:
    from neurontools.cache import prune_text, pruning
    from neurontools.cache.entries import scan_location

    stale_s = duration(arguments.break_stale)
    found = scan_location(location(arguments), details=False)
    work = pruning.prepare(found, _rules(arguments), stale_s)
    if arguments.dry_run or work.is_empty:
        _print_plan(work, as_json=arguments.json)
        return 0
    if not arguments.yes:
        console.out(prune_text.plan_text(work.plan, work.locks))
        if not confirmed("prune", "Remove these?"):
            console.out("nothing removed")
            return 1
    removal, broken = work.carry_out()
    if arguments.json:
        print_json(prune_text.plan_json(work.plan, removal, broken))
    else:
        console.out(prune_text.removal_text(removal, broken))
    return 0


def _print_plan(work: Pruning, *, as_json: bool) -> None:
    from neurontools.cache import prune_text

    if as_json:
        print_json(prune_text.plan_json(work.plan, None, work.locks))
    else:
        console.out(prune_text.plan_text(work.plan, work.locks))


def _rules(arguments: argparse.Namespace) -> Rules:
    from neurontools.cache.prune import Rules
    from neurontools.cache.quantities import parse_size

    return Rules(
        max_bytes=None if arguments.max_size is None else parse_size(arguments.max_size),
        older_than_s=duration(arguments.older_than),
        failed=arguments.failed,
        interrupted=arguments.interrupted,
        grace_s=duration(arguments.grace),
    )
