"""The output of `neuron-packager info`, with the titles and columns of the real tool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neurontools.base.text import plural, printable, table
from neurontools.compiler.neff_header import HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from neurontools.compiler.neff_file import NeffFile, Variable
    from neurontools.compiler.neff_header import NeffHeader

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
