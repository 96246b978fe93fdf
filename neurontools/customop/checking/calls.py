"""Calling an operator with the inputs of a check, and remembering what it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neurontools.customop.marshalling import Codes, execute, import_torch
from neurontools.customop.operation import Operation
from neurontools.customop.runner import TensorInput, make_tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neurontools.customop.checking.check_inputs import Case
    from neurontools.customop.errors import NeuronCustomOpError
    from neurontools.customop.manifest import OperatorEntry
    from neurontools.customop.package import Package
    from neurontools.customop.worker import WorkerExecutor

# What a kernel says itself, or says by the accessor that it asks for: it does not take such inputs.
REFUSALS = frozenset({"dtype", "rank", "check", "assert", "shape", "domain", "limit"})


class Caller:
    """An operator, with one executor for each content of fresh memory.

    Args:
        package: the library.
        index: position of the operator in its manifest.
        executors: what runs it.
    """

    def __init__(self, package: Package, index: int, executors: Sequence[WorkerExecutor]) -> None:
        self.package = package
        self.entry: OperatorEntry = package.manifest.operators[index]
        self.warnings: dict[str, None] = {}
        self.refused: dict[str, int] = {}
        self._codes = Codes()
        self._operations = [Operation(package, index, executor) for executor in executors]
        self._executor = executors[0]
        self._current: tuple[Case | None, list[Any]] = (None, [])

    def call(self, which: int, case: Case, order: int = 0) -> Any:
        """Return the operator's output.

        Args:
            which: the executor.
            case: the inputs.
            order: of the cores, as `Operation.run` has it.

        Raises:
            NeuronCustomOpError: it fails.
        """
        if self._current[0] is not case:
            self._current = case, tensors_of(case)
        output, completed = execute(self._operations[which], self._current[1], self._codes, order)
        self.warnings.update(dict.fromkeys(completed.warnings))
        return output

    def forward(self, arguments: Sequence[Any]) -> Any:
        """Return the operator's output for tensors and numbers."""
        return execute(self._operations[0], arguments, self._codes)[0]

    def refuse(self, error: NeuronCustomOpError) -> None:
        """Count inputs that the operator does not take."""
        reason = f"{error.kind}: {error.reason}"
        self.refused[reason] = self.refused.get(reason, 0) + 1

    def functions(self) -> dict[str, object]:
        """Return what expressions may call: torch and the operators of the library, by name."""

        def function(index: int) -> Callable[..., Any]:
            operation = Operation(self.package, index, self._executor)
            return lambda *values: execute(operation, values, self._codes)[0]

        entries = self.package.manifest.operators
        return {"torch": import_torch(), **{entry.name: function(i) for i, entry in enumerate(entries)}}


def tensors_of(case: Case) -> list[Any]:
    """Return the inputs of a case as tensors and numbers."""
    return [make_tensor(value) if isinstance(value, TensorInput) else value for value in case.inputs]
