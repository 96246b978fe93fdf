"""The verb of neuron-cache that brings one cache into line with another: sync."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.commands import console
from neurontools.commands.cache_options import (
    add_confirmation,
    add_filter,
    add_verb,
    confirmed,
    exclude_each_other,
    option,
    print_json,
    show_left_out,
    width,
)
from neurontools.commands.progress import ProgressCounter
from neurontools.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from neurontools.cache.pruning.prune import Pruning
    from neurontools.cache.sync.plan import SyncFilter, SyncPlan
    from neurontools.cache.sync.runner import SyncResult
    from neurontools.commands.cache_options import Verbs

_EXAMPLES = """examples:
  neuron-cache sync /var/tmp/neuron-compile-cache s3://bucket/neuron
  neuron-cache sync s3://bucket/neuron /var/tmp/neuron-compile-cache --only-done
  neuron-cache sync s3://bucket/neuron ~/cache --filter 'name~bert' 'made<7d' --dry-run
  neuron-cache sync ~/cache s3://bucket/neuron --delete --dry-run

What is finished in TO stays as it is, and nothing is removed without --delete. Killed or cut off, run it again: what is
there already is not moved again. Buckets need: pip install 'neurontools[s3]'"""


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "sync",
        _sync,
        words="move what one cache has and another lacks",
        description="Copy entries that FROM has and TO lacks, checked, each whole or not at all.",
        examples=_EXAMPLES,
        cache_dir=False,
    )
    parser.add_argument("source", metavar="FROM", help="a directory or s3://BUCKET/PREFIX")
    parser.add_argument("target", metavar="TO", help="the same; made where there is none, but for the bucket")
    add_filter(parser)
    parser.add_argument("--only-done", action="store_true", help="no graphs that were never compiled")
    parser.add_argument("--with-failed", action="store_true", help="cached failures, too")
    parser.add_argument("--delete", action="store_true", help="then remove from TO what FROM does not have")
    parser.add_argument("--grace", metavar="AGE", help="with --delete: spare what was used less than AGE ago")
    parser.add_argument(
        "--jobs", type=int, default=8, metavar="N", help="so many entries at once (default: %(default)s)"
    )
    add_confirmation(parser, "say what would be moved and removed, and do neither")


def _sync(arguments: argparse.Namespace) -> int:
    from neurontools.cache.fields import parse_age
    from neurontools.cache.location import resolve
    from neurontools.cache.sync import report, runner

    _check(arguments)
    grace_s = option(arguments, "grace", parse_age)
    source, target = (resolve(url=url).root for url in (arguments.source, arguments.target))
    selection, details = _selection(arguments)
    with ProgressCounter("listing", "objects") as progress:
        plan = runner.plan_sync(source, target, selection, details=details, listed=progress)
    work = runner.prepare_deletion(plan, grace_s) if arguments.delete else None
    if arguments.dry_run:
        _show_plan(arguments, plan, work)
        return 0
    if not _is_agreed(arguments, work):
        console.warn("nothing moved, nothing removed")
        return 1
    with ProgressCounter("moving", "entries") as progress:
        result = runner.run_sync(plan, jobs=arguments.jobs, progress=progress)
    removal = work.carry_out()[0] if work is not None and result.is_complete else None
    if arguments.json:
        print_json(report.sync_json(plan, result, None if work is None else work.plan, removal))
    else:
        _show(plan, result)
    if removal is not None and not arguments.json:
        from neurontools.cache.pruning.prune import format_removal

        console.out(format_removal(removal, root=plan.target, width=width()))
    if result.stopped is not None:
        console.warn(report.format_stopped(plan, result))
        raise result.stopped
    return 0 if result.is_complete else 1


def _check(arguments: argparse.Namespace) -> None:
    exclude_each_other(arguments, "dry_run", "yes")
    if not arguments.source or not arguments.target:
        raise UsageError("FROM and TO must be named", "'neuron-cache path' says which cache a run uses")
    if arguments.grace is not None and not arguments.delete:
        raise UsageError("--grace is for --delete", "leave it out, or add --delete")


def _selection(arguments: argparse.Namespace) -> tuple[SyncFilter, bool]:
    import time

    from neurontools.cache.filters import parse_filters
    from neurontools.cache.sync.plan import SyncFilter

    chosen, now = parse_filters(arguments.filter), time.time()
    selection = SyncFilter(
        lambda entry: chosen.matches(entry, now),
        only_done=arguments.only_done,
        with_failed=arguments.with_failed,
    )
    return selection, chosen.needs_details


def _is_agreed(arguments: argparse.Namespace, work: Pruning | None) -> bool:
    from neurontools.cache.pruning import prune

    if work is None or work.is_empty or arguments.yes:
        return True
    what = prune.format_plan(work.plan, most=prune.MOST_ASKED, width=width())
    return confirmed("sync --delete", what, prune.removal_question(work.plan, ()))


def _show_plan(arguments: argparse.Namespace, plan: SyncPlan, work: Pruning | None) -> None:
    from neurontools.cache.pruning import prune
    from neurontools.cache.sync import report

    if arguments.json:
        print_json(report.sync_json(plan, None, None if work is None else work.plan, None))
        return
    show_left_out(report.left_out_rows(plan, None))
    console.out(report.format_plan(plan))
    if work is not None:
        console.out(prune.format_plan(work.plan, width=width()))


def _show(plan: SyncPlan, result: SyncResult) -> None:
    from neurontools.cache.sync import report

    show_left_out(report.left_out_rows(plan, result))
    console.out(report.format_result(plan, result))
