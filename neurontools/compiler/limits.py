"""The limits of the compiler: data types that a device lacks, graphs with too much memory or too many instructions.

Sources: AWS Neuron documentation, "Neuron Compiler Error Code Documentation", for codes and texts, and "Neuron Compiler
2.27.5334.0 (Neuron 2.32.0 Release)" for complex64; issue 819 of aws-neuron/aws-neuron-sdk for the threshold of 5,000,000
instructions. The number of instructions is modelled: one per tile of a matrix product (128 x 128 weights, 512 columns),
one per 128 x 512 elements of other operators.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from neurontools.base.units import format_binary_size
from neurontools.compiler.graph import Graph, Node, reads
from neurontools.compiler.options import CompileError, target_of
from neurontools.compiler.work import PARTITIONS, elements, products, written

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.machine.instances.catalogue import DeviceType


# torch's operators that consist of the documented operations: arithmetic, exponential and trigonometric functions,
# comparison, real and imaginary parts, matrix products, selection, data movement. Reductions, gathers and FFTs are not.
_ON_COMPLEX64 = {
    "_conj_physical", "_to_copy", "abs", "add", "addbmm", "addcdiv", "addcmul", "addmm", "addmv", "angle",
    "baddbmm", "bmm", "cat", "clone", "complex", "conj_physical", "constant_pad_nd", "copy", "cos", "div",
    "dot", "empty_like", "eq", "exp", "expm1", "fill", "flip", "full", "full_like", "linear", "log", "log10",
    "log1p", "log2", "masked_fill", "mm", "mul", "mv", "ne", "neg", "new_full", "new_ones", "new_zeros", "ones",
    "ones_like", "polar", "pow", "reciprocal", "repeat", "roll", "rsqrt", "rsub", "scalar_tensor",
    "select_backward", "select_scatter", "sgn", "sigmoid", "sin", "slice_backward", "slice_scatter", "sqrt",
    "square", "stack", "sub", "tan", "tanh", "tril", "triu", "vdot", "where", "zero", "zeros", "zeros_like",
}  # fmt: skip


def runs_on_complex64(operator: str) -> bool:
    """Return whether an operator, named as in aten.add.Tensor or without overload, runs on complex64."""
    namespace, _, rest = operator.partition(".")
    name = rest.partition(".")[0].removeprefix("_foreach_")
    return namespace == "aten" and name.removesuffix("_") in _ON_COMPLEX64


class GraphSizes(NamedTuple):
    """Bytes of inputs, outputs, outputs that are changed inputs, and the peak of temporaries."""

    inputs: int
    outputs: int
    aliased: int
    temporaries: int


def graph_sizes(graph: Graph) -> GraphSizes:
    """Return the device memory of a graph's parts."""

    def total(slots: set[int]) -> int:
        return sum(graph.slots[slot].nbytes for slot in slots)

    inputs, outputs = set(graph.inputs), set(graph.outputs)
    return GraphSizes(total(inputs), total(outputs), total(inputs & outputs), scratch_bytes(graph))


def scratch_bytes(graph: Graph) -> int:
    """Return the peak device memory of a graph's temporaries, in bytes."""
    kept = {*graph.inputs, *graph.outputs}
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for position, call in enumerate(graph.nodes):
        for view in (*reads(call), *(view for view in call.results if view is not None)):
            if view.slot not in kept:
                first.setdefault(view.slot, position)
                last[view.slot] = position
    change = [0] * (len(graph.nodes) + 1)
    for slot, position in first.items():
        change[position] += graph.slots[slot].nbytes
        change[last[slot] + 1] -= graph.slots[slot].nbytes
    return max(accumulate(change), default=0)


MAX_INSTRUCTIONS = 5_000_000
AS_E4M3 = "--experimental-unsafe-fp8e4m3fn-as-fp8e4m3"
_TILE = 512
_FEWEST_NS_OF_MANY = 50_000_000
"""No graph with a shorter modelled time has nearly as many instructions as the limit: each takes 64 cycles or more."""
_SMALLER = "use a smaller batch, or split the model (tensor or pipeline parallelism)"


def type_error(node: Node, device: DeviceType, flags: Sequence[str] = ()) -> CompileError | None:
    """Return the error of an operator call with a data type that a device lacks, None if the device has all of them.

    It is NCC_EVRF004 for most complex types, NCC_EVRF005 and NCC_EVRF051 for 8-bit formats.
    """
    for view in (*reads(node), *written(node)):
        dtype = view.dtype
        if not dtype.startswith(("complex", "float8")):
            continue
        place = f": {dtype} in {node.op}" + (f" ({node.source})" if node.source else "")
        if dtype.startswith("complex"):
            if dtype == "complex64" and runs_on_complex64(node.op):
                continue
            return CompileError(
                "NCC_EVRF004", f"Complex data types are not supported{place}", "use two real tensors"
            )
        if dtype.endswith("fnuz"):
            return CompileError(
                "NCC_EVRF005",
                f"The compiler found usage of a data type which is not supported{place}",
                "convert it to a supported type, such as torch.float8_e5m2 or torch.float16",
            )
        if dtype == "float8_e4m3fn" and "e4m3fn" not in device.features and AS_E4M3 not in flags:
            return CompileError(
                "NCC_EVRF051",
                f"Data type F8E4M3FN is not supported on {target_of(device).upper()}{place}",
                f"NEURON_CC_FLAGS={AS_E4M3} uses the device's own E4M3, whose largest number is 240",
            )
    return None


def check_memory(graph: Graph, device: DeviceType, lnc: int) -> None:
    """Check that a graph fits into the memory of a logical core.

    Raises:
        CompileError: NCC_EOOM001.
    """
    limit = device.memory_bytes * lnc // device.physical_cores
    if sum(slot.nbytes for slot in graph.slots) <= limit:
        return
    sizes = graph_sizes(graph)
    borders = sizes.inputs + sizes.outputs - sizes.aliased
    if borders + sizes.temporaries > limit:
        raise CompileError(
            "NCC_EOOM001",
            "The combined memory needed for the model tensors exceeds the high-bandwidth memory limit: "
            f"{format_binary_size(borders)} of inputs and outputs and {format_binary_size(sizes.temporaries)} of temporaries, "
            f"but a core of {device.name} has {format_binary_size(limit)}",
            _SMALLER,
        )


def check_instructions(graph: Graph, total_ns: int) -> None:
    """Check that a graph has no more instructions than the compiler allows.

    Args:
        graph: the graph.
        total_ns: its modelled time.

    Raises:
        CompileError: NCC_EVRF007.
    """
    if total_ns < _FEWEST_NS_OF_MANY:
        return
    count = sum(map(instructions, graph.nodes))
    if count > MAX_INSTRUCTIONS:
        raise CompileError(
            "NCC_EVRF007",
            f"The number of instructions generated exceeds the limit: about {count:,} of {MAX_INSTRUCTIONS:,}",
            _SMALLER,
        )


def instructions(node: Node) -> int:
    """Return the modelled number of instructions of an operator call."""
    found = products(node)
    if not found:
        return _parts(elements(node), PARTITIONS * _TILE)
    return sum(
        one.batch * _parts(one.m, PARTITIONS) * _parts(one.k, PARTITIONS) * _parts(one.n, _TILE)
        for one in found
    )


def _parts(size: int, part: int) -> int:
    return max(1, -(-size // part))
