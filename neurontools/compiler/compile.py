"""The compiler: from a graph to a NEFF."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.compiler.engines.estimate import estimate
from neurontools.compiler.limits import check_instructions, check_memory, check_types
from neurontools.compiler.neff import NativePart, pack
from neurontools.compiler.options import BUILD_VERSION, COMPILER_VERSION, CompileError, read_flags

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.compiler.graph import Graph
    from neurontools.machine.instances.catalogue import DeviceType

__all__ = ["BUILD_VERSION", "COMPILER_VERSION", "CompileError", "compile_graph"]


def compile_graph(
    graph: Graph,
    device: DeviceType,
    flags: Sequence[str],
    name: str,
    libraries: Sequence[NativePart] = (),
) -> bytes:
    """Return the NEFF of a graph.

    Args:
        graph: the graph.
        device: its engines and rates are used by the cost model.
        flags: compiler flags, without those of the wrapper.
        name: the network's name, kept in the NEFF.
        libraries: native libraries to include.

    Raises:
        CompileError: a flag has an invalid value, the device lacks a data type, or the graph is too large for it.
    """
    options = read_flags(flags, device)
    for node in graph.nodes:
        check_types(node, device, flags)
    check_memory(graph, device, options.lnc)
    calls = dict(call for library in libraries for call in library.call_ns)
    cost = estimate(graph, device, lnc=options.lnc, matmul_dtype=options.matmul_dtype, custom_ns=calls)
    check_instructions(graph, cost.total_ns)
    return pack(
        graph,
        cost,
        name=name,
        build_version=BUILD_VERSION,
        flags=flags,
        libraries=libraries,
        lnc=options.lnc,
    )
