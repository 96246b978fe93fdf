"""The parser of neuron-ls for its help and shell completion; `listing.flags` parses the flags."""

from __future__ import annotations

import argparse

from neurontools.machine.listing.filters import DEVICE_KEYS, PROCESS_KEYS
from neurontools.machine.listing.flags import COLOURS, DEFAULT_PERIOD_S, FORMATS

EPILOG = f"""filters: KEY OPERATOR VALUE[,VALUE...]; all filters must hold, and one of the values of each
  of devices    {", ".join(DEVICE_KEYS)}
  of processes  {", ".join(PROCESS_KEYS)}
  operators     = != for all, ~ !~ (contains) for text, > >= < <= for numbers and sizes (512MB, 1.5GB)
  states        idle, busy (processes hold cores), executing (busy, and a core runs now)

examples:
  neuron-ls
  neuron-ls --wide --show-all-procs
  neuron-ls --topology
  neuron-ls -j | jq 'map(.nc_count) | add'
  neuron-ls --machine ci --device 0-3 --format csv
  neuron-ls --filter state=busy 'memory-used>1GB' --owner me
  neuron-ls --watch --filter 'command~python'
  neuron-ls --source real --verbose

exit codes: 0 success, 1 no machine or invalid flag, 2 invalid machine name or source, 4 daemon error,
130 interrupted
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser."""
    parser = argparse.ArgumentParser(
        prog="neuron-ls",
        description="List the Neuron devices of the machine and the processes on them.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "-w", "--wide", action="store_true", help="cut commands to 80 characters instead of 40"
    )
    parser.add_argument(
        "-a",
        "--show-all-procs",
        action="store_true",
        help="also list processes without a Neuron runtime (runtime version NA)",
    )
    parser.add_argument("-t", "--topology", action="store_true", help="draw how the devices are connected")
    parser.add_argument("-j", "--json-output", action="store_true", help="print JSON")
    _add_ours(parser.add_argument_group("flags that the real tool does not have"))
    return parser


def _add_ours(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--format", choices=FORMATS, help="text, json (as -j), or csv: one line per process")
    group.add_argument("--csv", action="store_true", help="same as --format csv")
    group.add_argument("--device", metavar="LIST", help="only these devices, e.g. 0,2 or 0-3")
    group.add_argument(
        "--filter",
        metavar="EXPR",
        nargs="+",
        action="append",
        help="only devices and processes that match EXPR; see below",
    )
    group.add_argument("--owner", metavar="USER", help="only processes of a user: a name, a uid, or me")
    group.add_argument(
        "--color",
        choices=COLOURS,
        nargs="?",
        help="use colours (auto: on a terminal, unless NO_COLOR is set)",
    )
    group.add_argument(
        "--watch",
        metavar="SECONDS",
        nargs="?",
        help=f"print again after every change, checked every SECONDS (default {DEFAULT_PERIOD_S:g}); "
        "with -j one line of JSON each time",
    )
    group.add_argument(
        "--machine", metavar="NAME", help="machine name (default: NEURONTOOLS_MACHINE or 'default')"
    )
    group.add_argument(
        "--source",
        metavar="real|sim|FILE",
        help="data source: the simulated machine (default), this host, or a recording",
    )
    group.add_argument("--verbose", action="store_true", help="print the source on stderr")
