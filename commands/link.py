"""neurontools link: install links to the tools at the paths of the real ones."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from neurontools.commands import console
from neurontools.commands.parsing import add_json
from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from neurontools.links import Link

EXAMPLES = """examples:
  sudo neurontools link --prefix /opt/aws/neuron     for programs that call /opt/aws/neuron/bin/neuron-ls
  neurontools link --prefix ~/neuron --dry-run       print what would be done, change nothing
  neurontools link --prefix ~/neuron --remove        remove the links created there

exit codes: 0 success, 1 a foreign file is in the way, or the directory is not writable, 2 usage error
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        prog="neurontools link",
        description="Create links DIR/bin/<tool> to the installed tools, for programs that call them by an absolute "
        "path. Files that neurontools did not create are never touched.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "--prefix",
        metavar="DIR",
        required=True,
        help="directory of the links, created if missing; real tools are in /opt/aws/neuron",
    )
    parser.add_argument("--remove", action="store_true", help="remove the links created there")
    parser.add_argument("--dry-run", action="store_true", help="print what would be done, change nothing")
    add_json(parser)
    return parser


def _run(arguments: argparse.Namespace) -> int:
    from neurontools import links

    scripts = links.installed_scripts()
    if not scripts:
        raise NeuronToolsError("no console script of neurontools is installed", "pip install neurontools")
    change = links.remove_links if arguments.remove else links.make_links
    done = change(arguments.prefix, scripts, dry_run=arguments.dry_run)
    if arguments.json:
        console.print_json({"dry_run": arguments.dry_run, "links": [link.to_json() for link in done]})
        return 0
    for link in done:
        console.out(_line(link, dry_run=arguments.dry_run))
    if not done:
        console.notice(f"no links by neurontools in {arguments.prefix}")
    return 0


def _line(link: Link, *, dry_run: bool) -> str:
    from neurontools.links import LinkAction

    what = f"would be {link.action}" if dry_run and link.action != LinkAction.KEPT else str(link.action)
    return f"{what:<18}{link.path} -> {link.target}" if dry_run else f"{what:<10}{link.path} -> {link.target}"


main = console.command(build_parser, _run)
