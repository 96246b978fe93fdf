"""The verbs of neuron-cache that count: stats and du."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.commands import console
from neurontools.commands.cache_options import add_verb, exclude_each_other, location, print_json, width
from neurontools.commands.progress import ProgressCounter

if TYPE_CHECKING:
    import argparse

    from neurontools.cache.stats import Stats
    from neurontools.commands.cache_options import Verbs

_EXAMPLES = """examples:
  neuron-cache stats
  neuron-cache stats --runs
  neuron-cache stats --from-log train.log
  train 2>&1 | tee train.log | neuron-cache stats --from-log -"""


def add(verbs: Verbs) -> None:
    """Add the verbs."""
    stats = add_verb(
        verbs,
        "stats",
        _stats,
        words="sums, what could be freed, hits and misses",
        description="Sums by state, layout and compiler, what could be freed, hits and misses of this user.",
        examples=_EXAMPLES,
    )
    stats.add_argument(
        "--runs", action="store_true", help="hits, misses, waits and seconds saved of each run"
    )
    stats.add_argument(
        "--from-log", metavar="FILE", help="count in a log of the real or simulated wrapper; - for stdin"
    )
    add_verb(
        verbs,
        "du",
        _du,
        words="sizes by state and compiler",
        description="Sums by state, layout and compiler, and what could be freed.",
    )


def _stats(arguments: argparse.Namespace) -> int:
    exclude_each_other(arguments, "runs", "from_log")
    if arguments.from_log is not None:
        return _from_log(arguments)
    if arguments.runs:
        return _runs(arguments)
    from neurontools.cache import stats

    sums = _sums(arguments)
    if arguments.json:
        print_json(stats.stats_json(sums))
    else:
        console.out(stats.format_stats(sums, width()))
    return 0


def _du(arguments: argparse.Namespace) -> int:
    from neurontools.cache import stats

    sums = _sums(arguments)
    if arguments.json:
        print_json(stats.totals_json(sums))
    else:
        console.out(stats.format_totals(sums, width()))
    return 0


def _sums(arguments: argparse.Namespace) -> Stats:
    from neurontools.cache import entries, in_use, stats
    from neurontools.cache.walk import walk

    where = location(arguments, remote=True)
    with ProgressCounter("listing", "objects") as progress:
        found = walk(where.root, progress)
    entries.check_root_exists(where, found)
    with ProgressCounter("looked at", "entries") as progress:
        return stats.collect_stats(found, in_use.in_use_checker(found.root), progress)


def _runs(arguments: argparse.Namespace) -> int:
    from neurontools.cache import events, stats

    found = stats.group_runs(events.Events(location(arguments, remote=True).root).read())
    if arguments.json:
        print_json(stats.runs_json(found))
    else:
        console.out(stats.format_runs(found, width()))
    return 0


def _from_log(arguments: argparse.Namespace) -> int:
    import sys
    from contextlib import ExitStack

    from neurontools.cache import wrapper_log

    with ExitStack() as stack:
        progress = stack.enter_context(ProgressCounter("reading", "bytes"))
        named = arguments.from_log != "-"
        log = stack.enter_context(open(arguments.from_log, "rb")) if named else sys.stdin.buffer
        counts = wrapper_log.count_lines(wrapper_log.read_lines(log, progress))
    if arguments.json:
        print_json(wrapper_log.counts_json(counts))
    else:
        console.out(wrapper_log.format_counts(counts))
    return 0
