"""Kernels as operators of torch: a call with tensors of a device becomes a node of the graph that the device records.

The kernel runs once on zeros for each signature, as a compiler would trace it: that gives the results' shapes, which
arguments it writes, and its time. Later the operator runs where the graph runs.
"""

from __future__ import annotations

import hashlib
import inspect
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from neurontools.compiler.compile import KERNELS
from neurontools.compiler.engines.kernel_program import NAMESPACE
from neurontools.nki.limits import chosen_target
from neurontools.nki.program import program_of, slowest_core

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_HOST = frozenset({"cpu", "meta"})
_library = torch.library.Library(NAMESPACE, "FRAGMENT")
_operators: dict[Any, KernelOperator] = {}
_defined: set[str] = set()


class RunnableKernel(Protocol):
    """What this module needs of `neurontools.nki.launch.Kernel`, which imports it."""

    func: Callable[..., Any]
    cores: int
    has_grid: bool

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, checks: bool = True) -> Any:
        """Run the kernel on arrays and return what happened."""


class _Place(NamedTuple):
    """Stands for a tensor among the other leaves of the arguments or the results."""

    number: int


def split(structure: Any) -> tuple[list[Any], TreeSpec, list[torch.Tensor]]:
    """Return the leaves of a structure with places for its tensors, its form, and the tensors."""
    leaves, form = tree_flatten(structure)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    numbers = iter(range(len(tensors)))
    return (
        [_Place(next(numbers)) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves],
        form,
        tensors,
    )


def _join(leaves: Sequence[Any], form: TreeSpec, tensors: Sequence[Any]) -> Any:
    """Return the structure of leaves whose places tensors take."""
    return tree_unflatten(
        [tensors[leaf.number] if isinstance(leaf, _Place) else leaf for leaf in leaves], form
    )


class KernelOperator:
    """An operator of torch for a kernel with given shapes and constants.

    Args:
        kernel: the kernel.
        leaves: the leaves of its positional and named arguments, with places for tensors.
        form: how the leaves are nested.
        tensors: tensors that stand for those that it will get.
    """

    def __init__(
        self, kernel: RunnableKernel, leaves: Sequence[Any], form: TreeSpec, tensors: Sequence[torch.Tensor]
    ) -> None:
        self._kernel = kernel
        self._leaves = leaves
        self._form = form
        zeros = [torch.zeros(tensor.shape, dtype=tensor.dtype) for tensor in tensors]
        trial = self._run(zeros, is_trial=True)
        self._results, self._results_form, made = split(trial.results)
        self._shapes = [(tuple(tensor.shape), tensor.dtype) for tensor in made]
        written = trial.written_arguments()
        names = [f"(a{index}!)" if index in written else "" for index in range(len(zeros))]
        parameters = ", ".join(f"Tensor{alias} x{index}" for index, alias in enumerate(names))
        returned = ", ".join(["Tensor"] * len(made))
        name = f"{kernel.func.__name__}_{self._digest(trial)}"
        if name not in _defined:  # a function that is defined again is the same operator
            _library.define(f"{name}({parameters}) -> ({returned})")
            _library.impl(name, self._compute, "CPU")
            _library.impl(name, self._shape, "Meta")
            _defined.add(name)
        self._call = getattr(getattr(torch.ops, NAMESPACE), name)
        # Compilations in this process put the kernel's instructions into the NEFF.
        KERNELS[f"{NAMESPACE}.{name}.default"] = program_of(slowest_core(trial.launch))

    def _digest(self, trial: Any) -> str:
        """Return what tells the kernel from others of its name: source, captured values, instructions of the trial."""
        digest = hashlib.sha256()
        function = self._kernel.func
        try:
            digest.update(inspect.getsource(function).encode())
        except OSError:  # defined at a prompt
            digest.update(function.__code__.co_code)
        captured = [cell.cell_contents for cell in function.__closure__ or ()]
        digest.update(repr((captured, function.__defaults__, function.__kwdefaults__)).encode())
        digest.update(
            repr((self._leaves, self._form, trial.launch.limits.target, trial.launch.grid)).encode()
        )
        for core in trial.launch.cores:
            for record in core.records:
                accesses = [access[1:5] for access in (*record.reads, *record.writes)]
                digest.update(repr((record.opcode, record.engine, record.options, accesses)).encode())
        return digest.hexdigest()[:12]

    def _run(self, tensors: Sequence[torch.Tensor], *, is_trial: bool = False) -> Any:
        args, kwargs = _join(self._leaves, self._form, tensors)
        return self._kernel.run(tuple(args), kwargs, checks=not is_trial)

    def _compute(self, *tensors: torch.Tensor) -> Any:
        return _as_returned(split(self._run(tensors).results)[2])

    def _shape(self, *_tensors: torch.Tensor) -> Any:
        return _as_returned([torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in self._shapes])

    def __call__(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Call the operator and return the kernel's results."""
        returned = self._call(*tensors)
        tensors = returned if isinstance(returned, tuple | list) else [returned]
        return _join(self._results, self._results_form, tensors)


def _as_returned(tensors: list[torch.Tensor]) -> Any:
    """Return results as an operator of torch returns them."""
    return None if not tensors else tensors[0] if len(tensors) == 1 else tuple(tensors)


def bind(kernel: RunnableKernel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any] | None:
    """Return the call of a kernel as an operator of the graph, None where no argument is a tensor of a device."""
    leaves, form, tensors = split((args, kwargs))
    if all(tensor.device.type in _HOST for tensor in tensors):
        return None
    return partial(operator_for(kernel, leaves, form, tensors), tensors)


def operator_for(
    kernel: RunnableKernel, leaves: Sequence[Any], form: TreeSpec, tensors: Sequence[torch.Tensor]
) -> KernelOperator:
    """Return the operator of a kernel for the shapes and constants of a call; it is made once."""
    signature = tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors)
    key = (kernel.func, kernel.cores, kernel.has_grid, chosen_target(), repr((leaves, form)), signature)
    operator = _operators.get(key)
    if operator is None:
        operator = _operators[key] = KernelOperator(kernel, leaves, form, tensors)
    return operator


def _leave_alone(function: Callable[..., Any]) -> None:
    """Keep torch.compile out of a function and all that it calls: the operator that it calls at the end is enough."""
    from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

    set_code_exec_strategy(function.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))
    function._torchdynamo_disable = True  # type: ignore[attr-defined]  # noqa: SLF001
    function._torchdynamo_disable_msg = "NKI kernels are traced by running them"  # type: ignore[attr-defined]  # noqa: SLF001


_leave_alone(bind)
