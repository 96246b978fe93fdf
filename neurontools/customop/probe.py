"""Modelled times of loaded operators, for graphs that know shapes but no values: one run on generated inputs.

It runs in a separate worker: nothing is printed or logged, and static variables of the real kernels are unaffected.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from neurontools.customop import abi, cost
from neurontools.customop.abi import BY_NAME
from neurontools.customop.cost import TensorOperand
from neurontools.customop.environment import execution_timeout_s
from neurontools.customop.mailbox import WorkerGoneError
from neurontools.customop.marshalling import execute
from neurontools.customop.operation import CustomOperator
from neurontools.customop.runner import TensorInput, make_tensor
from neurontools.customop.session import Session
from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.customop.calls import Buffer, Outcome
    from neurontools.customop.cost import Operand
    from neurontools.customop.package import Package

SAMPLE_REAL = 0.5
SAMPLE_INTEGER = 1
_TIMEOUT_S = 10.0  # a kernel may loop for ever on generated values
_operators: dict[str, tuple[Package, int]] = {}
_modelled_ns: dict[tuple[str, int, tuple[Operand, ...]], int] = {}


def _generate_argument(operand: Operand, word: str, position: int) -> object:
    if isinstance(operand, TensorOperand):
        return make_tensor(TensorInput(operand.sizes, operand.dtype, position))
    if operand is None:
        return SAMPLE_INTEGER if word == "int64" else SAMPLE_REAL
    return operand


class _SilentWorker:
    """A worker whose output and failures are discarded; slow calls fail."""

    def __init__(self, package: Package) -> None:
        self._session = Session(package.parts, f"{package.manifest.name}-probe")
        self._timeout_s = min(_TIMEOUT_S, execution_timeout_s())

    def call(self, request: abi.CallRequest, inputs: dict[int, Buffer], output: Buffer | None) -> Outcome:
        outcome = self._session.call(request, inputs, output, self._timeout_s, 0)
        if outcome.failure is not None:
            raise NeuronToolsError(outcome.failure.message)
        return replace(outcome, warnings=(), stdout="", stderr="")

    def close(self) -> None:
        self._session.end()


def _by_run(package: Package, index: int, operands: Sequence[Operand]) -> int:
    words = package.manifest.operators[index].parameters
    if len(words) != len(operands) or not all(map(_on_device, operands)):
        raise NeuronToolsError("the operands do not match the operator")
    executor = _SilentWorker(package)
    try:
        arguments = [
            _generate_argument(operand, word, position)
            for position, (operand, word) in enumerate(zip(operands, words, strict=True))
        ]
        return execute(CustomOperator(package, index, executor), arguments)[1].modelled_ns
    finally:
        executor.close()


def _by_source(package: Package, index: int, operands: Sequence[Operand]) -> int:
    tensors = [operand for operand in operands if isinstance(operand, TensorOperand)]
    numels = [math.prod(tensor.sizes) for tensor in tensors]
    sizes = [BY_NAME[tensor.dtype].itemsize if tensor.dtype in BY_NAME else 4 for tensor in tensors]
    cores = abi.MAX_CORES if package.manifest.multicore else 1
    # The output is taken to be like the largest input: the shape function may be what fails.
    return cost.analytic_ns(
        package.manifest.operators[index].access, [*numels, max(numels, default=0)], sizes, cores
    )


def _on_device(operand: Operand) -> bool:
    if not isinstance(operand, TensorOperand):
        return True
    return operand.dtype in BY_NAME and BY_NAME[operand.dtype].on_device


def remember_operator(package: Package, index: int) -> None:
    """Register an operator of a loaded library; it replaces one of the same name from an older library."""
    _operators[package.manifest.operators[index].qualified] = (package, index)


def operator_ns(qualified: str, operands: Sequence[Operand]) -> int | None:
    """Return the modelled time of a call of a loaded operator in nanoseconds, None if no loaded library has it.

    It is from a run, or from the operator's source if the run fails. Equal operands take the same time, whatever
    values tensors have.
    """
    if qualified not in _operators:
        return None
    package, index = _operators[qualified]
    key = (package.sha256, index, tuple(operands))
    if key not in _modelled_ns:
        try:
            _modelled_ns[key] = _by_run(package, index, operands)
        except (NeuronToolsError, WorkerGoneError):
            _modelled_ns[key] = _by_source(package, index, operands)
    return _modelled_ns[key]
