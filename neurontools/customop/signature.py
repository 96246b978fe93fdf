"""Operators and kernels as a compiled library describes them, and the rules for them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.customop.errors import CustomOpBuildError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

MAX_OPERATORS = 10  # documented limit of a library
TENSOR_KINDS = frozenset({"tensor", "const-tensor"})
_SCHEMA_WORDS = {
    "tensor": "Tensor",
    "const-tensor": "Tensor",
    "scalar": "Scalar",
    "double": "float",
    "int64": "int",
}
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_FUNCTION = re.compile(r"(?:::)?[A-Za-z_][A-Za-z0-9_]*(?:::[A-Za-z_][A-Za-z0-9_]*)*\Z")
_NAMING = "the third argument of m.def is the name of a function in the compute sources"
_INTEGERS = ("int", "bool", "unsigned int", "unsigned long", "long long", "short")
_ADVICE = {"float": "use double", **dict.fromkeys(_INTEGERS, "use int64_t")}
ABI_VERSION = 5
MAX_ARGUMENTS = 16


@dataclass(frozen=True, slots=True)
class Function:
    """The signature of a shape function or kernel: kinds of parameters (`tensor`, `double`, ...) and result."""

    parameters: tuple[str, ...]
    result: str


@dataclass(frozen=True, slots=True)
class DescribedOperator:
    """An operator registered by a shape source."""

    library: str
    name: str
    kernel: str
    shape: Function

    @property
    def qualified(self) -> str:
        """`library::operator`."""
        return f"{self.library}::{self.name}"


@dataclass(frozen=True, slots=True)
class DescribedKernel:
    """A kernel function of a compute source."""

    name: str
    function: Function


def schema(name: str, parameters: tuple[str, ...]) -> str:
    """Return the torch schema of an operator, as TORCH_LIBRARY infers it: `relu(Tensor _0) -> Tensor`."""
    arguments = ", ".join(f"{_SCHEMA_WORDS[word]} _{index}" for index, word in enumerate(parameters))
    return f"{name}({arguments}) -> Tensor"


def check_schema(library: str, name: str, parameters: tuple[str, ...]) -> None:
    """Check the names and parameters of an operator that a file describes.

    Raises:
        ValueError: torch cannot register it.
    """
    if not (_IDENTIFIER.match(library) and _IDENTIFIER.match(name)):
        raise ValueError(f"invalid operator name {library + '::' + name!a:.80}")
    if len(parameters) > MAX_ARGUMENTS or not set(parameters) <= set(_SCHEMA_WORDS):
        raise ValueError(f"operator {library}::{name} has invalid parameters")


def parse_description(text: str) -> tuple[tuple[DescribedOperator, ...], tuple[DescribedKernel, ...]]:
    """Parse the output of `neurontools_describe`: one line per operator and kernel."""
    operators: list[DescribedOperator] = []
    kernels: list[DescribedKernel] = []
    for line in text.splitlines():
        match line.split("\t"):
            case ["operator", library, name, kernel, result, parameters]:
                operators.append(DescribedOperator(library, name, kernel, _function(parameters, result)))
            case ["kernel", name, result, parameters]:
                kernels.append(DescribedKernel(name, _function(parameters, result)))
    return tuple(operators), tuple(kernels)


def check_operators(operators: tuple[DescribedOperator, ...]) -> None:
    """Check the operators that shape sources register.

    Raises:
        CustomOpBuildError: no operators, too many, duplicates, bad names, or unsupported types.
    """
    if not operators:
        raise CustomOpBuildError(
            "the shape sources register no operator",
            'register with NEURON_LIBRARY(name, m) { m.def("op", &shape_function, "kernel"); }',
        )
    if len(operators) > MAX_OPERATORS:
        raise CustomOpBuildError(
            f"{len(operators)} operators in one library; the limit is {MAX_OPERATORS}",
            "split the library",
        )
    seen: set[str] = set()
    for operator in operators:
        if operator.qualified in seen:
            raise CustomOpBuildError(
                f"operator {operator.qualified} is registered twice", "give one of them another name"
            )
        seen.add(operator.qualified)
        if not _IDENTIFIER.match(operator.name):
            raise CustomOpBuildError(
                f'operator name "{operator.name}" is not an identifier',
                "the first argument of m.def is the name under torch.ops: letters, digits and _",
            )
        if not _FUNCTION.match(operator.kernel):
            raise CustomOpBuildError(
                f'operator {operator.qualified}: "{operator.kernel}" is not the name of a function', _NAMING
            )
        _check_function(f"operator {operator.qualified}: shape function", operator.shape)


def check_kernel(operator: DescribedOperator, kernel: DescribedKernel) -> None:
    """Check that a kernel has the parameters of its operator's shape function, ignoring const and &.

    Raises:
        CustomOpBuildError: they differ, or the kernel has unsupported types.
    """
    subject = f"operator {operator.qualified}: kernel {kernel.name}"
    _check_function(subject, kernel.function)
    shape = _plain(operator.shape.parameters)
    compute = _plain(kernel.function.parameters)
    if shape != compute:
        raise CustomOpBuildError(
            f"{subject} takes ({', '.join(compute)}), its shape function takes ({', '.join(shape)})",
            "both must have the same parameters",
        )


def integer_warnings(operators: Iterable[DescribedOperator]) -> tuple[str, ...]:
    """Return a warning for each operator with int64_t parameters, which newer documentation no longer allows."""
    return tuple(
        f"operator {operator.qualified} takes int64_t: the AWS documentation of 2025-12 allows only double for numbers"
        for operator in operators
        if "int64" in operator.shape.parameters
    )


def missing_kernel(
    operator: str, kernel: str, sources: Iterable[Path], *, foreign: bool = False
) -> CustomOpBuildError:
    """Return the error for a kernel that no source defines.

    Args:
        operator: the operator that names it.
        kernel: the name.
        sources: the compute sources, with the paths that the user gave.
        foreign: whether a header declares another function of that name.
    """
    places = " or ".join(map(str, sources))
    clash = f"; the function {kernel} that is declared there is not a kernel" if foreign else ""
    return CustomOpBuildError(
        f"operator {operator}: its kernel function {kernel} is not defined in {places}{clash}", _NAMING
    )


def _function(parameters: str, result: str) -> Function:
    return Function(tuple(parameters.split(";")) if parameters else (), result)


def _plain(parameters: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_SCHEMA_WORDS[word].replace("float", "double") for word in parameters)


def _check_function(subject: str, function: Function) -> None:
    if function.result != "tensor":
        given = function.result.removeprefix("unsupported:")
        raise CustomOpBuildError(f"{subject} returns {given}", "it must return exactly one torch::Tensor")
    if len(function.parameters) > MAX_ARGUMENTS:
        raise CustomOpBuildError(
            f"{subject} takes {len(function.parameters)} parameters; the limit is {MAX_ARGUMENTS}",
            "combine numbers in one tensor",
        )
    for index, word in enumerate(function.parameters):
        if word.startswith("unsupported:"):
            given = word.removeprefix("unsupported:")
            raise CustomOpBuildError(
                f"{subject}: parameter {index} has the unsupported type {given}",
                _ADVICE.get(given, "parameters are torch::Tensor, torch::Scalar, double or int64_t"),
            )
