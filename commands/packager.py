"""neuron-packager: look into a NEFF and take it apart. The output of `info` has the titles and columns of the real tool."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from neurontools.base.text import plural, printable, table
from neurontools.commands import console
from neurontools.compiler.neff_header import HEADER_BYTES, NeffHeader

if TYPE_CHECKING:
    from collections.abc import Iterable

    from neurontools.commands.parsing import Verbs
    from neurontools.compiler.neff_file import NeffFile, Variable


_COLUMNS = (
    "NODE",
    "Executor",
    "Name",
    "Variable",
    "Size",
    "Type",
    "Format",
    "Shape",
    "DataType",
    "TimeSeries",
)
_EXECUTOR = "Neuron Core"
_WEIGHTS = "file"
_SHOWN = ("input", "output")
_UNKNOWN = "-"
_MD5_BYTES = 16


def format_neff_info(neff: NeffFile, *, weights: bool = False, shapes: bool = False) -> str:
    """Return the header and the table of nodes.

    Args:
        neff: the file.
        weights: show the variables that hold weights, too.
        shapes: show only names, shapes and data types.
    """
    lines = ["NEFF Header:"]
    lines += [f"  {name + ':':<24}{printable(value)}" for name, value in _header_rows(neff.header)]
    lines += ["", "NEFF Nodes:", _nodes(neff, weights=weights, shapes=shapes)]
    made = "a neurontools simulator" if neff.is_simulated else "another compiler"
    lines += ["", f"{plural(len(neff.members), 'member', 'members')}, made by {made}"]
    return "\n".join(lines)


def neff_info_json(neff: NeffFile, *, weights: bool = False) -> dict[str, Any]:
    """Return the JSON form: sizes in bytes."""
    header = neff.header
    return {
        "header": {
            "package_version": header.package_version,
            "header_size": HEADER_BYTES,
            "data_size": header.data_bytes,
            "neff_version": f"{header.version[0]}.{header.version[1]}",
            "build_version": header.build_version,
            "neuron_cores": header.core_count,
            "hash": _hash(header),
            "uuid": header.uuid.hex(),
            "network_name": header.name,
            "feature_bits": header.feature_bits,
            "lnc": header.lnc,
        },
        "nodes": [
            _variable_json(number, neff, item) for number, item in _shown_variables(neff, weights=weights)
        ],
        "members": [
            {"name": member.name, "size_bytes": member.size_bytes}
            for member in neff.members
            if not member.is_directory
        ],
        "simulated": neff.is_simulated,
        "problem": neff.problem or None,
    }


def _header_rows(header: NeffHeader) -> Iterable[tuple[str, str]]:
    yield "Package Version", str(header.package_version)
    yield "Header Size", f"{HEADER_BYTES} (bytes)"
    yield "Data Size", f"{header.data_bytes} (bytes)"
    yield "NEFF Major Version", str(header.version[0])
    yield "NEFF Minor Version", str(header.version[1])
    yield "Build Version", header.build_version
    yield "Number of Neuron cores", str(header.core_count)
    yield "Hash", _hash(header)
    yield "UUID", header.uuid.hex()
    yield "Network Name", header.name
    yield "Enabled Features", f"{header.feature_bits:#x}" if header.feature_bits else "none"


def _hash(header: NeffHeader) -> str:
    return (header.data_hash[:_MD5_BYTES] if header.package_version == 1 else header.data_hash).hex()


def _shown_variables(neff: NeffFile, *, weights: bool) -> Iterable[tuple[int, Variable]]:
    subgraphs = sorted({variable.subgraph for variable in neff.variables})
    kinds = (*_SHOWN, _WEIGHTS) if weights else _SHOWN
    for variable in neff.variables:
        if variable.kind in kinds:
            yield subgraphs.index(variable.subgraph) + 1, variable


def _nodes(neff: NeffFile, *, weights: bool, shapes: bool) -> str:
    rows = [_row(number, neff, item) for number, item in _shown_variables(neff, weights=weights)]
    if not rows:
        return "(none that can be read)"
    if not shapes:
        return table(_COLUMNS, rows, "<<<<><<<<<")
    wanted = [_COLUMNS.index(name) for name in ("NODE", "Variable", "Type", "Shape", "DataType")]
    return table(
        [_COLUMNS[column] for column in wanted], [[row[column] for column in wanted] for row in rows], "<<<<<"
    )


def _row(number: int, neff: NeffFile, variable: Variable) -> list[str]:
    shape = variable.shape
    return [
        str(number),
        _EXECUTOR,
        neff.header.name or _UNKNOWN,
        variable.name,
        _UNKNOWN if variable.size_bytes is None else str(variable.size_bytes),
        variable.kind.upper(),
        _UNKNOWN,
        _UNKNOWN if shape is None else str(list(shape)),
        variable.dtype or _UNKNOWN,
        _UNKNOWN,
    ]


def _variable_json(number: int, neff: NeffFile, variable: Variable) -> dict[str, Any]:
    return {
        "node": number,
        "executor": _EXECUTOR,
        "name": neff.header.name,
        "subgraph": variable.subgraph,
        "variable": variable.name,
        "size_bytes": variable.size_bytes,
        "type": variable.kind,
        "shape": None if variable.shape is None else list(variable.shape),
        "dtype": variable.dtype or None,
    }


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
    from neurontools.compiler.neff_file import read_neff_file

    found = read_neff_file(arguments.file)
    console.show(
        arguments.json,
        lambda: neff_info_json(found, weights=arguments.weights),
        lambda: format_neff_info(found, weights=arguments.weights, shapes=arguments.shapes),
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
