"""Verbs of neuron-cache that remove: prune, rm, locks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from neurontools.commands import console
from neurontools.commands.cache.options import (
    add_confirmation,
    add_verb,
    confirmed,
    exclude_each_other,
    location,
    option,
    width,
)
from neurontools.commands.console import ProgressCounter
from neurontools.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from neurontools.cache.pruning.prune import Pruning
    from neurontools.cache.pruning.rules import PruneRules
    from neurontools.commands.parsing import Verbs


_PRUNE_EXAMPLES = """examples:
  neuron-cache prune --max-size 20GB --dry-run
  neuron-cache prune --older-than 30d --failed -y
  neuron-cache prune --older-than 30d --keep-last 10
  neuron-cache prune --interrupted --locks -y
  neuron-cache prune --policy -y

An entry is removed if any rule selects it. --keep-last protects entries from the other rules; alone, it removes all others.
Entries that are pinned, locked or loaded are spared. On network file systems, where loaded entries are not visible, entries
used within 24 hours are spared. Entries of other tools and graphs not yet compiled are spared for 10 minutes."""
_RM_EXAMPLES = """examples:
  neuron-cache rm MODULE_9219523464496887986+e30acd3a -y
  neuron-cache rm $(neuron-cache ls -q --filter state=failed) --dry-run
  neuron-cache rm --all --dry-run"""
_LOCKS_EXAMPLES = """examples:
  neuron-cache locks
  neuron-cache prune --locks --dry-run
  neuron-cache prune --locks 30m -y

Locks of neurontools name their process: 'prune --locks' removes them once it is dead, never while it is alive.
Locks of the real wrapper are unnamed: 'prune --locks' removes them once older than AGE."""


def add_prune(verbs: Verbs) -> None:
    """Add the verbs."""
    from neurontools.cache.pruning.rule_options import RULES

    parser = add_verb(
        verbs,
        "prune",
        _prune,
        words="remove entries by rules",
        description="Remove the entries that any rule selects.",
        examples=_PRUNE_EXAMPLES,
    )
    for rule in RULES:
        takes: dict[str, Any] = {"metavar": rule.metavar} if rule.metavar else {"action": "store_true"}
        parser.add_argument(rule.flag, help=rule.help, **takes)
    parser.add_argument(
        "--locks",
        nargs="?",
        const="",
        metavar="AGE",
        help="remove locks of dead processes, and unnamed locks older than AGE (default: 4h)",
    )
    parser.add_argument("--policy", action="store_true", help="apply the cache_* settings of config.yaml")
    _add_common(parser)
    named = add_verb(
        verbs,
        "rm",
        _rm,
        words="remove entries by name, or all",
        description="Remove the named entries, or all, unless they are pinned, locked or loaded.",
        examples=_RM_EXAMPLES,
    )
    named.add_argument("entries", nargs="*", metavar="ENTRY", help="path, module name or unique prefix")
    named.add_argument("--all", action="store_true", help="every entry")
    _add_common(named)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--grace", metavar="AGE", help="spare entries used less than AGE ago")
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

    if bool(arguments.entries) == arguments.all:
        raise UsageError(
            "give entries or --all",
            "'neuron-cache ls' lists entries, 'rm --all --dry-run' what would be removed",
        )
    if arguments.all:
        return _clean(arguments)
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
    return _finish(arguments, prune.prepare_pruning(found, rules))


def _finish(arguments: argparse.Namespace, work: Pruning) -> int:
    from neurontools.cache.pruning.prune import MOST_ASKED, format_plan, removal_question

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
    from neurontools.base.units import parse_age
    from neurontools.cache.pruning.policy import STALE_LOCK_S, required_policy

    rules, stale_s = _rules(arguments), None
    if arguments.locks is not None:
        stale_s = option(arguments, "locks", parse_age) if arguments.locks else STALE_LOCK_S
    if not arguments.policy:
        return rules, stale_s
    if not rules.is_empty or stale_s is not None:
        raise UsageError(
            "--policy and other rules exclude each other", "give --policy alone, or the rules without it"
        )
    policy = required_policy()
    return replace(policy.rules, grace_s=rules.grace_s), policy.break_stale_s


def _rules(arguments: argparse.Namespace) -> PruneRules:
    from neurontools.cache.pruning.rule_options import RULES
    from neurontools.cache.pruning.rules import PruneRules

    values = {
        rule.field: option(arguments, rule.name.replace("-", "_"), rule.parse)
        if rule.metavar
        else getattr(arguments, rule.field)
        for rule in RULES
    }
    return PruneRules(**values, grace_s=_grace_s(arguments))  # type: ignore[arg-type]


def _grace_s(arguments: argparse.Namespace) -> float | None:
    from neurontools.base.units import parse_age

    return option(arguments, "grace", parse_age)


def show_plan(work: Pruning, *, as_json: bool) -> None:
    """Print what would be removed."""
    from neurontools.cache.pruning import prune

    console.show(
        as_json,
        lambda: prune.plan_json(work.plan, None, work.locks, work.orphans),
        lambda: prune.format_plan(work.plan, work.locks, work.orphans, width=width()),
    )


def remove(work: Pruning, *, as_json: bool) -> None:
    """Carry out a plan and print what was removed.

    Raises:
        NeuronToolsError: the root cannot be written to.
    """
    from neurontools.cache.pruning import prune

    with ProgressCounter("removing", "entries") as progress:
        removal, broken = work.carry_out(progress)
    gone = work.removed_orphans()
    console.show(
        as_json,
        lambda: prune.plan_json(work.plan, removal, broken, gone),
        lambda: prune.format_removal(removal, broken, gone, root=work.plan.root, width=width()),
    )


def add_locks(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "locks",
        _locks,
        words="list locks, waiting processes and stale locks",
        description="List locks: state of the owner, time since its last heartbeat, process, host, waiting processes.",
        examples=_LOCKS_EXAMPLES,
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print paths only")


def _locks(arguments: argparse.Namespace) -> int:
    from neurontools.cache import lock_list
    from neurontools.cache.entries import check_root_exists
    from neurontools.cache.walk import walk

    exclude_each_other(arguments, "json", "quiet")
    where = location(arguments, remote=True)
    root = where.root
    with ProgressCounter("listing", "objects") as progress:
        walked = walk(root, progress)
    check_root_exists(where, walked)
    found = lock_list.list_locks(walked.places, walked.tree)
    if arguments.json:
        console.print_json(lock_list.locks_json(root, found))
    elif arguments.quiet:
        for held in found:
            console.out(held.lock.path)
    else:
        console.out(lock_list.format_locks(root, found, width()))
    return 0
