"""neuron-top: the live dashboard of the machine."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from typing import TYPE_CHECKING

from neurontools.commands import console
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

EXAMPLES = """examples:
  neuron-top                     live view; q quits, ? shows the keys
  neuron-top --interval 0.5      two updates a second
  neuron-top --once              one screen as text, rates over one interval
  neuron-top --machine ci        another machine
  neuron-top --source real       this host's own devices, where the Neuron driver is
  neuron-top --source run.jsonl  a recording: lines that neuron-monitor wrote

exit codes: 0 fine, 2 wrong command line, 3 no machine, 4 daemon trouble, 130 interrupted
"""

_SHORTEST_INTERVAL_S = 0.1
_LONGEST_INTERVAL_S = 3600.0


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        prog="neuron-top",
        description="Show NeuronCore utilization, vCPU and memory use of the machine, live. Without a terminal it "
        "prints one screen as text.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--interval", metavar="S", type=float, default=1.0, help="seconds between updates (default: 1)"
    )
    parser.add_argument(
        "--machine", metavar="NAME", help="machine to show (default: NEURONTOOLS_MACHINE or 'default')"
    )
    parser.add_argument(
        "--source",
        metavar="SOURCE",
        default="sim",
        help="where the data comes from: sim, real, or a file of neuron-monitor's lines, shown one each interval "
        "(default: sim)",
    )
    parser.add_argument("--once", action="store_true", help="print the current screen as text and exit")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    return console.run(lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> int:
    arguments = console.parse(build_parser(), argv)
    interval_s: float = arguments.interval
    if not _SHORTEST_INTERVAL_S <= interval_s <= _LONGEST_INTERVAL_S:
        raise UsageError(
            f"--interval {interval_s:g} is out of range",
            f"give {_SHORTEST_INTERVAL_S:g} to {_LONGEST_INTERVAL_S:g} seconds",
        )
    from neurontools.tui import top_run

    source, machine = arguments.source, arguments.machine
    if not arguments.once and _on_terminal():
        colour = console.colour_wanted()
        return top_run.run_live(source, machine, interval_s, colour=colour, on_notice=console.notice)
    if not arguments.once:
        console.warn(
            "no terminal: this is one screen as text (as with --once); run it in a terminal for the live view"
        )
    width = shutil.get_terminal_size().columns
    screen, notices = top_run.one_screen(source, machine, interval_s, width, console.notice)
    for text in notices:
        console.warn(text)
    console.out(screen)
    return 0


def _on_terminal() -> bool:
    streams = (sys.stdin, sys.stdout, sys.stderr)
    return all(stream.isatty() for stream in streams) and os.environ.get("TERM", "dumb") != "dumb"
