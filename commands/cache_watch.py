"""The verb of neuron-cache that follows a cache while programs use it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from neurontools.commands import console
from neurontools.commands.cache_options import add_verb, duration, location
from neurontools.commands.progress import ProgressLine
from neurontools.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from neurontools.cache.watch import CacheWatcher
    from neurontools.commands.cache_options import Verbs

_EXAMPLES = """examples:
  neuron-cache watch
  neuron-cache watch --until-idle 5m
  neuron-cache watch --json | jq 'select(.event == "compiled")'

Hits are those of this user. It ends with Ctrl-C, or with --until-idle."""

_SHORTEST_S, _LONGEST_S = 0.1, 3600.0


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "watch",
        _watch,
        words="follow what happens: compiles, hits, waits, failures, removals",
        description="Follow a cache while programs use it: a line for each compile that begins or ends, each hit, wait, "
        "failure and removal. A terminal also shows how things stand.",
        examples=_EXAMPLES,
    )
    parser.add_argument("--interval", default="1s", metavar="TIME", help="time between looks (1s)")
    parser.add_argument(
        "--until-idle", metavar="TIME", help="end when nothing was compiled and nothing happened for TIME"
    )


def _watch(arguments: argparse.Namespace) -> int:
    from neurontools.cache.watch import CacheWatcher

    interval_s, idle_s = _time(arguments.interval, "--interval"), duration(arguments.until_idle)
    root = location(arguments).root
    console.notice(f"watching {root}")
    watch = CacheWatcher(root)
    status = ProgressLine(enabled=not arguments.json, delay_s=0)
    try:
        _follow(watch, interval_s, idle_s, _teller(arguments, watch, status))
    finally:
        status.clear()
    return 0


def _time(text: str, option: str) -> float:
    seconds = duration(text)
    if seconds is None or not _SHORTEST_S <= seconds <= _LONGEST_S:
        raise UsageError(f"{option} {text} is out of range", "give 0.1s to 1h")
    return seconds


def _follow(watch: CacheWatcher, interval_s: float, idle_s: float | None, tell: Callable[[], bool]) -> None:
    quiet_since = time.monotonic()
    while True:
        if tell() or watch.summary.compiling:
            quiet_since = time.monotonic()
        if idle_s is not None and time.monotonic() - quiet_since >= idle_s:
            return
        console.pause(interval_s)


def _teller(arguments: argparse.Namespace, watch: CacheWatcher, status: ProgressLine) -> Callable[[], bool]:
    """Return what looks once and prints; it returns whether anything happened."""
    from neurontools.cache.watch import event_json, format_event, format_summary

    line_of = event_json if arguments.json else format_event

    def tell() -> bool:
        found = watch.look()
        if found:
            status.clear()
            console.out_now("\n".join(line_of(item) for item in found))
        status.show(format_summary(watch.summary))
        return bool(found)

    return tell
