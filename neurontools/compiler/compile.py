"""The compiler: from a graph to a NEFF."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neurontools.compiler.engines.estimate import estimate
from neurontools.compiler.graph_nodes import reads
from neurontools.compiler.limits import check_instructions, check_memory, type_error
from neurontools.compiler.neff import NativePart, pack
from neurontools.compiler.options import BUILD_VERSION, COMPILER_VERSION, CompileError, read_flags

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from neurontools.compiler.engines.cost import GraphCost
    from neurontools.compiler.engines.instructions import CustomWork, KernelProgram
    from neurontools.compiler.graph import Graph, Node
    from neurontools.compiler.options import CompileOptions
    from neurontools.machine.instances.catalogue import DeviceType

__all__ = [
    "BUILD_VERSION",
    "COMPILER_VERSION",
    "KERNELS",
    "CompileError",
    "check_and_estimate",
    "compile_graph",
]

KERNELS: dict[tuple[Any, ...], KernelProgram] = {}
"""The kernels (NKI) of this process, by `kernel_key`; of others the bytes are counted."""


def kernel_key(node: Node) -> tuple[Any, ...]:
    """Return what decides the program of a kernel's call: its operator, its constants, and types and shapes of its tensors."""
    return node.op, node.kwargs, tuple((view.dtype, view.shape) for view in reads(node))


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
    kernels = {
        number: program
        for number, node in enumerate(graph.nodes)
        if KERNELS and (program := KERNELS.get(kernel_key(node))) is not None
    }
    calls: dict[int, CustomWork] = {**kernels}
    calls.update(call for library in libraries for call in library.call_ns)
    options, cost = check_and_estimate(graph, device, flags, calls)
    return pack(
        graph,
        cost,
        name=name,
        build_version=BUILD_VERSION,
        flags=flags,
        libraries=libraries,
        kernels=kernels,
        lnc=options.lnc,
    )


def check_and_estimate(
    graph: Graph, device: DeviceType, flags: Sequence[str], custom: Mapping[int, CustomWork]
) -> tuple[CompileOptions, GraphCost]:
    """Return the options in some flags, and the modelled schedule of a graph that the compiler accepts.

    Args:
        graph: the graph.
        device: its limits, engines and rates apply.
        flags: compiler flags, without those of the wrapper.
        custom: what calls of custom operators do, by their positions.

    Raises:
        CompileError: a flag has an invalid value, the device lacks a data type, or the graph is too large for it.
    """
    options = read_flags(flags, device)
    for node in graph.nodes:
        error = type_error(node, device, flags)
        if error is not None:
            raise error
    check_memory(graph, device, options.lnc)
    cost = estimate(graph, device, lnc=options.lnc, matmul_dtype=options.matmul_dtype, custom=custom)
    check_instructions(graph, cost.total_ns)
    return options, cost
