"""The NEFF container: the documented header and a gzip tar with the canonical graph and its modelled cost.

A NEFF is data, none of it is executed: executables are rebuilt from the checked graph, and native parts (libraries of
custom operators) have a digest that is always verified.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from neurontools.base.json_reader import load_json
from neurontools.compiler.archive import ArchiveError, pack_files, unpack_files
from neurontools.compiler.engines.cost import CostError, Engine, GraphCost, checked, schedule_metrics
from neurontools.compiler.engines.dma import queues_of
from neurontools.compiler.engines.kernel_program import kernel_from_bytes, kernel_to_bytes
from neurontools.compiler.graph import Graph, GraphError, graph_from_bytes
from neurontools.compiler.neff_header import (
    HEADER_BYTES,
    SUPPORTED_VERSION,
    NeffError,
    NeffHeader,
    hash_matches,
    read_header,
    write_header,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from neurontools.compiler.engines.instructions import KernelProgram

__all__ = ["NativePart", "Neff", "NeffError", "NeffHeader", "pack", "parse", "read_header"]

FORMAT = 2
_DIGEST = re.compile(r"[0-9a-f]{64}")
_ENGINE_FILES = {
    Engine.TENSOR: "PE",
    Engine.VECTOR: "DVE",
    Engine.SCALAR: "Activation",
    Engine.GPSIMD: "Pool",
    Engine.SYNC: "SP",
}


def network_name(graph: Graph) -> str:
    """Return the network name of a lazily recorded graph, in the style of torch_xla."""
    return f"SyncTensorsGraph.{len(graph.nodes)}"


@dataclass(frozen=True, slots=True)
class NativePart:
    """A native library inside a NEFF.

    Args:
        name: its file's name.
        digest: the sha256 (hex) of `data`.
        data: the file.
        call_ns: modelled times of its operators' calls in ns, by position in the graph; for the compiler, not stored.
    """

    name: str
    digest: str
    data: bytes
    call_ns: tuple[tuple[int, int], ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Neff:
    """A checked NEFF; `kernel_files` are the stored forms of its kernels, by position in the graph."""

    header: NeffHeader
    graph: Graph
    cost: GraphCost
    libraries: tuple[NativePart, ...]
    flags: tuple[str, ...]
    kernel_files: Mapping[int, bytes] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def kernels(self) -> dict[int, KernelProgram]:
        """The kernels by position in the graph; calls of one kernel share its program.

        Raises:
            NeffError: one is damaged.
        """
        try:
            programs = {data: kernel_from_bytes(data) for data in set(self.kernel_files.values())}
        except CostError as error:
            raise NeffError(f"the NEFF is damaged: {error.message}") from error
        return {position: programs[data] for position, data in self.kernel_files.items()}


def pack(
    graph: Graph,
    cost: GraphCost,
    *,
    name: str,
    build_version: str,
    flags: Sequence[str] = (),
    libraries: Sequence[NativePart] = (),
    kernels: Mapping[int, KernelProgram] | None = None,
    lnc: int = 1,
) -> bytes:
    """Return the NEFF of a graph; equal arguments give equal bytes."""
    parts = [{"name": part.name, "digest": part.digest, "size": len(part.data)} for part in libraries]
    manifest = {
        "format": FORMAT,
        "name": name,
        "build_version": build_version,
        "flags": list(flags),
        "graph": {"file": "graph.json", "digest": graph.digest()},
        "cost": {"file": "cost.bin", "modelled": True},
        "libraries": parts,
    }
    files = {
        "neff.json": _json(manifest),
        "info.json": _json({"name": name, "compiler": build_version, "lnc": lnc, "simulated": True}),
        "hlo_stats.json": _json(_statistics(graph, cost)),
        "metrics.json": _json(
            {"modelled": True, "unknown_operators": len(cost.unknown), **asdict(schedule_metrics(cost))}
        ),
        "graph.json": graph.to_bytes(),
        "cost.bin": cost.to_bytes(),
    }
    for core in range(lnc):
        files |= _subgraph(f"sg{core:02}", graph, cost)
    for part in libraries:
        files[f"lib/{part.digest}"] = part.data
    files |= _kernel_files(kernels or {})
    try:
        data = pack_files(files)
    except ArchiveError as error:
        raise NeffError(f"cannot create the NEFF: {error.message}") from error
    return write_header(data, name=name, build_version=build_version, lnc=lnc) + data


def parse(data: bytes, *, validate_hash: bool = False) -> Neff:
    """Parse and check a NEFF: header, sizes, archive limits, schemas, digests of native parts.

    Args:
        data: the file's bytes.
        validate_hash: also check the digest of the whole data part (NEURON_RT_VALIDATE_HASH).

    Raises:
        NeffError: it is not a valid NEFF of this version.
    """
    header = read_header(data)
    if header.version != SUPPORTED_VERSION:
        supported, received = (f"{major}.{minor}" for major, minor in (SUPPORTED_VERSION, header.version))
        raise NeffError(f"NEFF version mismatch supported: {supported} received: {received}")
    payload = data[HEADER_BYTES:]
    if header.data_bytes != len(payload):
        raise NeffError(
            f"the NEFF is damaged: {len(payload)} bytes of data, the header states {header.data_bytes}"
        )
    if validate_hash and not hash_matches(header, payload):
        raise NeffError("the NEFF is damaged: its data does not match its hash")
    try:
        files = unpack_files(payload, _is_read)
        if "graph.json" not in files:
            raise NeffError(
                "the NEFF has no graph: it was made by another compiler", "compile the model for this machine"
            )
        manifest = _manifest(files)
        if "cost.bin" not in files:
            raise NeffError("the NEFF is damaged: it has no modelled schedule", "compile the model again")
        graph = graph_from_bytes(files["graph.json"])
        return Neff(
            header=header,
            graph=graph,
            cost=GraphCost.from_bytes(files["cost.bin"], graph),
            libraries=_libraries(manifest, files),
            flags=tuple(str(flag) for flag in manifest["flags"]),
            kernel_files=_kernels(files, len(graph.nodes)),
        )
    except (ArchiveError, GraphError, CostError) as error:
        raise NeffError(f"the NEFF is damaged: {error.message}") from error
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise NeffError(f"the NEFF is damaged: neff.json: {type(error).__name__}: {error}") from error


def _is_read(name: str) -> bool:
    return name in {"graph.json", "cost.bin", "neff.json"} or name.startswith(("lib/", "kernels/"))


def _kernel_files(kernels: Mapping[int, KernelProgram]) -> dict[str, bytes]:
    """Return the files of kernels: each program once, named by the positions of its calls."""
    calls: dict[KernelProgram, list[int]] = {}
    for position, kernel in kernels.items():
        calls.setdefault(kernel, []).append(position)
    files = {f"kernels/{positions[0]}.json": kernel_to_bytes(kernel) for kernel, positions in calls.items()}
    if files:
        files["kernels/calls.json"] = _json({"calls": sorted(calls.values())})
    return files


def _kernels(files: dict[str, bytes], operators: int) -> dict[int, bytes]:
    """Return the stored forms of kernels by position in the graph."""
    if "kernels/calls.json" not in files:
        return {}
    calls = load_json(files["kernels/calls.json"])["calls"]
    return {
        checked(position, operators - 1): files[f"kernels/{positions[0]}.json"]
        for positions in calls
        for position in positions
    }


def _manifest(files: dict[str, bytes]) -> dict[str, Any]:
    manifest = load_json(files["neff.json"], any_text=True)
    if manifest["format"] != FORMAT:
        raise NeffError(
            f"the NEFF's inner format {manifest['format']!r:.20} is not supported (supported: {FORMAT})",
            "compile the model again",
        )
    return dict(manifest)


def _libraries(manifest: dict[str, Any], files: dict[str, bytes]) -> tuple[NativePart, ...]:
    found = []
    for row in manifest["libraries"]:
        name, digest = str(row["name"]), str(row["digest"])
        if not _DIGEST.fullmatch(digest):
            raise NeffError(f"the NEFF is damaged: native part {name!r} has an invalid digest")
        data = files[f"lib/{digest}"]
        if hashlib.sha256(data).hexdigest() != digest:
            raise NeffError(f"the NEFF is damaged: native part {name!r} does not match its digest")
        found.append(NativePart(name, digest, data))
    return tuple(found)


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True).encode() + b"\n"


def _statistics(graph: Graph, cost: GraphCost) -> dict[str, Any]:
    return {
        "operations": len(graph.nodes),
        "mac_count": cost.matmul_flops // 2,
        "flops": cost.flops,
        "traffic_bytes": sum(op.read_bytes + op.write_bytes for op in cost.ops),
    }


def _subgraph(folder: str, graph: Graph, cost: GraphCost) -> dict[str, bytes]:
    """Return the files of a subgraph: its border, and the engines that it uses; graph and schedule say the rest."""
    kinds = dict.fromkeys(graph.outputs, "output") | dict.fromkeys(graph.inputs, "input")
    variables = {
        f"slot{number}": {"type": kind, "size": graph.slots[number].nbytes}
        for number, kind in sorted(kinds.items())
    }
    transfers = {(row.opcode, row.write_bytes) for row in cost.rows if row.engine is Engine.DMA}
    queues = {queue.name: {"type": queue.kind} for queue in queues_of(transfers)}
    definition = json.dumps({"dma_queue": queues, "var": variables}, separators=(",", ":"))
    files = {f"{folder}/def.json": definition.encode()}
    for engine, stem in _ENGINE_FILES.items():
        count = sum(op.engine is engine for op in cost.ops)
        if count:
            files[f"{folder}/{stem}.json"] = _json({"dma": [], "instruction_count": count})
    return files
