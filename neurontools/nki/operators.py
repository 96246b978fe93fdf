"""The operators of instructions (`op=nl.add`) and activation functions, computed in float32.

Sources: AWS Neuron documentation 2.32, "nki.api.shared" (operators, activation functions and their valid ranges).
Activations are exact functions here; the Scalar engine approximates them piecewise, which no document describes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

_SQRT_HALF = np.float32(math.sqrt(0.5))
_TWO_OVER_SQRT_PI = np.float32(2 / math.sqrt(math.pi))
_GELU_TANH = np.float32(math.sqrt(2 / math.pi))
_GELU_SIGMOID = np.float32(1.702)


class MathOperator:
    """An operator of instructions; calling it computes on tiles.

    Args:
        name: its name in nki.language.
        compute: the function of one or two float32 arrays (arrays of bits for operators on bits).
        arity: number of operands.
        is_bitwise: whether it works on bits of integers.
        identity: what a reduction starts with, None for other operators than reductions.
        valid: range of operands for which the Scalar engine is exact.
    """

    def __init__(
        self,
        name: str,
        compute: Callable[..., Any],
        arity: int,
        *,
        is_bitwise: bool = False,
        identity: float | None = None,
        valid: tuple[float, float] | None = None,
    ) -> None:
        self.name = self.__name__ = name
        self.compute = compute
        self.arity = arity
        self.is_bitwise = is_bitwise
        self.identity = identity
        self.valid = valid

    def __call__(self, *operands: Any, dtype: Any = None, **options: Any) -> Any:
        """Compute on tiles, by the instruction that has the operator."""
        from neurontools.nki.context import running

        return running().language.apply(self, operands, dtype, options)

    def __repr__(self) -> str:
        return f"nl.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return operator_named, (self.name,)


def _truth(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *operands: function(*operands).astype(np.float32)


def erf(values: np.ndarray) -> np.ndarray:
    """Return the error function of float32 values, to a relative error of 1.2e-7 of its complement."""
    size = np.abs(values).astype(np.float64)
    t = 1 / (1 + 0.5 * size)
    complement = t * np.exp(-size * size + np.polyval(_ERFC, t))
    return (np.sign(values) * (1 - complement)).astype(np.float32)


_ERFC = (
    0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806, 0.09678418, 0.37409196, 1.00002368, -1.26551223,
)  # fmt: skip
"""Coefficients of the exponent, highest power first (Press et al., Numerical Recipes, section 6.2)."""


def _gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + erf(x * _SQRT_HALF))


def _gelu_dx(x: np.ndarray) -> np.ndarray:
    density = np.exp(-0.5 * x * x) / np.float32(math.sqrt(2 * math.pi))
    return 0.5 * (1 + erf(x * _SQRT_HALF)) + x * density


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


def _silu_dx(x: np.ndarray) -> np.ndarray:
    share = sigmoid(x)
    return share * (1 + x * (1 - share))


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(_GELU_TANH * (x + np.float32(0.044715) * x * x * x)))


def _gelu_sigmoid_dx(x: np.ndarray) -> np.ndarray:
    share = sigmoid(_GELU_SIGMOID * x)
    return share * (1 + _GELU_SIGMOID * x * (1 - share))


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(x, np.float32(0))


def _shift_right(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Shift bits to the right without the sign: the device has no arithmetic shift."""
    if x.dtype.kind == "i":
        unsigned = x.dtype.str.replace("i", "u")
        return np.right_shift(x.view(unsigned), y.astype(unsigned)).view(x.dtype)
    return np.right_shift(x, y)


def _sine(x: np.ndarray) -> np.ndarray:
    """Return the sine; beyond pi the device continues with a cubic (the vendor's simulator gives sin(9) = 27.65)."""
    inside = np.abs(x) <= np.float32(math.pi)
    beyond = np.sign(x) * _CUBIC * (np.abs(x) - np.float32(math.pi)) ** 3 - np.sign(x) * (
        np.abs(x) - np.float32(math.pi)
    )
    return np.where(inside, np.sin(x), beyond)


_CUBIC = np.float32((27.65 + (9 - math.pi)) / (9 - math.pi) ** 3)

