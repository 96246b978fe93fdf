"""Kernels as operators of torch: a call with tensors of a device becomes a node of the graph that the device records.

The kernel runs once on zeros for each signature, as a compiler would trace it: that gives the results' shapes, which
arguments it writes, and its time. Later the operator runs where the graph runs.
"""

from __future__ import annotations

import hashlib
import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from neurontools.compiler.compile import KERNEL_NS
from neurontools.nki.limits import chosen_target
from neurontools.nki.program import duration_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


NAMESPACE = "nki"
_library = torch.library.Library(NAMESPACE, "FRAGMENT")
_operators: dict[Any, KernelOperator] = {}


class TensorAt(NamedTuple):
    """Stands for a tensor in the arguments or the results of a kernel.

    Args:
        number: its number among the tensors.
    """

    number: int


def is_device_call(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Return whether an argument is a tensor on a device other than the CPU."""
    tensors: list[torch.Tensor] = []
    _take_tensors((list(args), kwargs), tensors)
    return any(tensor.device.type not in {"cpu", "meta"} for tensor in tensors)


def _take_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Return a structure with a placeholder for each tensor, and add the tensors to a list."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return TensorAt(len(tensors) - 1)
    if isinstance(value, list):
        return [_take_tensors(item, tensors) for item in value]
    if isinstance(value, tuple) and not isinstance(value, TensorAt):
        items = [_take_tensors(item, tensors) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, dict):
        return {key: _take_tensors(item, tensors) for key, item in value.items()}
    return value


def _put_tensors(value: Any, tensors: Sequence[Any]) -> Any:
    """Return a structure with the tensors at their places."""
    if isinstance(value, TensorAt):
        return tensors[value.number]
    if isinstance(value, list):
        return [_put_tensors(item, tensors) for item in value]
    if isinstance(value, tuple):
        items = [_put_tensors(item, tensors) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, dict):
        return {key: _put_tensors(item, tensors) for key, item in value.items()}
    return value


class KernelOperator:
    """An operator of torch for a kernel with given shapes and constants.

    Args:
        kernel: the kernel.
        arguments: its arguments, tensors replaced by placeholders.
        tensors: tensors that stand for those that it will get.
    """

    def __init__(self, kernel: Any, arguments: Any, tensors: Sequence[torch.Tensor]) -> None:
        self._kernel = kernel
        self._arguments = arguments
        zeros = [torch.zeros(tensor.shape, dtype=tensor.dtype) for tensor in tensors]
        trial = self._run(zeros, is_trial=True)
        made: list[torch.Tensor] = []
        self._results = _take_tensors(trial.results, made)
        self._shapes = [(tuple(tensor.shape), tensor.dtype) for tensor in made]
        written = trial.written_arguments()
        names = [f"(a{index}!)" if index in written else "" for index in range(len(zeros))]
        parameters = ", ".join(f"Tensor{alias} x{index}" for index, alias in enumerate(names))
        returned = ", ".join(["Tensor"] * len(made))
        name = f"{kernel.func.__name__}_{self._digest(trial)}"
        _library.define(f"{name}({parameters}) -> ({returned})")
        _library.impl(name, self._compute, "CPU")
        _library.impl(name, self._shape, "Meta")
        self._call = getattr(getattr(torch.ops, NAMESPACE), name)
        # Compilations in this process take the kernel's schedule for its time.
        KERNEL_NS[f"{NAMESPACE}.{name}.default"] = round(duration_ns(trial.launch))

    def _digest(self, trial: Any) -> str:
        """Return what tells the kernel from others of its name: its source and the instructions of the trial."""
        digest = hashlib.sha256()
        try:
            digest.update(inspect.getsource(self._kernel.func).encode())
        except OSError:  # defined at a prompt
            digest.update(self._kernel.func.__code__.co_code)
        digest.update(repr((self._arguments, trial.launch.limits.target, trial.launch.grid)).encode())
        for core in trial.launch.cores:
            for record in core.records:
                accesses = [access[1:5] for access in (*record.reads, *record.writes)]
                digest.update(repr((record.opcode, record.engine, record.options, accesses)).encode())
        return digest.hexdigest()[:12]

    def _run(self, tensors: Sequence[torch.Tensor], *, is_trial: bool = False) -> Any:
        args, kwargs = _put_tensors(self._arguments, tensors)
        return self._kernel.run(tuple(args), kwargs, checks=not is_trial)

    def _compute(self, *tensors: torch.Tensor) -> Any:
        made: list[torch.Tensor] = []
        _take_tensors(self._run(tensors).results, made)
        return _as_returned(made)

    def _shape(self, *_tensors: torch.Tensor) -> Any:
        return _as_returned([torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in self._shapes])

    def __call__(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Call the operator and return the kernel's results."""
        returned = self._call(*tensors)
        return _put_tensors(self._results, returned if isinstance(returned, tuple | list) else [returned])


def _as_returned(tensors: list[torch.Tensor]) -> Any:
    """Return results as an operator of torch returns them."""
    return None if not tensors else tensors[0] if len(tensors) == 1 else tuple(tensors)


def call(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a kernel with tensors of a device and return its results on the device."""
    tensors: list[torch.Tensor] = []
    arguments = _take_tensors((list(args), kwargs), tensors)
    signature = tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors)
    key = (kernel.func, kernel.cores, kernel.has_grid, chosen_target(), repr(arguments), signature)
    operator = _operators.get(key)
    if operator is None:
        operator = _operators[key] = KernelOperator(kernel, arguments, tensors)
    return operator(tensors)


def _leave_alone(function: Callable[..., Any]) -> None:
    """Keep torch.compile out of a function and all that it calls: the operator that it calls at the end is enough."""
    from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

    set_code_exec_strategy(function.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))
    function._torchdynamo_disable = True  # type: ignore[attr-defined]  # noqa: SLF001
    function._torchdynamo_disable_msg = "NKI kernels are traced by running them"  # type: ignore[attr-defined]  # noqa: SLF001


_leave_alone(call)
