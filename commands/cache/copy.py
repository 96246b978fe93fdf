"""The verb `copy` of neuron-cache: entries from one place to another, each a cache or an archive."""

from __future__ import annotations

import os
from enum import Enum
from typing import TYPE_CHECKING

from neurontools.commands.cache import transfer
from neurontools.commands.cache.options import add_confirmation, add_filter, add_verb
from neurontools.errors import UsageError

if TYPE_CHECKING:
    import argparse

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
again. Buckets need: pip install 'neurontools[s3]'"""


class _Way(Enum):
    """How entries are copied, by the kinds of places; the value completes `is for copying ...`."""

    EXPORT = "to an archive"
    IMPORT = "from an archive"
    SYNC = "between caches"


# The options that not every way of copying has, and those that have them.
_ONLY_FOR = {
    "entries": (_Way.EXPORT,),
    "force": (_Way.EXPORT,),
    "for_ci": (_Way.EXPORT, _Way.IMPORT),
    "max_size": (_Way.IMPORT,),
    "only_done": (_Way.SYNC,),
    "with_failed": (_Way.SYNC,),
    "delete": (_Way.SYNC,),
    "grace": (_Way.SYNC,),
    "jobs": (_Way.SYNC,),
    "dry_run": (_Way.SYNC,),
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
    add(
        "entries",
        nargs="*",
        metavar="ENTRY",
        help="with an archive as TO: path, module name or unique prefix",
    )
    add("--from", dest="source", metavar="PLACE", help="where the entries are (default: this cache)")
    add(
        "--to",
        dest="target",
        metavar="PLACE",
        help="where they are copied to (default: this cache); created if missing, except a bucket",
    )
    add_filter(parser)
    archives = parser.add_argument_group("archives")
    add = archives.add_argument
    add(
        "--for-ci",
        action="store_true",
        help="only entries that this compiler would reuse with NEURON_CC_FLAGS",
    )
    add("--force", action="store_true", help="overwrite an existing archive")
    add(
        "--max-size",
        metavar="SIZE",
        help=f"reject a larger archive (default: {transfer.LARGEST_ARCHIVE})",
    )
    transfer.add_sync_options(parser.add_argument_group("between caches"))
    add_confirmation(parser, "print what would be copied and removed, change nothing")


def _copy(arguments: argparse.Namespace) -> int:
    for name in ("source", "target"):
        if getattr(arguments, name) == "":
            raise UsageError("a place must not be empty", "name a directory, a bucket or an archive")
    if arguments.source is None and arguments.target is None:
        raise UsageError(
            "no place named", "add --to or --from: an archive, a directory or s3://BUCKET/PREFIX"
        )
    if arguments.cache_dir is not None and None not in (arguments.source, arguments.target):
        raise UsageError("--cache-dir names no third place", "leave out --cache-dir")
    way = _way(arguments)
    for name, ways in _ONLY_FOR.items():
        if getattr(arguments, name) not in (None, False, []) and way not in ways:
            option = "ENTRY" if name == "entries" else f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{option} is for copying {' or '.join(each.value for each in ways)}",
                "select entries with --filter" if name == "entries" else f"leave out {option}",
            )
    return _run(arguments, way)


def _run(arguments: argparse.Namespace, way: _Way) -> int:
    if way is _Way.SYNC:
        from neurontools.cache.location import resolve

        here = resolve(url=arguments.cache_dir).root
        arguments.source = arguments.source or here
        arguments.target = arguments.target or here
        return transfer.run_sync(arguments)
    export = way is _Way.EXPORT
    arguments.file = arguments.target if export else arguments.source
    arguments.cache_dir = (arguments.source if export else arguments.target) or arguments.cache_dir
    return transfer.run_export(arguments) if export else transfer.run_import(arguments)


def _way(arguments: argparse.Namespace) -> _Way:
    source, target = _is_archive(arguments.source), _is_archive(arguments.target)
    if source and target:
        raise UsageError("both places are archives", "copy the file, or import it into a directory first")
    return _Way.IMPORT if source else _Way.EXPORT if target else _Way.SYNC


def _is_archive(place: str | None) -> bool:
    from neurontools.cache.archives.archive import SUFFIXES
    from neurontools.cache.location import is_remote, local_path

    if place is None or is_remote(place):
        return False
    path = local_path(place)
    return path.endswith(SUFFIXES) and not os.path.isdir(path)
