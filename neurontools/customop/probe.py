"""One run of an operator with made-up inputs, for its modelled time: what a graph that calls it is told.

It runs in a worker of its own: nothing is printed or logged, and static variables of the kernels that really run do
not see it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from neurontools.customop import abi, cost
from neurontools.customop.cost import TensorOperand
from neurontools.customop.dtypes import BY_NAME
from neurontools.customop.environment import execution_timeout_s
from neurontools.customop.mailbox import WorkerGoneError
from neurontools.customop.marshalling import Codes, execute
from neurontools.customop.operation import Operation
from neurontools.customop.runner import TensorInput, make_tensor
from neurontools.customop.session import Session
from neurontools.errors import NeuronToolsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neurontools.customop.calls import Buffer, Outcome
    from neurontools.customop.cost import Operand
    from neurontools.customop.package import Package

MADE_UP_REAL = 0.5
MADE_UP_INTEGER = 1
_TIMEOUT_S = 10.0  # a kernel may loop for ever on made-up values alone
_operators: dict[str, tuple[Package, int]] = {}
_counted: dict[tuple[str, int, tuple[Operand, ...]], int] = {}


def trial_ns(package: Package, index: int, operands: Sequence[Operand]) -> int:
    """Return the modelled time of an operator in nanoseconds, by a run; by its source when it cannot be run so.

    Args:
        package: the library.
        index: position of the operator in its manifest.
        operands: what it is called with.
    """
    try:
        return _by_run(package, index, operands)
    except (NeuronToolsError, WorkerGoneError):
        return _by_source(package, index, operands)


def made_up(operand: Operand, word: str, position: int) -> object:
    """Return an argument like an operand.

    Args:
        operand: the operand.
        word: what the parameter is called in the signature.
        position: its position, the seed of a tensor's contents.

    Raises:
        UsageError: the tensor is larger than this computer's memory allows.
    """
    if isinstance(operand, TensorOperand):
        return make_tensor(TensorInput(operand.sizes, operand.dtype, position))
    if operand is None:
        return MADE_UP_INTEGER if word == "int64" else MADE_UP_REAL
    return operand


class _Silent:
    """A worker whose failures and prints nobody hears of; a call that takes long is a failure."""

    def __init__(self, package: Package) -> None:
        self._session = Session(package.parts, f"{package.manifest.name}-trial")
        self._timeout_s = min(_TIMEOUT_S, execution_timeout_s())

    def call(self, request: abi.Request, inputs: dict[int, Buffer], output: Buffer | None) -> Outcome:
        outcome = self._session.call(request, inputs, output, self._timeout_s, 0)
        if outcome.failure is not None:
            raise NeuronToolsError(outcome.failure.message)
        return replace(outcome, warnings=(), printed="", complained="")

    def close(self) -> None:
        self._session.end()


def _by_run(package: Package, index: int, operands: Sequence[Operand]) -> int:
    words = package.manifest.operators[index].parameters
    if len(words) != len(operands) or not all(map(_on_device, operands)):
        raise NeuronToolsError("the operands are not those of the operator")
    executor = _Silent(package)
    try:
        arguments = [
            made_up(operand, word, position)
            for position, (operand, word) in enumerate(zip(operands, words, strict=True))
        ]
        return execute(Operation(package, index, executor), arguments, Codes())[1].modelled_ns
    finally:
        executor.close()


def _by_source(package: Package, index: int, operands: Sequence[Operand]) -> int:
    tensors = [operand for operand in operands if isinstance(operand, TensorOperand)]
    numels = [_numel(tensor) for tensor in tensors]
    sizes = [BY_NAME[tensor.dtype].itemsize if tensor.dtype in BY_NAME else 4 for tensor in tensors]
    cores = abi.MAX_CORES if package.manifest.multicore else 1
    # An output like the largest input: the shape function may be what does not run.
    return cost.analytic_ns(
        package.manifest.operators[index].access, [*numels, max(numels, default=0)], sizes, cores
    )


def _on_device(operand: Operand) -> bool:
    if not isinstance(operand, TensorOperand):
        return True
    return operand.dtype in BY_NAME and BY_NAME[operand.dtype].on_device


def _numel(tensor: TensorOperand) -> int:
    count = 1
    for size in tensor.sizes:
        count *= size
    return count


def remember_operator(package: Package, index: int) -> None:
    """Model an operator of a loaded library from now on, in place of one of an older library of that name."""
    _operators[package.manifest.operators[index].qualified] = (package, index)


def operator_ns(qualified: str, operands: Sequence[Operand]) -> int | None:
    """Return the modelled time of a call of a loaded operator in nanoseconds.

    Args:
        qualified: `library::operator`.
        operands: what it is called with; the same operands take the same time, whatever tensors hold.

    Returns:
        The time, None when no loaded library has the operator.
    """
    if qualified not in _operators:
        return None
    package, index = _operators[qualified]
    key = (package.sha256, index, tuple(operands))
    if key not in _counted:
        # Loaded late: most who load a library compile no graph.
        from neurontools.customop.probe import trial_ns

        _counted[key] = trial_ns(package, index, operands)
    return _counted[key]
