"""neuron-packager: look into a NEFF and take it apart."""

from __future__ import annotations

import argparse

from neurontools.commands import console
from neurontools.commands.cache.neff import add_info, add_unpack

_EXAMPLES = """examples:
  neuron-packager info model.neff
  neuron-packager info model.neff --json-output
  neuron-packager unpack model.neff -o parts

exit codes: 0 success, 1 not a NEFF, damaged, or the directory is not writable, 2 usage error, 130 interrupted"""


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        prog="neuron-packager",
        description="Inspect and unpack NEFF files, simulated or real. Nothing in them is executed.",
        epilog=_EXAMPLES,
    )
    verbs = parser.add_subparsers(dest="verb", metavar="COMMAND", required=True)
    add_info(verbs, parser.prog)
    add_unpack(verbs, parser.prog)
    return parser


main = console.command(build_parser)
