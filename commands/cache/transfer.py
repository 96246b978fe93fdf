"""Verbs of neuron-cache that copy entries to and from other places: export, import, sync."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.commands import console
from neurontools.commands.cache.options import (
    add_confirmation,
    add_filter,
    add_verb,
    confirmed,
    exclude_each_other,
    location,
    option,
    show_left_out,
    width,
)
from neurontools.commands.progress import ProgressCounter
from neurontools.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from neurontools.cache.entries import Entry
    from neurontools.cache.pruning.prune import Pruning
    from neurontools.cache.sync.plan import SyncFilter, SyncPlan
    from neurontools.cache.sync.runner import SyncResult
    from neurontools.commands.parsing import Verbs


_EXPORT_EXAMPLES = """examples:
  neuron-cache export --filter 'name~bert' 'used<7d' bert.tar.zst
  neuron-cache export --for-ci ci.tar.gz
  neuron-cache export all.tar.zst
  neuron-cache export one.tar 92195234

Only finished entries that pass 'verify' are exported. The suffix sets the compression: .tar.zst .tar.gz .tgz .tar"""
_IMPORT_EXAMPLES = """examples:
  neuron-cache import bert.tar.zst
  neuron-cache import --for-ci ci.tar.gz
  neuron-cache import --filter 'name~bert' --max-size 2GB all.tar.zst

Everything is checked before the first entry appears. Finished entries in the cache are not replaced."""
_SYNC_EXAMPLES = """examples:
  neuron-cache sync /var/tmp/neuron-compile-cache s3://bucket/neuron
  neuron-cache sync s3://bucket/neuron /var/tmp/neuron-compile-cache --only-done
  neuron-cache sync s3://bucket/neuron ~/cache --filter 'name~bert' 'made<7d' --dry-run
  neuron-cache sync ~/cache s3://bucket/neuron --delete --dry-run

