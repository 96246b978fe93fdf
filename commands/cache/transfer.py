"""Copying entries of the cache: to and from archives, and between caches. `copy` does all three."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.commands import console
from neurontools.commands.cache.options import (
    add_confirmation,
    add_filter,
    add_old_verb,
    confirmed,
    exclude_each_other,
    location,
    option,
    show_left_out,
    width,
)
from neurontools.commands.parsing import positive
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


LARGEST_ARCHIVE = "64GiB"
_JOBS = 8


def add_old_verbs(verbs: Verbs) -> None:
    """Add the old names of `copy`: export, import, sync."""
    export = add_old_verb(verbs, "export", "neuron-cache copy --to FILE", run_export)
    export.add_argument("file", nargs="?", metavar="FILE", help="archive to write")
    export.add_argument("entries", nargs="*", metavar="ENTRY", help="path, module name or unique prefix")
    export.add_argument("--force", action="store_true", help="overwrite an existing archive")
    imported = add_old_verb(verbs, "import", "neuron-cache copy --from FILE", run_import)
    imported.add_argument("file", nargs="?", metavar="FILE", help="archive to read")
    imported.add_argument("--max-size", metavar="SIZE", help="reject a larger archive")
    for parser in (export, imported):
        add_filter(parser)
        parser.add_argument(
            "--for-ci", action="store_true", help="only entries that this compiler would reuse"
        )
    sync = add_old_verb(verbs, "sync", "neuron-cache copy --from FROM --to TO", run_sync, cache_dir=False)
    sync.add_argument("source", metavar="FROM", help="a directory or s3://BUCKET/PREFIX")
    sync.add_argument("target", metavar="TO", help="a directory or s3://BUCKET/PREFIX")
    add_filter(sync)
    add_sync_options(sync)
    add_confirmation(sync, "print what would be copied and removed, change nothing")


def add_sync_options(parser: argparse._ActionsContainer) -> None:
    """Add the options of copying between caches."""
    add = parser.add_argument
    add("--only-done", action="store_true", help="skip graphs that were never compiled")
    add("--with-failed", action="store_true", help="copy cached failures too")
    add("--delete", action="store_true", help="afterwards, remove from TO what FROM does not have")
    add("--grace", metavar="AGE", help="with --delete: spare entries used less than AGE ago")
    add("--jobs", type=positive, metavar="N", help=f"number of entries copied at once (default: {_JOBS})")


def run_export(arguments: argparse.Namespace) -> int:
    """Write finished entries to an archive with checksums."""
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


def run_import(arguments: argparse.Namespace) -> int:
    """Read entries from an archive; all is checked before the first entry appears."""
    from neurontools.base.text import plural
    from neurontools.base.units import parse_size
    from neurontools.cache.archives.importer import import_archive

    path = _file(arguments)
    rejection_reason = _import_filter(arguments)
    root = location(arguments).root
    arguments.max_size = arguments.max_size or LARGEST_ARCHIVE
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
    from neurontools.cache.location import local_path

    # `--filter a b FILE`: argparse gives the last word to the option.
    if arguments.file is None and arguments.filter and arguments.filter[-1].endswith(SUFFIXES):
        return str(arguments.filter.pop())
    if arguments.file is None:
        raise UsageError("no archive named", "add its name, for example cache.tar.zst")
    return local_path(arguments.file)


def _reuse_filter(arguments: argparse.Namespace) -> Callable[[Entry], str]:
    from neurontools.cache.selection import reuse_filter

    return reuse_filter() if arguments.for_ci else lambda _: ""


def _import_filter(arguments: argparse.Namespace) -> Callable[[Entry], str]:
    import time

    from neurontools.cache.filters import parse_filters

    chosen, reuse, now = parse_filters(arguments.filter), _reuse_filter(arguments), time.time()
    return lambda entry: reuse(entry) if chosen.matches(entry, now) else "not chosen by the filter"


def run_sync(arguments: argparse.Namespace) -> int:
    """Copy the entries of one cache that another lacks."""
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
        result = runner.run_sync(plan, jobs=arguments.jobs or _JOBS, progress=progress)
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
            "FROM and TO must not be empty", "'neuron-cache stats --path' prints the cache that a run uses"
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
    return confirmed(f"{arguments.verb} --delete", what, prune.removal_question(work.plan, ()))


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
