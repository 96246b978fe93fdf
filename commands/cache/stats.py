"""Verbs of neuron-cache that count and follow: stats, watch."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from neurontools.commands import console
from neurontools.commands.cache.options import (
    add_old_verb,
    add_verb,
    exclude_each_other,
    location,
    width,
)
from neurontools.commands.parsing import add_duration
from neurontools.commands.progress import ProgressCounter, ProgressLine
from neurontools.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from neurontools.cache.stats import Stats
    from neurontools.cache.watch import CacheWatcher
    from neurontools.commands.parsing import Verbs


_STATS_EXAMPLES = """examples:
  neuron-cache stats
  neuron-cache stats --runs
  neuron-cache stats --path -q
  neuron-cache stats --from-log train.log
  train 2>&1 | tee train.log | neuron-cache stats --from-log -"""
_WATCH_EXAMPLES = """examples:
  neuron-cache watch
  neuron-cache watch --until-idle 5m
  neuron-cache watch --json | jq 'select(.event == "compiled")'

Hits are those of this user. Press Ctrl-C to stop."""
_SHORTEST_S, _LONGEST_S = 0.1, 3600.0


def add_stats(verbs: Verbs) -> None:
    """Add the verbs."""
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
        "--from-log",
        metavar="FILE",
        help="count hits and misses in a log of the real or simulated compiler wrapper; - for stdin",
    )
    stats.add_argument(
        "--path",
        action="store_true",
        help="print the cache's path and the settings that can name it, * in effect",
    )
    stats.add_argument("-q", "--quiet", action="store_true", help="with --path: print the path only")
    add_old_verb(verbs, "du", "neuron-cache stats", _du)
    path = add_old_verb(verbs, "path", "neuron-cache stats --path", _path)
    path.add_argument("-q", "--quiet", action="store_true", help="print the path only")


def _stats(arguments: argparse.Namespace) -> int:
    exclude_each_other(arguments, "runs", "from_log", "path")
    if arguments.path:
        return _path(arguments)
    if arguments.quiet:
        raise UsageError("-q needs --path", "neuron-cache stats --path -q")
    if arguments.from_log is not None:
        return _from_log(arguments)
    if arguments.runs:
        return _runs(arguments)
    from neurontools.cache import stats

    sums = _sums(arguments)
    if arguments.json:
        console.print_json(stats.stats_json(sums))
    else:
        console.out(stats.format_stats(sums, width()))
    return 0


def _path(arguments: argparse.Namespace) -> int:
    from neurontools.cache.location import format_location, location_json

    exclude_each_other(arguments, "json", "quiet")
    found = location(arguments, remote=True)
    if arguments.json:
        console.print_json(location_json(found))
    else:
        console.out(found.root if arguments.quiet else format_location(found))
    return 0


def _du(arguments: argparse.Namespace) -> int:
    from neurontools.cache import stats

    sums = _sums(arguments)
    if arguments.json:
        console.print_json(stats.totals_json(sums))
    else:
        console.out(stats.format_totals(sums, width()))
    return 0


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
    if arguments.json:
        console.print_json(stats.runs_json(found))
    else:
        console.out(stats.format_runs(found, width()))
    return 0


def _from_log(arguments: argparse.Namespace) -> int:
    import sys
    from contextlib import ExitStack

    from neurontools.cache import log_counts

    with ExitStack() as stack:
        progress = stack.enter_context(ProgressCounter("reading", "bytes"))
        named = arguments.from_log != "-"
        log = stack.enter_context(open(arguments.from_log, "rb")) if named else sys.stdin.buffer
        counts = log_counts.count_lines(log_counts.read_lines(log, progress))
    if arguments.json:
        console.print_json(log_counts.counts_json(counts))
    else:
        console.out(log_counts.format_counts(counts))
    return 0


def add_watch(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "watch",
        _watch,
        words="follow compiles, hits, waits, failures and removals",
        description="Follow a cache while programs use it: one line for the start and end of each compile, and for each hit, "
        "wait, failure and removal. A terminal also shows a summary.",
        examples=_WATCH_EXAMPLES,
    )
    add_duration(parser, "--interval", "time between two polls (default: 1s)", 1.0)
    add_duration(parser, "--until-idle", "exit after this long without a compile or an event")


def _watch(arguments: argparse.Namespace) -> int:
    from neurontools.cache.watch import CacheWatcher

    if not _SHORTEST_S <= arguments.interval <= _LONGEST_S:
        raise UsageError(f"--interval of {arguments.interval:g} seconds is out of range", "use 0.1s to 1h")
    root = location(arguments).root
    console.notice(f"watching {root}")
    watch = CacheWatcher(root)
    status = ProgressLine(enabled=not arguments.json, delay_s=0)
    try:
        _follow(watch, arguments.interval, arguments.until_idle, _event_emitter(arguments, watch, status))
    finally:
        status.clear()
    return 0


def _follow(watch: CacheWatcher, interval_s: float, idle_s: float | None, emit: Callable[[], bool]) -> None:
    quiet_since = time.monotonic()
    while True:
        if emit() or watch.summary.compiling:
            quiet_since = time.monotonic()
        if idle_s is not None and time.monotonic() - quiet_since >= idle_s:
            return
        console.pause(interval_s)


def _event_emitter(
    arguments: argparse.Namespace, watch: CacheWatcher, status: ProgressLine
) -> Callable[[], bool]:
    """Return a function that prints new events once; it returns whether there were any."""
    from neurontools.cache.watch import event_json, format_event, format_summary

    line_of = event_json if arguments.json else format_event

    def emit() -> bool:
        found = watch.poll()
        if found:
            status.clear()
            console.out_now("\n".join(line_of(item) for item in found))
        status.show(format_summary(watch.summary))
        return bool(found)

    return emit
