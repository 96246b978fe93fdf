"""neuron-packager: look into a NEFF and take it apart."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from neurontools.commands import console

if TYPE_CHECKING:
    from neurontools.commands.parsing import Verbs
    from neurontools.compiler.neff_file import NeffFile

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
    _add_info(verbs, parser.prog)
    _add_unpack(verbs, parser.prog)
    return parser


def _add_info(verbs: Verbs, program: str) -> None:
    parser = _add(
        verbs,
        "info",
        "print the header, inputs and outputs",
        f"examples:\n  {program} info model.neff\n  {program} info -s model.neff\n\n"
        "exit codes: 0 success, 1 not a NEFF, or damaged, 2 usage error, 130 interrupted",
    )
    parser.add_argument("-w", "--weights", action="store_true", help="show weights too")
    parser.add_argument("-s", "--shapes", action="store_true", help="show shapes and data types only")
    parser.add_argument(
        "--json-output", "--json", dest="json", action="store_true", help="print JSON (sizes in bytes)"
    )
    parser.set_defaults(run=_info)


def _add_unpack(verbs: Verbs, program: str) -> None:
    parser = _add(
        verbs,
        "unpack",
        "write the members to a directory",
        f"examples:\n  {program} unpack model.neff\n  {program} unpack model.neff -o parts --max-size 2GB",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        help="new or empty directory (default: the file's name without .neff)",
    )
    parser.add_argument(
        "--max-size",
        metavar="SIZE",
        help="reject a larger archive (default: 100 times the size of the file, at least 16MiB)",
    )
    parser.set_defaults(run=_unpack)


def _add(verbs: Verbs, name: str, words: str, epilog: str) -> argparse.ArgumentParser:
    parser = verbs.add_parser(
        name,
        help=words,
        description=f"{words.capitalize()}.",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="FILE", help="NEFF file")
    return parser


def _info(arguments: argparse.Namespace) -> int:
    from neurontools.cache import neff_text
    from neurontools.compiler.neff_file import read_neff_file

    found = read_neff_file(arguments.file)
    console.show(
        arguments.json,
        lambda: neff_text.neff_info_json(found, weights=arguments.weights),
        lambda: neff_text.format_neff_info(found, weights=arguments.weights, shapes=arguments.shapes),
    )
    return _judge(arguments.file, found)


def _judge(path: str, found: NeffFile) -> int:
    from neurontools.compiler.neff_header import NeffError

    if found.problem:
        return console.fail(NeffError(f"{path}: {found.problem}", "copy it again, or compile it again"))
    return 0


def _unpack(arguments: argparse.Namespace) -> int:
    import os

    from neurontools.base.units import parse_size
    from neurontools.compiler.neff_file import unpack_neff

    limit_bytes = parse_size(arguments.max_size) if arguments.max_size else None
    directory = arguments.output or _own_directory(os.path.basename(arguments.file))
    console.out_now(f'Unpacking NEFF in "{directory}" directory...')
    unpack_neff(arguments.file, directory, limit_bytes)
    return 0


def _own_directory(name: str) -> str:
    stem = name.removesuffix(".neff")
    return stem if stem != name else f"{name}.unpacked"


main = console.command(build_parser)
