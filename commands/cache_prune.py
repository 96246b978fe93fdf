"""The verbs of neuron-cache that remove: prune by rules, rm by name, clean everything."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from neurontools.commands import console
from neurontools.commands.cache_options import (
    add_confirmation,
    add_verb,
    confirmed,
    exclude_each_other,
    location,
    option,
    width,
)
from neurontools.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from neurontools.cache.pruning.prune import Pruning
    from neurontools.cache.pruning.rules import PruneRules
    from neurontools.commands.cache_options import Verbs

_EXAMPLES = """examples:
  neuron-cache prune --max-size 20GB --dry-run
  neuron-cache prune --older-than 30d --failed -y
  neuron-cache prune --older-than 30d --keep-last 10
  neuron-cache prune --locks --interrupted -y
  neuron-cache prune --policy -y

Rules add up; --keep-last protects what the others select, and alone removes everything else. What is pinned, locked or
loaded by a process is spared. Where flock does not show what is loaded (network file systems), what was used within 24
hours is spared; entries of other tools and graphs that wait to be compiled are spared for 10 minutes."""
_RM_EXAMPLES = """examples:
  neuron-cache rm MODULE_9219523464496887986+e30acd3a -y
  neuron-cache rm $(neuron-cache ls -q --filter state=failed) --dry-run"""


def add(verbs: Verbs) -> None:
    """Add the verbs."""
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
    parser.add_argument("--keep-last", metavar="N", help="keep the N finished entries that were used last")
    parser.add_argument("--failed", action="store_true", help="remove cached failures")
    parser.add_argument("--interrupted", action="store_true", help="remove what killed compiles left behind")
    parser.add_argument("--incomplete", action="store_true", help="remove what was never compiled")
    parser.add_argument(
        "--old-compilers", action="store_true", help="remove what other compilers made than today's"
    )
    parser.add_argument(
        "--locks", action="store_true", help="remove locks of dead processes, unnamed ones after 4h"
    )
    parser.add_argument("--break-stale", metavar="AGE", help="as --locks, unnamed ones after AGE")
    parser.add_argument(
        "--policy", action="store_true", help="the rules of the settings cache_* in config.yaml"
    )
    _add_common(parser)
    named = add_verb(
        verbs,
        "rm",
        _rm,
        words="remove entries by name",
        description="Remove the named entries, unless they are pinned, locked or in use.",
        examples=_RM_EXAMPLES,
    )
    named.add_argument("entries", nargs="+", metavar="ENTRY", help="a path, a module, or the start of one")
    _add_common(named)
    clean = add_verb(
        verbs,
        "clean",
        _clean,
        words="remove every entry",
        description="Remove every entry that is not pinned, locked or in use, and what is in quarantine.",
    )
    _add_common(clean)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--grace", metavar="AGE", help="spare what was used less than AGE ago")
    add_confirmation(parser)


def _prune(arguments: argparse.Namespace) -> int:
    from neurontools.cache.entries import scan_location
    from neurontools.cache.pruning import prune

    rules, stale_s = _chosen(arguments)
    found = scan_location(location(arguments, remote=True), details=False)
    return _finish(arguments, prune.prepare_pruning(found, rules, stale_s))


def _rm(arguments: argparse.Namespace) -> int:
    from neurontools.cache.pruning import prune
    from neurontools.cache.pruning.rules import PruneRules
    from neurontools.cache.selection import find_entries

    root = location(arguments, remote=True).root
    places = find_entries(root, arguments.entries)
    rules = PruneRules(named=frozenset(place.path for place in places), grace_s=_grace_s(arguments))
    work = prune.prepare_pruning(prune.scan_only(root, places), rules)
    code = _finish(arguments, work)
    return code or (1 if work.plan.spare else 0)


def _clean(arguments: argparse.Namespace) -> int:
    from neurontools.cache.entries import scan_location
    from neurontools.cache.pruning import prune
    from neurontools.cache.pruning.rules import PruneRules

    found = scan_location(location(arguments, remote=True), details=False)
    rules = PruneRules(everything=True, grace_s=_grace_s(arguments))
    return _finish(arguments, prune.prepare_pruning(found, rules, quarantine=True))


def _finish(arguments: argparse.Namespace, work: Pruning) -> int:
    from neurontools.cache.pruning.prune import MOST_ASKED, format_plan, removal_question
    from neurontools.commands.cache_removal import remove, show_plan

    exclude_each_other(arguments, "dry_run", "yes")
    if arguments.dry_run or work.is_empty:
        show_plan(work, as_json=arguments.json)
        return 0
    plan, going = work.plan, (work.locks, work.orphans)
    if not arguments.yes and not confirmed(
        arguments.verb,
        format_plan(plan, *going, most=MOST_ASKED, width=width()),
        removal_question(plan, *going),
    ):
        console.warn("nothing removed")
        return 1
    remove(work, as_json=arguments.json)
    return 0


def _chosen(arguments: argparse.Namespace) -> tuple[PruneRules, float | None]:
    from neurontools.cache.fields import parse_age
    from neurontools.cache.pruning.policy import STALE_LOCK_S, required_policy

    rules, stale_s = _rules(arguments), option(arguments, "break_stale", parse_age)
    if arguments.locks and stale_s is None:
        stale_s = STALE_LOCK_S
    if not arguments.policy:
        return rules, stale_s
    if not rules.is_empty or stale_s is not None:
        raise UsageError(
            "--policy and other rules exclude each other", "give --policy alone, or the rules without it"
        )
    policy = required_policy()
    return replace(policy.rules, grace_s=rules.grace_s), policy.break_stale_s


def _rules(arguments: argparse.Namespace) -> PruneRules:
    from neurontools.base.units import parse_size
    from neurontools.cache.fields import parse_age
    from neurontools.cache.pruning.policy import parse_count
    from neurontools.cache.pruning.rules import PruneRules

    return PruneRules(
        max_bytes=option(arguments, "max_size", parse_size),
        older_than_s=option(arguments, "older_than", parse_age),
        failed=arguments.failed,
        interrupted=arguments.interrupted,
        incomplete=arguments.incomplete,
        old_compilers=arguments.old_compilers,
        keep_last=option(arguments, "keep_last", parse_count),
        grace_s=_grace_s(arguments),
    )


def _grace_s(arguments: argparse.Namespace) -> float | None:
    from neurontools.cache.fields import parse_age

    return option(arguments, "grace", parse_age)
