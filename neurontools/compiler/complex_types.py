"""The operators that the compiler supports for complex64.

Source: AWS Neuron documentation, "Neuron Compiler 2.27.5334.0 (Neuron 2.32.0 Release)".
"""

from __future__ import annotations

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
