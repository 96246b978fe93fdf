"""Call an operator from torch; everything that depends only on shapes, dtypes and numbers is computed once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from neurontools.customop.calls import PreparedCall
from neurontools.customop.device_resident import tensor_in
from neurontools.customop.executors import WorkerExecutor
from neurontools.customop.marshalling import execute, import_torch, values_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from neurontools.customop.arena import Block
    from neurontools.customop.marshalling import Codes
    from neurontools.customop.operation import CustomOperator, Value

_SIGNATURES_MAX = 1024


@dataclass(frozen=True, slots=True)
class _Signature:
    """Everything that shapes, dtypes and numbers of a call determine."""

    call: PreparedCall
    values: list[Value]
    empty: Callable[[], torch.Tensor]
    layout: tuple[tuple[int, ...], torch.dtype, int]


class Caller:
    """Calls an operator with CPU tensors.

    Args:
        operation: the operator.
        codes: dtype numbers.
    """

    def __init__(self, operation: CustomOperator, codes: Codes) -> None:
        self._operation = operation
        self._codes = codes
        self._tensor_type: type[torch.Tensor] = import_torch().Tensor
        self._signatures: dict[tuple[object, ...], _Signature] = {}

    def __call__(self, *arguments: Any) -> torch.Tensor:
        """Return the result; it is in device memory if one of the tensors is."""
        executor = self._operation.executor
        if not isinstance(executor, WorkerExecutor):
            return execute(self._operation, arguments, self._codes)[0]
        key: list[object] = []
        addresses: list[int] = []
        kept = []  # dense copies
        tensor_type = self._tensor_type
        for argument in arguments:
            if isinstance(argument, tensor_type):
                if not argument.is_contiguous():
                    kept.append(argument := argument.contiguous())
                key += (argument.shape, argument.dtype)
                addresses.append(argument.data_ptr())
            elif type(argument) is float:
                key += (float, argument.hex())  # 0.0 equals -0.0, and NaN equals nothing
            else:
                key += (type(argument), argument)
        signature = self._signatures.get(tuple(key)) or self._prepare(arguments, tuple(key))
        made: list[torch.Tensor] = []

        def result(block: Block | None) -> int:
            tensor = signature.empty() if block is None else tensor_in(block, *signature.layout)
            made.append(tensor)
            address: int = tensor.data_ptr()
            return address

        outcome = executor.run(signature.call, addresses, result)
        if outcome is not None:
            self._operation.complete(outcome, signature.values)
        return made[-1]

    def _prepare(self, arguments: Sequence[object], key: tuple[object, ...]) -> _Signature:
        operation = self._operation
        values = values_of(operation, arguments, self._codes)
        shape = operation.infer(values)
        constant = [i for i, word in enumerate(operation.entry.parameters) if word == "const-tensor"]
        call = PreparedCall(operation.request(values, shape), constant)
        layout = (shape.sizes, self._codes.dtype(shape.dtype), shape.nbytes)
        empty = partial(import_torch().empty, layout[0], dtype=layout[1])
        signature = _Signature(call, values, empty, layout)
        if len(self._signatures) >= _SIGNATURES_MAX:
            self._signatures.clear()
        self._signatures[key] = signature
        return signature
