"""torch_neuronx.analyze: which operators of a function the compiler supports.

Source: AWS Neuron documentation, "PyTorch NeuronX Analyze API for Inference".
"""

# ruff: noqa: ARG001
# The documented signature.

from __future__ import annotations

import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from neurontools.compiler.limits import runs_on_complex64
from neurontools.compiler.options import COMPILER_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

VERSION = "2.13.0"
_NO_WORK = frozenset(
    {"Bool", "Float", "Int", "IntImplicit", "ScalarImplicit", "dim", "numel", "size", "__getitem__", "format"}
)
"""Operators of TorchScript that compute no tensors."""


def analyze(
    func: Callable[..., Any],
    example_inputs: Any,
    compiler_workdir: str | None = None,
    *,
    additional_ignored_ops: Collection[str] = (),
    max_workers: int = 4,
    is_hf_transformers: bool = False,
    cleanup: bool = False,
) -> dict[str, Any]:
    """Check each operator of a function.

    Args:
        func: a module or function of tensors.
        example_inputs: a tensor or a tuple of them.
        compiler_workdir: accepted; nothing is compiled.
        additional_ignored_ops: operators that are left out, such as aten::relu.
        max_workers: accepted.
        is_hf_transformers: accepted.
        cleanup: accepted.

    Returns:
        Versions, the supported share, the supported operators with their number, and the unsupported ones with their place.
    """
    inputs = tuple(example_inputs) if isinstance(example_inputs, tuple | list) else (example_inputs,)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        graph = torch.jit.trace(func, inputs, strict=False, check_trace=False).inlined_graph
    supported: Counter[str] = Counter()
    unsupported = []
    for node in graph.nodes():
        kind = node.kind()
        namespace, _, name = kind.partition("::")
        if namespace == "prim" or name in _NO_WORK or kind in additional_ignored_ops:
            continue
        if _is_supported(node):
            supported[kind] += 1
        else:
            unsupported.append(
                {
                    "kind": kind,
                    "failureAt": "neuronx-cc",
                    "call": node.sourceRange(),
                    "opGraph": f"graph():\n  {node}",
                }
            )
    total = supported.total() + len(unsupported)
    return {
        "torch_neuronx_version": VERSION,
        "neuronx_cc_version": COMPILER_VERSION,
        "support_percentage": f"{100 * supported.total() / total if total else 100:.2f}%",
        "supported_operators": dict(supported),
        "unsupported_operators": unsupported,
    }


def _is_supported(node: Any) -> bool:
    """Return whether the compiler takes the types of a call: it refuses some complex tensors, and nothing else."""
    types = {_dtype(value.type()) for value in (*node.inputs(), *node.outputs())}
    found = {dtype for dtype in types if dtype is not None and dtype.is_complex}
    return not found or (found == {torch.complex64} and runs_on_complex64(node.kind().replace("::", ".")))


def _dtype(kind: Any) -> torch.dtype | None:
    return kind.dtype() if isinstance(kind, torch._C.TensorType) else None  # noqa: SLF001
