"""neuron-profile: look at captured profiles in the terminal, as tables, and as files of other programs."""

from __future__ import annotations

import argparse

from neurontools import __version__
from neurontools.commands import console
from neurontools.commands.profile import advise, capture, compare, kernel, live, numbers, sql, view, what_if

EXAMPLES = """examples:
  neuron-run --profile prof -- python train.py       capture
  neuron-profile view prof                           timeline on a terminal, summary in a pipe
  neuron-profile advise prof                         what to change, and what it gains
  neuron-profile summary prof --json --nc 0          numbers for programs
  neuron-profile steps prof                          where the time of steps goes
  neuron-profile top prof --limit 20 --skip-warmup   operators by modelled time
  neuron-profile top prof --by layer --steps 3-7     also by shape, source, engine, rank, opcode
  neuron-profile gaps prof                           what the host did between executions
  neuron-profile roofline prof                       what bounds each operator
  neuron-profile critical-path prof                  the work that determines the time of a graph
  neuron-profile ranks prof                          stragglers among workers
  neuron-profile diff before after                   what became slower or faster
  neuron-profile check prof --fail-if 'step_time>120ms'
  neuron-profile sql 'SELECT * FROM OpcodeSummary' prof
  neuron-profile view prof --output-format perfetto --output-file run.pftrace
  neuron-profile live                                the last seconds of a running process
  neuron-profile capture -n model.neff -s out --num-exec 3
  neuron-profile what-if prof --dtype bf16 --batch 8=16
  neuron-profile what-if model.neff --instance trn1.32xlarge,trn2.48xlarge --prices prices.yaml
  neuron-profile kernel add.py::add --shape a=128x512:bf16 --shape b=128x512:bf16

exit codes: 0 success, 1 no profile, or the file is not writable, 2 usage error, 130 interrupted; diff and check:
3 inconclusive
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        prog="neuron-profile",
        description="Capture and view profiles of runs on the simulated device. Wall times are measured, device times modelled.",
        epilog=EXAMPLES,
    )
    parser.add_argument("-v", action="version", version=f"%(prog)s {__version__}", help=argparse.SUPPRESS)
    parser.add_argument(
        "--show-profile-schema",
        action=_Schema,
        nargs=0,
        help="list the tables of 'neuron-profile sql' and exit",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    view.add(verbs)
    numbers.add(verbs)
    compare.add(verbs)
    sql.add(verbs)
    advise.add(verbs)
    what_if.add(verbs)
    live.add(verbs)
    capture.add(verbs)
    kernel.add(verbs)
    return parser


class _Schema(argparse.Action):
    """Prints the tables of `sql`."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        sql.print_schema()
        parser.exit()


main = console.command(build_parser)
