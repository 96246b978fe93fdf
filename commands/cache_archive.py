"""The verbs of neuron-cache that carry entries elsewhere: export, import."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.commands import console
from neurontools.commands.cache_options import (
    add_filter,
    add_verb,
    location,
    option,
    print_json,
    show_left_out,
)
from neurontools.commands.progress import ProgressCounter
from neurontools.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from neurontools.cache.entries import Entry
    from neurontools.commands.cache_options import Verbs

_EXPORT_EXAMPLES = """examples:
  neuron-cache export --filter 'name~bert' 'used<7d' bert.tar.zst
  neuron-cache export --for-ci ci.tar.gz
  neuron-cache export all.tar.zst
  neuron-cache export one.tar 92195234

Only finished entries that 'verify' finds sound are exported. The name says how to compress: .tar.zst .tar.gz .tgz .tar"""
_IMPORT_EXAMPLES = """examples:
  neuron-cache import bert.tar.zst
  neuron-cache import --for-ci ci.tar.gz
  neuron-cache import --filter 'name~bert' --max-size 2GB all.tar.zst

Everything is checked before the first entry appears. What is finished in the cache stays as it is."""


def add(verbs: Verbs) -> None:
    """Add the verbs."""
    export = add_verb(
        verbs,
        "export",
        _export,
        words="write entries to an archive",
        description="Write finished entries to an archive with checksums.",
        examples=_EXPORT_EXAMPLES,
    )
    export.add_argument("file", nargs="?", metavar="FILE", help="the archive to make")
    export.add_argument("entries", nargs="*", metavar="ENTRY", help="a path, a module, or the start of one")
    export.add_argument("--force", action="store_true", help="replace an archive that is there")
    imported = add_verb(
        verbs,
        "import",
        _import,
        words="take entries from an archive",
        description="Take entries from an archive that export made.",
        examples=_IMPORT_EXAMPLES,
    )
    imported.add_argument("file", nargs="?", metavar="FILE", help="the archive")
    imported.add_argument(
        "--max-size", default="64GiB", metavar="SIZE", help="refuse an archive of more (default: %(default)s)"
    )
    for parser in (export, imported):
        add_filter(parser)
        parser.add_argument(
            "--for-ci", action="store_true", help="only what this compiler with NEURON_CC_FLAGS would hit"
        )


def _export(arguments: argparse.Namespace) -> int:
    from neurontools.base.text import plural
    from neurontools.base.units import format_size
    from neurontools.cache.archives.exporter import export_entries
    from neurontools.cache.selection import select_entries

    target = _file(arguments)
    judge = _fitting(arguments)
    where = location(arguments, remote=True)
    places = select_entries(where, arguments.entries, arguments.filter)
    with ProgressCounter("exporting", "entries") as progress:
        made = export_entries(
            where.root, places, target, judge=judge, replace=arguments.force, progress=progress
        )
    if arguments.json:
        print_json(
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
    judge = _judge(arguments)
    root = location(arguments).root
    limit_bytes = option(arguments, "max_size", parse_size) or 0
    with ProgressCounter("reading", "bytes") as progress:
        done = import_archive(path, root, judge=judge, limit_bytes=limit_bytes, progress=progress)
    if arguments.json:
        print_json(
            {
                "root": done.root,
                "imported": list(done.imported),
                "present": list(done.present),
                "locked": list(done.locked),
                "unwanted": [{"path": item, "reason": reason} for item, reason in done.unwanted],
            }
        )
        return 0
    show_left_out([*done.unwanted, *((item, "locked by a process that compiles it") for item in done.locked)])
    there = f", {plural(len(done.present), 'was', 'were')} there" if done.present else ""
    console.out(f"{plural(len(done.imported), 'entry', 'entries')} imported to {done.root}{there}")
    return 0


def _file(arguments: argparse.Namespace) -> str:
    from neurontools.cache.archives.archive import SUFFIXES

    # `--filter a b FILE`: argparse gives the last word to the option.
    if arguments.file is None and arguments.filter and arguments.filter[-1].endswith(SUFFIXES):
        return str(arguments.filter.pop())
    if arguments.file is None:
        raise UsageError("nothing says which archive", "name it, for example cache.tar.zst")
    return str(arguments.file)


def _fitting(arguments: argparse.Namespace) -> Callable[[Entry], str]:
    from neurontools.cache.selection import reuse_filter

    return reuse_filter() if arguments.for_ci else lambda _: ""


def _judge(arguments: argparse.Namespace) -> Callable[[Entry], str]:
    import time

    from neurontools.cache.filters import parse_filters

    chosen, fitting, now = parse_filters(arguments.filter), _fitting(arguments), time.time()
    return lambda entry: fitting(entry) if chosen.matches(entry, now) else "not chosen by the filter"
