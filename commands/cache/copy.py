"""The verb `copy` of neuron-cache: entries from one place to another, each a directory, a bucket or an archive."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from neurontools.commands import console
from neurontools.commands.cache.options import (
    add_confirmation,
    add_filter,
    add_verb,
    confirmed,
    exclude_each_other,
    option,
    show_left_out,
    width,
)
from neurontools.commands.console import ProgressCounter
from neurontools.commands.parsing import positive
from neurontools.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from neurontools.cache.copy.plan import CopyFilter, CopyPlan
    from neurontools.cache.copy.runner import CopyResult
    from neurontools.cache.pruning.prune import Pruning
    from neurontools.commands.parsing import Verbs

_EXAMPLES = """examples:
  neuron-cache copy --to bert.tar.zst --filter 'name~bert' 'used<7d'
  neuron-cache copy --from bert.tar.zst
  neuron-cache copy --to ci.tar.gz --for-ci
  neuron-cache copy --to s3://bucket/neuron
  neuron-cache copy --from s3://bucket/neuron --only-done --dry-run
  neuron-cache copy --from ~/cache --to s3://bucket/neuron --delete --dry-run

A place is a directory, s3://BUCKET/PREFIX, or an archive named *.tar.zst, *.tar.gz, *.tgz or *.tar. Entries are verified,
and finished entries that TO has are not replaced. After an interruption, run it again: what was copied is not copied
again. An archive holds finished entries, and is written or read as a whole. Buckets need: pip install 'neurontools[s3]'"""
_LARGEST_ARCHIVE = "64GiB"
_JOBS = 8
# Option -> whether the source and the target must be archives (True) or caches (False), and the words for that.
_ONLY_FOR: dict[str, tuple[bool | None, bool | None, str]] = {
    "entries": (False, None, "from a cache"),
    "dry_run": (False, None, "from a cache"),
    "force": (None, True, "to an archive"),
    "max_size": (True, None, "from an archive"),
    "only_done": (False, False, "between caches"),
    "with_failed": (False, False, "between caches"),
    "delete": (False, False, "between caches"),
    "grace": (False, False, "between caches"),
}


def add_copy(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "copy",
        _copy,
        words="copy entries to or from an archive, another directory or a bucket",
        description="Copy entries from one place to another: a cache, which is a directory or a bucket, or an archive. The "
        "place that is not named is this cache.",
        examples=_EXAMPLES,
    )
    add = parser.add_argument
    add("entries", nargs="*", metavar="ENTRY", help="path, module name or unique prefix")
    add("--from", dest="source", metavar="PLACE", help="where the entries are (default: this cache)")
    add(
        "--to",
        dest="target",
        metavar="PLACE",
        help="where they are copied to (default: this cache); created if missing, except a bucket",
    )
    add_filter(parser)
    add(
        "--for-ci",
        action="store_true",
        help="only entries that this compiler would reuse with NEURON_CC_FLAGS",
    )
    add("--jobs", type=positive, metavar="N", help=f"number of entries copied at once (default: {_JOBS})")
    archives = parser.add_argument_group("archives")
    archives.add_argument("--force", action="store_true", help="overwrite an existing archive")
    archives.add_argument(
        "--max-size", metavar="SIZE", help=f"reject a larger archive (default: {_LARGEST_ARCHIVE})"
    )
    add = parser.add_argument_group("between caches").add_argument
    add("--only-done", action="store_true", help="skip graphs that were never compiled")
    add("--with-failed", action="store_true", help="copy cached failures too")
    add("--delete", action="store_true", help="afterwards, remove from TO what FROM does not have")
    add("--grace", metavar="AGE", help="with --delete: spare entries used less than AGE ago")
    add_confirmation(parser, "print what would be copied and removed, change nothing")


def _copy(arguments: argparse.Namespace) -> int:
    from neurontools.base.units import parse_age, parse_size
    from neurontools.cache.copy import runner

    source, target = _places(arguments)
    grace_s = option(arguments, "grace", parse_age)
    arguments.max_size = arguments.max_size or _LARGEST_ARCHIVE
    limit_bytes = option(arguments, "max_size", parse_size) or 0
    selection, details = _selection(arguments, source)
    with ExitStack() as stack:
        with ProgressCounter("listing", "objects") as listed, ProgressCounter("reading", "bytes") as unpacked:
            planned = runner.plan_copy(
                source,
                target,
                selection,
                details=details,
                force=arguments.force,
                limit_bytes=limit_bytes,
                on_listed=listed,
                on_unpacked=unpacked,
            )
            plan = stack.enter_context(planned)
        work = runner.prepare_deletion(plan, grace_s) if arguments.delete else None
        if arguments.dry_run:
            _show_plan(arguments, plan, work)
            return 0
        if not _is_agreed(arguments, work):
            console.warn("nothing copied, nothing removed")
            return 1
        with ProgressCounter("copying", "entries") as progress:
            result = runner.run_copy(plan, jobs=arguments.jobs or _JOBS, progress=progress)
    return _finish(arguments, plan, result, work)


def _finish(arguments: argparse.Namespace, plan: CopyPlan, result: CopyResult, work: Pruning | None) -> int:
    from neurontools.cache.copy import runner

    removal = work.carry_out()[0] if work is not None and result.is_complete else None
    if arguments.json:
        console.print_json(runner.copy_json(plan, result, None if work is None else work.plan, removal))
    else:
        show_left_out(runner.left_out_rows(plan, result))
        console.out(runner.format_result(plan, result))
    if removal is not None and not arguments.json:
        from neurontools.cache.pruning.prune import format_removal

        console.out(format_removal(removal, root=plan.target, width=width()))
    if result.stopped is not None:
        console.warn(runner.format_stopped(plan, result))
        raise result.stopped
    return 0 if result.is_complete else 1


def _places(arguments: argparse.Namespace) -> tuple[str, str]:
    """Return source and target, after the check that all options are for them."""
    from neurontools.cache.copy.archive import is_archive
    from neurontools.cache.location import is_remote, local_path, resolve

    exclude_each_other(arguments, "dry_run", "yes")
    named = (arguments.source, arguments.target)
    if "" in named:
        raise UsageError("a place must not be empty", "name a directory, a bucket or an archive")
    if named == (None, None):
        raise UsageError(
            "no place named", "add --to or --from: an archive, a directory or s3://BUCKET/PREFIX"
        )
    if arguments.cache_dir is not None and None not in named:
        raise UsageError("--cache-dir names no third place", "leave out --cache-dir")
    files = [place if place is None or is_remote(place) else local_path(place) for place in named]
    archives = [place is not None and is_archive(place) for place in files]
    if all(archives):
        raise UsageError("both places are archives", "copy the file, or import it into a directory first")
    for name, (from_archive, to_archive, words) in _ONLY_FOR.items():
        wanted = zip((from_archive, to_archive), archives, strict=True)
        if getattr(arguments, name) not in (None, False, []) and any(
            want not in (None, archive) for want, archive in wanted
        ):
            flag = "ENTRY" if name == "entries" else f"--{name.replace('_', '-')}"
            remedy = "select entries with --filter" if name == "entries" else f"leave out {flag}"
            raise UsageError(f"{flag} is for copying {words}", remedy)
    if arguments.grace is not None and not arguments.delete:
        raise UsageError("--grace needs --delete", "add --delete, or remove --grace")
    source, target = (
        os.path.abspath(str(file)) if is_file else resolve(url=place or arguments.cache_dir).root
        for place, file, is_file in zip(named, files, archives, strict=True)
    )
    return source, target


def _selection(arguments: argparse.Namespace, source: str) -> tuple[CopyFilter, bool]:
    """Return the entries to copy, and whether flags or names select them."""
    from neurontools.cache.copy.plan import CopyFilter
    from neurontools.cache.fields import parse_filters
    from neurontools.cache.selection import find_entries, reuse_filter

    chosen, now = parse_filters(arguments.filter), time.time()
    named = {entry.path for entry in find_entries(source, arguments.entries)}
    selection = CopyFilter(
        lambda entry: chosen.matches(entry, now) and (not named or entry.path in named),
        rejection=reuse_filter() if arguments.for_ci else lambda _: "",
        only_done=arguments.only_done,
        with_failed=arguments.with_failed,
    )
    return selection, chosen.needs_details or arguments.for_ci


def _is_agreed(arguments: argparse.Namespace, work: Pruning | None) -> bool:
    from neurontools.cache.pruning import prune

    if work is None or work.is_empty or arguments.yes:
        return True
    what = prune.format_plan(work.plan, most=prune.MOST_ASKED, width=width())
    return confirmed(f"{arguments.verb} --delete", what, prune.removal_question(work.plan, ()))


def _show_plan(arguments: argparse.Namespace, plan: CopyPlan, work: Pruning | None) -> None:
    from neurontools.cache.copy import runner
    from neurontools.cache.pruning import prune

    if arguments.json:
        console.print_json(runner.copy_json(plan, None, None if work is None else work.plan, None))
        return
    show_left_out(runner.left_out_rows(plan, None))
    console.out(runner.format_plan(plan))
    if work is not None:
        console.out(prune.format_plan(work.plan, width=width()))
