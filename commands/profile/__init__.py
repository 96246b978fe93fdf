"""neuron-profile: look at captured profiles in the terminal, as tables, and as files of other programs."""

from __future__ import annotations

import argparse

from neurontools.commands import console
from neurontools.commands.parsing import add_verb
from neurontools.commands.profile import advise, view, what_if
from neurontools.commands.profile.options import DEFAULT_DIRECTORY

EXAMPLES = """examples:
  neuron-run --profile prof -- python train.py       capture
  neuron-profile view prof                           timeline on a terminal, summary in a pipe
  neuron-profile summary prof --json --nc 0          numbers for programs
  neuron-profile top prof --limit 20 --skip-warmup        operators by modelled time
  neuron-profile advise prof                         what to change, and what it gains
  neuron-profile view prof --output-format perfetto --output-file run.pftrace
  neuron-profile inspect -o out python train.py      as neuron-run --profile
  neuron-profile what-if prof --dtype bf16 --batch 8=16
  neuron-profile what-if model.neff --instance trn1.32xlarge,trn2.48xlarge --prices prices.yaml

exit codes: 0 success, 1 no profile there, or the file is not writable, 2 usage error, 130 interrupted; inspect: the
exit code of the program
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        prog="neuron-profile",
        description="View profiles of runs on the simulated device. Wall times are measured, device times modelled.",
        epilog=EXAMPLES,
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    view.add(verbs)
    advise.add(verbs)
    what_if.add(verbs)
    purpose = "run a program with profiling, like neuron-run --profile"
    inspect = add_verb(verbs, "inspect", purpose, _inspect)
    inspect.add_argument(
        "-o",
        "--output-dir",
        default=DEFAULT_DIRECTORY,
        metavar="DIR",
        help="directory for the profile (default: %(default)s)",
    )
    inspect.add_argument("command", nargs=argparse.REMAINDER, metavar="PROGRAM [ARG ...]")
    return parser


def _inspect(arguments: argparse.Namespace) -> int:
    from neurontools.compat import launch
    from neurontools.errors import UsageError

    if not arguments.command:
        raise UsageError("no program given", "neuron-profile inspect -o DIR python train.py")
    command = arguments.command[1:] if arguments.command[0] == "--" else arguments.command
    launch.run(launch.RunOptions(tuple(command), profile=arguments.output_dir))
    return 0


main = console.command(build_parser)
