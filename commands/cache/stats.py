"""The verb `stats` of neuron-cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.commands import console
from neurontools.commands.cache.options import (
    add_verb,
    exclude_each_other,
    location,
    width,
)
from neurontools.commands.progress import ProgressCounter
from neurontools.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from neurontools.cache.stats import Stats
    from neurontools.commands.parsing import Verbs


_STATS_EXAMPLES = """examples:
  neuron-cache stats
  neuron-cache stats --runs
  neuron-cache stats --path -q"""


def add_stats(verbs: Verbs) -> None:
    """Add the verb."""
    stats = add_verb(
        verbs,
        "stats",
        _stats,
        words="print totals, reclaimable space, hits and misses",
        description="Print totals by state, layout and compiler, reclaimable space, and this user's hits and misses.",
        examples=_STATS_EXAMPLES,
    )
    stats.add_argument(
        "--runs", action="store_true", help="print hits, misses, waits and seconds saved of each run"
    )
    stats.add_argument(
        "--path",
        action="store_true",
        help="print the cache's path and the settings that can name it, * in effect",
    )
    stats.add_argument("-q", "--quiet", action="store_true", help="with --path: print the path only")


def _stats(arguments: argparse.Namespace) -> int:
    exclude_each_other(arguments, "runs", "path")
    if arguments.path:
        return _path(arguments)
    if arguments.quiet:
        raise UsageError("-q needs --path", "neuron-cache stats --path -q")
    if arguments.runs:
        return _runs(arguments)
    from neurontools.cache import stats

    sums = _sums(arguments)
    return console.show(
        arguments.json, lambda: stats.stats_json(sums), lambda: stats.format_stats(sums, width())
    )


def _path(arguments: argparse.Namespace) -> int:
    from neurontools.cache.location import format_location, location_json

    exclude_each_other(arguments, "json", "quiet")
    found = location(arguments, remote=True)
    return console.show(
        arguments.json,
        lambda: location_json(found),
        lambda: found.root if arguments.quiet else format_location(found),
    )


def _sums(arguments: argparse.Namespace) -> Stats:
    from neurontools.cache import entries, locks, stats
    from neurontools.cache.walk import walk

    where = location(arguments, remote=True)
    with ProgressCounter("listing", "objects") as progress:
        found = walk(where.root, progress)
    entries.check_root_exists(where, found)
    with ProgressCounter("reading", "entries") as progress:
        return stats.collect_stats(found, locks.in_use_checker(found.root), progress)


def _runs(arguments: argparse.Namespace) -> int:
    from neurontools.cache import events, stats

    found = stats.group_runs(events.Events(location(arguments, remote=True).root).read())
    return console.show(
        arguments.json, lambda: stats.runs_json(found), lambda: stats.format_runs(found, width())
    )