_INFINITY = math.inf
_BINARY: tuple[tuple[str, Callable[..., Any], float | None], ...] = (
    ("add", np.add, 0.0),
    ("subtract", np.subtract, 0.0),
    ("multiply", np.multiply, 1.0),
    ("maximum", np.maximum, -_INFINITY),
    ("minimum", np.minimum, _INFINITY),
    ("divide", np.divide, None),
    ("power", np.power, None),
    ("mod", np.mod, None),
    ("fmod", np.fmod, None),
    ("abs_max", lambda x, y: np.maximum(np.abs(x), np.abs(y)), 0.0),
    ("abs_min", lambda x, y: np.minimum(np.abs(x), np.abs(y)), _INFINITY),
    ("equal", _truth(np.equal), None),
    ("not_equal", _truth(np.not_equal), None),
    ("less", _truth(np.less), None),
    ("less_equal", _truth(np.less_equal), None),
    ("greater", _truth(np.greater), None),
    ("greater_equal", _truth(np.greater_equal), None),
    ("logical_and", _truth(np.logical_and), 1.0),
    ("logical_or", _truth(np.logical_or), 0.0),
    ("logical_xor", _truth(np.logical_xor), 0.0),
)
_BITWISE: tuple[tuple[str, Callable[..., Any], int, float | None], ...] = (
    ("bitwise_and", np.bitwise_and, 2, -1),
    ("bitwise_or", np.bitwise_or, 2, 0),
    ("bitwise_xor", np.bitwise_xor, 2, 0),
    ("left_shift", np.left_shift, 2, None),
    ("right_shift", _shift_right, 2, None),
    ("invert", np.invert, 1, None),
)
_UNARY: tuple[tuple[str, Callable[..., Any], tuple[float, float] | None], ...] = (
    ("copy", lambda x: x, None),
    ("abs", np.abs, None),
    ("square", np.square, None),
    ("relu", lambda x: np.maximum(x, np.float32(0)), None),
    ("rsqrt", lambda x: 1 / np.sqrt(x), (2.0**-87, 2.0**97)),
    ("sqrt", np.sqrt, (2.0**-116, 2.0**118)),
    ("reciprocal", np.reciprocal, (-(2.0**42), 2.0**42)),
    ("exp", np.exp, None),
    ("log", np.log, (2.0**-64, 2.0**64)),
    ("tanh", np.tanh, None),
    ("sigmoid", sigmoid, None),
    ("gelu", _gelu, None),
    ("gelu_dx", _gelu_dx, None),
    ("gelu_apprx_tanh", _gelu_tanh, None),
    ("gelu_apprx_sigmoid", lambda x: x * sigmoid(_GELU_SIGMOID * x), None),
    ("gelu_apprx_sigmoid_dx", _gelu_sigmoid_dx, None),
    ("silu", lambda x: x * sigmoid(x), None),
    ("silu_dx", _silu_dx, None),
    ("softplus", _softplus, None),
    ("mish", lambda x: x * np.tanh(_softplus(x)), None),
    ("erf", erf, None),
    ("erf_dx", lambda x: _TWO_OVER_SQRT_PI * np.exp(-x * x), None),
    ("sin", _sine, (-math.pi, math.pi)),
    ("cos", np.cos, None),
    ("tan", np.tan, None),
    ("arctan", np.arctan, (-math.pi / 2, math.pi / 2)),
    ("sign", np.sign, None),
    ("ceil", np.ceil, None),
    ("floor", np.floor, None),
    ("trunc", np.trunc, None),
    ("negative", np.negative, None),
    ("logical_not", lambda x: (x == 0).astype(np.float32), None),
)

OPERATORS: dict[str, MathOperator] = {
    **{name: MathOperator(name, compute, 2, identity=identity) for name, compute, identity in _BINARY},
    **{
        name: MathOperator(name, compute, arity, is_bitwise=True, identity=identity)
        for name, compute, arity, identity in _BITWISE
    },
    **{name: MathOperator(name, compute, 1, valid=valid) for name, compute, valid in _UNARY},
    "prelu": MathOperator("prelu", lambda x, slope=0.0: np.where(x >= 0, x, x * np.float32(slope)), 1),
    "bypass": MathOperator("bypass", lambda x, *_: x, 2),
    "average": MathOperator("average", np.add, 2, identity=0.0),
}
ACTIVATIONS = frozenset(
    [
        "copy",
        "square",
        "sigmoid",
        "relu",
        "prelu",
        "gelu",
        "gelu_dx",
        "gelu_apprx_tanh",
        "gelu_apprx_sigmoid",
        "gelu_apprx_sigmoid_dx",
        "silu",
        "silu_dx",
        "tanh",
        "softplus",
        "mish",
        "erf",
        "erf_dx",
        "exp",
        "log",
        "sin",
        "arctan",
        "sqrt",
        "rsqrt",
        "reciprocal",
        "sign",
        "abs",
    ]
)
"""Operators that the Scalar engine has as activation functions."""
UNARY = frozenset(["abs", "square", "relu", "rsqrt", "reciprocal"])
"""Activation functions that are operators of instructions too (nki.api.shared, arithmetic unary operators)."""
_NUMPY_NAMES = {
    "absolute": "abs",
    "fabs": "abs",
    "power": "power",
    "logical_not": "logical_not",
    "amax": "maximum",
    "max": "maximum",
    "amin": "minimum",
    "min": "minimum",
    "sum": "add",
    "prod": "multiply",
    "true_divide": "divide",
    "remainder": "mod",
    "bitwise_not": "invert",
}


def operator_named(name: str) -> MathOperator:
    """Return an operator by its name in nki.language."""
    return OPERATORS[name]


def as_operator(value: Any) -> MathOperator | None:
    """Return the operator that a kernel means: one of nki.language, or a function of numpy; None for no operator."""
    if isinstance(value, MathOperator) or value is None:
        return value
    name = getattr(value, "__name__", "")
    return OPERATORS.get(_NUMPY_NAMES.get(name, name))
