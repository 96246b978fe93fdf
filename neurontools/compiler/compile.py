"""The compiler: from a graph to a NEFF."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.compiler.cost import estimate
from neurontools.compiler.graph import reads
from neurontools.compiler.neff import NativePart, pack
from neurontools.compiler.options import BUILD_VERSION, COMPILER_VERSION, CompileError, read_flags
from neurontools.compiler.work import written

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.compiler.graph import Graph, Node
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
        CompileError: a flag has an invalid value, or the device does not support a data type.
    """
    options = read_flags(flags, device)
    for node in graph.nodes:
        check_supported(node)
    calls = dict(call for library in libraries for call in library.call_ns)
    cost = estimate(graph, device, lnc=options.lnc, matmul_dtype=options.matmul_dtype, custom_ns=calls)
    return pack(
        graph,
        cost,
        name=name,
        build_version=BUILD_VERSION,
        flags=flags,
        libraries=libraries,
        lnc=options.lnc,
    )


def check_supported(node: Node) -> None:
    """Check that the device supports an operator call.

    Raises:
        CompileError: NCC_EVRF004 for complex data types.
    """
    for view in (*reads(node), *written(node)):
        if view.dtype.startswith("complex"):
            raise CompileError(
                "NCC_EVRF004",
                f"Complex data types are not supported: {view.dtype} in {node.op}"
                + (f" ({node.source})" if node.source else ""),
                "use two real tensors",
            )