Finished entries in TO are not replaced, and nothing is removed without --delete. After an interruption, run it again: what
was copied is not copied again. Buckets need: pip install 'neurontools[s3]'"""


def add_archives(verbs: Verbs) -> None:
    """Add the verbs."""
    export = add_verb(
        verbs,
        "export",
        _export,
        words="write entries to an archive",
        description="Write finished entries to an archive with checksums.",
        examples=_EXPORT_EXAMPLES,
    )
    export.add_argument("file", nargs="?", metavar="FILE", help="archive to write")
    export.add_argument("entries", nargs="*", metavar="ENTRY", help="path, module name or unique prefix")
    export.add_argument("--force", action="store_true", help="overwrite an existing archive")
    imported = add_verb(
        verbs,
        "import",
        _import,
        words="read entries from an archive",
        description="Read entries from an archive written by 'export'.",
        examples=_IMPORT_EXAMPLES,
    )
    imported.add_argument("file", nargs="?", metavar="FILE", help="archive to read")
    imported.add_argument(
        "--max-size", default="64GiB", metavar="SIZE", help="reject a larger archive (default: %(default)s)"
    )
    for parser in (export, imported):
        add_filter(parser)
        parser.add_argument(
            "--for-ci",
            action="store_true",
            help="only entries that this compiler would reuse with NEURON_CC_FLAGS",
        )


def _export(arguments: argparse.Namespace) -> int:
    from neurontools.base.text import plural
    from neurontools.base.units import format_size
    from neurontools.cache.archives.exporter import export_entries
    from neurontools.cache.selection import select_entries

    target = _file(arguments)
    rejection_reason = _reuse_filter(arguments)
    where = location(arguments, remote=True)
    places = select_entries(where, arguments.entries, arguments.filter)
    with ProgressCounter("exporting", "entries") as progress:
        made = export_entries(
            where.root,
            places,
            target,
            rejection_reason=rejection_reason,
            replace=arguments.force,
            progress=progress,
        )
    if arguments.json:
        console.print_json(
            {
                "archive": made.archive,
                "entries": list(made.paths),
                "stored_bytes": made.stored_bytes,
                "archive_bytes": made.archive_bytes,
                "left_out": [{"path": item.path, "reason": item.reason} for item in made.left_out],
            }
        )
        return 0
    show_left_out([(item.path, item.reason) for item in made.left_out])
    sizes = f"{format_size(made.stored_bytes)} in an archive of {format_size(made.archive_bytes)}"
    console.out(f"{plural(len(made.paths), 'entry', 'entries')} exported to {made.archive}: {sizes}")
    return 0


def _import(arguments: argparse.Namespace) -> int:
    from neurontools.base.text import plural
    from neurontools.base.units import parse_size
    from neurontools.cache.archives.importer import import_archive

    path = _file(arguments)
    rejection_reason = _import_filter(arguments)
    root = location(arguments).root
    limit_bytes = option(arguments, "max_size", parse_size) or 0
    with ProgressCounter("reading", "bytes") as progress:
        done = import_archive(
            path, root, rejection_reason=rejection_reason, limit_bytes=limit_bytes, progress=progress
        )
    if arguments.json:
        console.print_json(
            {
                "root": done.root,
                "imported": list(done.imported),
                "present": list(done.present),
                "locked": list(done.locked),
                "unwanted": [{"path": item, "reason": reason} for item, reason in done.unwanted],
            }
        )
        return 0
    show_left_out(
        [*done.unwanted, *((item, "locked by a process that is compiling it") for item in done.locked)]
    )
    there = f", {len(done.present)} already there" if done.present else ""
    console.out(f"{plural(len(done.imported), 'entry', 'entries')} imported to {done.root}{there}")
    return 0


def _file(arguments: argparse.Namespace) -> str:
    from neurontools.cache.archives.archive import SUFFIXES

    # `--filter a b FILE`: argparse gives the last word to the option.
    if arguments.file is None and arguments.filter and arguments.filter[-1].endswith(SUFFIXES):
        return str(arguments.filter.pop())
    if arguments.file is None:
        raise UsageError("no archive named", "add its name, for example cache.tar.zst")
    return str(arguments.file)


def _reuse_filter(arguments: argparse.Namespace) -> Callable[[Entry], str]:
    from neurontools.cache.selection import reuse_filter

    return reuse_filter() if arguments.for_ci else lambda _: ""


def _import_filter(arguments: argparse.Namespace) -> Callable[[Entry], str]:
    import time

    from neurontools.cache.filters import parse_filters

    chosen, reuse, now = parse_filters(arguments.filter), _reuse_filter(arguments), time.time()
    return lambda entry: reuse(entry) if chosen.matches(entry, now) else "not chosen by the filter"


def add_sync(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "sync",
        _sync,
        words="copy missing entries from one cache to another",
        description="Copy the entries of FROM that TO lacks. Each entry is verified and appears in one step.",
        examples=_SYNC_EXAMPLES,
        cache_dir=False,
    )
    parser.add_argument("source", metavar="FROM", help="a directory or s3://BUCKET/PREFIX")
    parser.add_argument(
        "target",
        metavar="TO",
        help="a directory or s3://BUCKET/PREFIX; created if missing, except the bucket",
    )
    add_filter(parser)
    parser.add_argument("--only-done", action="store_true", help="skip graphs that were never compiled")
    parser.add_argument("--with-failed", action="store_true", help="copy cached failures too")
    parser.add_argument(
        "--delete", action="store_true", help="afterwards, remove from TO what FROM does not have"
    )
    parser.add_argument("--grace", metavar="AGE", help="with --delete: spare entries used less than AGE ago")
    parser.add_argument(
        "--jobs",
        type=int,
        default=8,
        metavar="N",
        help="number of entries copied at once (default: %(default)s)",
    )
    add_confirmation(parser, "print what would be copied and removed, change nothing")


def _sync(arguments: argparse.Namespace) -> int:
    from neurontools.cache.fields import parse_age
    from neurontools.cache.location import resolve
    from neurontools.cache.sync import runner

    _check(arguments)
    grace_s = option(arguments, "grace", parse_age)
    source, target = (resolve(url=url).root for url in (arguments.source, arguments.target))
    selection, details = _selection(arguments)
    with ProgressCounter("listing", "objects") as progress:
        plan = runner.plan_sync(source, target, selection, details=details, on_listed=progress)
    work = runner.prepare_deletion(plan, grace_s) if arguments.delete else None
    if arguments.dry_run:
        _show_plan(arguments, plan, work)
        return 0
    if not _is_agreed(arguments, work):
        console.warn("nothing copied, nothing removed")
        return 1
    with ProgressCounter("copying", "entries") as progress:
        result = runner.run_sync(plan, jobs=arguments.jobs, progress=progress)
    removal = work.carry_out()[0] if work is not None and result.is_complete else None
    if arguments.json:
        console.print_json(runner.sync_json(plan, result, None if work is None else work.plan, removal))
    else:
        _show(plan, result)
    if removal is not None and not arguments.json:
        from neurontools.cache.pruning.prune import format_removal

        console.out(format_removal(removal, root=plan.target, width=width()))
    if result.stopped is not None:
        console.warn(runner.format_stopped(plan, result))
        raise result.stopped
    return 0 if result.is_complete else 1


def _check(arguments: argparse.Namespace) -> None:
    exclude_each_other(arguments, "dry_run", "yes")
    if not arguments.source or not arguments.target:
        raise UsageError(
            "FROM and TO must not be empty", "'neuron-cache path' prints the cache that a run uses"
        )
    if arguments.grace is not None and not arguments.delete:
        raise UsageError("--grace needs --delete", "add --delete, or remove --grace")


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
    from neurontools.cache.sync import runner

    if arguments.json:
        console.print_json(runner.sync_json(plan, None, None if work is None else work.plan, None))
        return
    show_left_out(runner.left_out_rows(plan, None))
    console.out(runner.format_plan(plan))
    if work is not None:
        console.out(prune.format_plan(work.plan, width=width()))


def _show(plan: SyncPlan, result: SyncResult) -> None:
    from neurontools.cache.sync import runner

    show_left_out(runner.left_out_rows(plan, result))
    console.out(runner.format_result(plan, result))
