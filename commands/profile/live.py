"""neuron-profile live: what a running process did in the last seconds, again and again."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from typing import TYPE_CHECKING

from neurontools.base.text import printable_lines
from neurontools.commands import console
from neurontools.commands.parsing import add_duration, add_json, add_machine, add_verb, positive

if TYPE_CHECKING:
    from neurontools.commands.parsing import Verbs
    from neurontools.profiler.analysis.live import LiveNumbers
    from neurontools.profiler.live import LiveProfile

_SHORTEST_S, _LONGEST_S = 0.1, 3600.0
_ONCE_S = 10.0
_EXAMPLES = """The process profiles itself while it is watched, into files that keep only the newest records, and stops when
this command ends. It must belong to you. Times of steps are measured, those of engines and operators modelled.

examples:
  neuron-profile live
  neuron-profile live 4711 --interval 0.5
  neuron-profile live --once
  neuron-profile live --json | jq .steps.summary.median_ns"""


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(verbs, "live", "watch a running process, without restarting it", _live)
    parser.epilog = _EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "pid",
        nargs="?",
        type=positive,
        metavar="PID",
        help="process to watch (default: the only one of this user)",
    )
    add_duration(parser, "--interval", "time between updates, 0.1s to 1h (default: 1s)", 1.0)
    parser.add_argument("--once", action="store_true", help="print the numbers once and exit")
    add_json(parser, "print one JSON object per line (base units)")
    add_machine(parser)


def _live(arguments: argparse.Namespace) -> int:
    from neurontools.errors import UsageError
    from neurontools.machine.client import Client
    from neurontools.machine.processes import ProcessKey
    from neurontools.profiler.live import LiveProfile, choose_process

    if not _SHORTEST_S <= arguments.interval <= _LONGEST_S:
        raise UsageError(
            f"--interval of {arguments.interval:g} seconds is out of range",
            f"use {_SHORTEST_S:g} to {_LONGEST_S:g} seconds",
        )
    once = arguments.once
    if not (once or arguments.json or sys.stdout.isatty()):
        console.warn("not a terminal: printing once (as with --once); --json prints a line an interval")
        once = True
    console.exit_on_sigterm()
    with Client.connect(arguments.machine) as client:
        process = choose_process(client.snapshot().processes, arguments.pid)
        with LiveProfile(client, ProcessKey(process.pid, process.start_ticks)) as profile:
            if once:
                return _show_once(profile, process.command, as_json=arguments.json)
            while profile.is_running:
                console.pause(arguments.interval)
                _show(profile.read(), process.command, as_json=arguments.json, in_place=True)
    console.err(f"process {process.pid} has ended")
    return 0


def _show_once(profile: LiveProfile, command: str, *, as_json: bool) -> int:
    """Print the first numbers of a step; without one in some seconds, what there is."""
    give_up = time.monotonic() + _ONCE_S
    while True:
        console.pause(1.0)
        numbers = profile.read()
        if numbers.steps is not None or time.monotonic() > give_up or not profile.is_running:
            _show(numbers, command, as_json=as_json, in_place=False)
            return 0 if numbers.executions else 1


def _show(numbers: LiveNumbers, command: str, *, as_json: bool, in_place: bool) -> None:
    from neurontools.profiler.analysis.live import to_json, to_text

    if as_json:
        console.out_now(json.dumps(to_json(numbers), separators=(",", ":")))
        return
    size = shutil.get_terminal_size()
    text = printable_lines(to_text(numbers, command, size.columns))
    if not in_place:
        console.out_now(text)
        return
    lines = text.split("\n")[: size.lines - 1]
    console.bytes_now(("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J").encode())
