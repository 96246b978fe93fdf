"""neuron-cache: look into the compile cache and keep it small."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from neurontools.commands import console
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.cache.prune import Rules
    from neurontools.cache.pruning import Pruning

_DESCRIPTION = (
    "Look into the compile cache and keep it small. Starts nothing, and only prune changes anything."
)
_EXAMPLES = """examples:
  neuron-cache ls --sort size --limit 10
  neuron-cache ls --failed
  neuron-cache stats
  neuron-cache prune --max-size 20GB --older-than 30d --dry-run
  neuron-cache prune --failed --interrupted -y
  neuron-cache path"""
_PRUNE_EXAMPLES = """examples:
  neuron-cache prune --max-size 20GB --dry-run
  neuron-cache prune --older-than 30d --failed -y
  neuron-cache prune --break-stale 4h -y

Entries that are locked or loaded by a process are spared. Where flock does not show what is loaded (network file
systems), what was used within 24 hours is spared; entries of other tools are spared for 10 minutes."""


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        prog="neuron-cache",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", metavar="COMMAND", required=True)
    _add_ls(verbs)
    _add_stats(verbs)
    _add_prune(verbs)
    _add_path(verbs)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    return console.run(lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> int:
    arguments = console.parse(build_parser(), argv)
    code: int = arguments.run(arguments)
    return code


def _add_ls(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("ls", help="list the entries", description="List the entries of the cache.")
    _add_common(parser, _ls)
    parser.add_argument(
        "--sort",
        default="used",
        metavar="KEY",
        help="used, made, size, hits, state, name or compiler; KEY:asc or KEY:desc turns it (default: used)",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="show only the first N")
    parser.add_argument("--failed", action="store_true", help="show only failed and interrupted compiles")
    parser.add_argument("-q", "--quiet", action="store_true", help="print only paths")


def _add_stats(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "stats",
        help="sums, what could be freed, hits and misses",
        description="Sums by state and compiler, what could be freed, hits and misses of this user.",
    )
    _add_common(parser, _stats)


def _add_prune(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "prune",
        help="remove entries by rules",
        description="Remove the entries that any of the rules selects.",
        epilog=_PRUNE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_common(parser, _prune)
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
    parser.add_argument("--dry-run", action="store_true", help="say what would be removed and remove nothing")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")


def _add_path(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "path",
        help="which directory is the cache, and why",
        description="Print the cache's directory and the settings that could name it; * marks the one that won.",
    )
    _add_common(parser, _path)
    parser.add_argument("-q", "--quiet", action="store_true", help="print only the directory")


def _add_common(parser: argparse.ArgumentParser, run: object) -> None:
    parser.set_defaults(run=run)
    parser.add_argument(
        "--cache-dir",
        "--cache_dir",
        metavar="DIR",
        help="the cache's directory (default: NEURON_CC_FLAGS --cache_dir, NEURON_COMPILE_CACHE_URL, "
        "/var/tmp/neuron-compile-cache)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON: bytes and Unix seconds")


def _ls(arguments: argparse.Namespace) -> int:
    import time

    from neurontools.cache import entries, listing, report
    from neurontools.cache.location import resolve

    found = entries.scan_location(resolve(url=arguments.cache_dir))
    order = listing.parse_order(arguments.sort)
    rows = listing.select(found.entries, order, failed=arguments.failed, limit=arguments.limit)
    if arguments.json:
        shown = [report.entry_json(entry) for entry in rows]
        _print_json({"root": found.root, "entries": shown, "skipped": found.skipped})
    elif arguments.quiet:
        for entry in rows:
            console.out(entry.path)
    else:
        console.out(report.entries_text(found, rows, time.time()))
    return 0


def _stats(arguments: argparse.Namespace) -> int:
    from neurontools.cache import entries, report, stats
    from neurontools.cache.location import resolve

    found = entries.scan_location(resolve(url=arguments.cache_dir))
    sums = stats.collect(found, entries.is_in_use)
    if arguments.json:
        _print_json(report.stats_json(sums))
    else:
        console.out(report.stats_text(sums))
    return 0


def _prune(arguments: argparse.Namespace) -> int:
    from neurontools.cache import pruning, report
    from neurontools.cache.entries import scan_location
    from neurontools.cache.location import resolve

    stale_s = _duration(arguments.break_stale)
    found = scan_location(resolve(url=arguments.cache_dir))
    work = pruning.prepare(found, _rules(arguments), stale_s)
    if arguments.dry_run or work.is_empty:
        _print_plan(work, as_json=arguments.json)
        return 0
    if not arguments.yes:
        console.out(report.plan_text(work.plan, work.locks))
        if not _confirmed():
            console.out("nothing removed")
            return 1
    removal, broken = work.carry_out()
    if arguments.json:
        _print_json(report.plan_json(work.plan, removal, broken))
    else:
        console.out(report.removal_text(removal, broken))
    return 0


def _print_plan(work: Pruning, *, as_json: bool) -> None:
    from neurontools.cache import report

    if as_json:
        _print_json(report.plan_json(work.plan, None, work.locks))
    else:
        console.out(report.plan_text(work.plan, work.locks))


def _rules(arguments: argparse.Namespace) -> Rules:
    from neurontools.cache.prune import Rules
    from neurontools.cache.quantities import parse_size

    return Rules(
        max_bytes=None if arguments.max_size is None else parse_size(arguments.max_size),
        older_than_s=_duration(arguments.older_than),
        failed=arguments.failed,
        interrupted=arguments.interrupted,
        grace_s=_duration(arguments.grace),
    )


def _duration(text: str | None) -> float | None:
    from neurontools.cache.quantities import parse_duration

    return None if text is None else parse_duration(text)


def _path(arguments: argparse.Namespace) -> int:
    from neurontools.cache import report
    from neurontools.cache.location import resolve

    location = resolve(url=arguments.cache_dir)
    if arguments.json:
        _print_json(report.location_json(location))
    else:
        console.out(location.root if arguments.quiet else report.location_text(location))
    return 0


def _confirmed() -> bool:
    if not sys.stdin.isatty():
        raise UsageError(
            "prune asks before it removes, and nobody can answer here", "add -y, or --dry-run to look only"
        )
    try:
        return input("Remove these? [y/N] ").strip().lower() in {"y", "yes"}
    except EOFError:
        return False


def _print_json(value: object) -> None:
    import json

    console.out(json.dumps(value, indent=2))
