"""Kernels as operators of torch: a call with tensors of a device becomes a node of the graph that the device records.

The kernel runs once on zeros for each signature, as a compiler would trace it: that gives the results' shapes, which
arguments it writes, and its time. Later the operator runs where the graph runs. Its constants say which kernel it is
(`kernel_identity`), so that a graph is compiled again when a kernel changes, and only then.
"""

from __future__ import annotations

import re
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from neurontools.compiler.compile import KERNELS
from neurontools.compiler.engines.kernel_program import NAMESPACE
from neurontools.nki.kernel_identity import describe, kernel_code, named_arguments
from neurontools.nki.limits import chosen_target
from neurontools.nki.program import slowest_program
from neurontools.nki.runs import profiled, report_warnings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from neurontools.nki.runs import GridFactors, Run


_library = torch.library.Library(NAMESPACE, "FRAGMENT")
_operators: dict[Any, KernelOperator] = {}
_by_constants: dict[Any, KernelOperator] = {}
_defined: set[str] = set()
_OTHER = re.compile(r"\W", re.ASCII)


class RunnableKernel(Protocol):
    """What this module needs of the kernels of both generations."""

    func: Callable[..., Any]

    @property
    def factors(self) -> GridFactors:
        """The launch grid: for each dimension its factors, and which of them number cores."""

    def run(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, checks: bool = True, quiet: bool = False
    ) -> Run:
        """Run the kernel on arrays and return what happened."""


class _Place:
    """Stands for a tensor among the other leaves of the arguments or the results.

    Args:
        number: of the tensor.
    """

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __repr__(self) -> str:
        return f"tensor {self.number}"


def split(structure: Any) -> tuple[list[Any], TreeSpec, list[torch.Tensor]]:
    """Return the leaves of a structure with places for its tensors, its form, and the tensors."""
    leaves, form = tree_flatten(structure)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    numbers = iter(range(len(tensors)))
    return (
        [_Place(next(numbers)) if isinstance(leaf, torch.Tensor) else _as_constant(leaf) for leaf in leaves],
        form,
        tensors,
    )


def _as_constant(leaf: Any) -> Any:
    """Return the plain number behind a number that torch.compile keeps variable, and any other leaf as it is."""
    kinds = ((torch.SymInt, int), (torch.SymFloat, float), (torch.SymBool, bool))
    return next((plain(leaf) for symbolic, plain in kinds if isinstance(leaf, symbolic)), leaf)


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
        self._reported: set[Any] = set()
        with _disable_current_modes(), _without_function_modes(), _without_breakpoints():
            zeros = [torch.zeros(tensor.shape, dtype=tensor.dtype) for tensor in tensors]
            trial = self._run(zeros, is_trial=True)
            self._results, self._results_form, made = split(trial.results)
        self._shapes = [(tuple(tensor.shape), tensor.dtype) for tensor in made]
        self._constants = self._identity(trial)
        name = _define(kernel, len(tensors), len(made), trial.written_arguments())
        self._call = getattr(getattr(torch.ops, NAMESPACE), name.partition(".")[0])
        self._call = getattr(self._call, name.partition(".")[2])
        constants = tuple(self._constants.items())
        key = (f"{NAMESPACE}.{name}", constants, _signature(tensors))
        _by_constants[key] = self
        # Compilations in this process put the kernel's instructions into the NEFF.
        KERNELS[key] = slowest_program(trial.launch)

    def _identity(self, trial: Run) -> dict[str, Any]:
        """Return the constants of the operator: what tells the kernel's calls from others."""
        args, kwargs = tree_unflatten(self._leaves, self._form)
        code = kernel_code(self._kernel.func)
        cores = "x".join(str(size) for size in trial.launch.grid) or "1"
        return {
            "source": code.source,
            "captured": code.captured,
            "arguments": named_arguments(self._kernel.func, tuple(args), kwargs),
            "launch": (
                f"grid={cores}",
                f"cores={len(trial.launch.cores)}",
                f"target={trial.launch.limits.target}",
            ),
        }

    def _run(self, tensors: Sequence[torch.Tensor], *, is_trial: bool = False) -> Run:
        args, kwargs = _join(self._leaves, self._form, tensors)
        with _without_function_modes():
            return self._kernel.run(tuple(args), kwargs, checks=not is_trial, quiet=True)

    def compute(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Run the kernel; a warning is printed once for each line."""
        run = self._run(tensors)
        report_warnings(run.launch, self._reported)
        return _as_returned(split(run.results)[2])

    def shape(self) -> Any:
        """Return the results without elements."""
        return _as_returned([torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in self._shapes])

    def __call__(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Call the operator and return the kernel's results."""
        returned = self._call(*tensors, **self._constants)
        tensors = returned if isinstance(returned, tuple | list) else [returned]
        return _join(self._results, self._results_form, tensors)


_without_function_modes = torch._C.DisableTorchFunction  # noqa: SLF001
"""The torch functions that run a kernel are not the program's: a recording must not see the values that they read."""


@contextmanager
def _without_breakpoints() -> Iterator[None]:
    """Let `breakpoint()` do nothing in a trial, whose elements are zeros."""
    hook, sys.breakpointhook = sys.breakpointhook, lambda *_args, **_options: None
    try:
        yield
    finally:
        sys.breakpointhook = hook


def _define(kernel: RunnableKernel, inputs: int, outputs: int, written: Sequence[int]) -> str:
    """Define the operator of a kernel for a number of tensors and return its name."""
    writes = "".join(f"_writes{number}" for number in written)
    called = getattr(kernel.func, "__name__", type(kernel.func).__name__)
    name = f"{_OTHER.sub('_', called)}.in{inputs}_out{outputs}{writes}"
    if name not in _defined:
        _defined.add(name)
        parameters = [f"Tensor{f'(a{x}!)' if x in written else ''} x{x}" for x in range(inputs)]
        constants = "str[] source, str[] captured, str[] arguments, str[] launch"
        returned = ", ".join(["Tensor"] * outputs)
        _library.define(f"{name}({', '.join([*parameters, '*', constants])}) -> ({returned})")
        _library.impl(
            name, lambda *tensors, **constants: _find(name, tensors, constants).compute(tensors), "CPU"
        )
        _library.impl(name, lambda *tensors, **constants: _find(name, tensors, constants).shape(), "Meta")
    return name


def _find(name: str, tensors: Sequence[torch.Tensor], constants: dict[str, Any]) -> KernelOperator:
    texts = tuple((key, tuple(value)) for key, value in constants.items())
    return _by_constants[f"{NAMESPACE}.{name}", texts, _signature(tensors)]


def _signature(tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    return tuple((str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for tensor in tensors)


def _as_returned(tensors: list[torch.Tensor]) -> Any:
    """Return results as an operator of torch returns them."""
    return None if not tensors else tensors[0] if len(tensors) == 1 else tuple(tensors)


def call(kernel: RunnableKernel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a kernel: as an operator where a tensor is one of a device or of a compiler that traces, else directly."""
    leaves, form, tensors = split((args, kwargs))
    if all(type(tensor) in _PLAIN and tensor.device.type == "cpu" for tensor in tensors):
        with _without_function_modes():
            return profiled(lambda: kernel.run(args, kwargs)).results
    return operator_for(kernel, leaves, form, tensors)(tensors)


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def operator_for(
    kernel: RunnableKernel, leaves: Sequence[Any], form: TreeSpec, tensors: Sequence[torch.Tensor]
) -> KernelOperator:
    """Return the operator of a kernel for the shapes and constants of a call; it is made once."""
    constants = tuple(map(describe, leaves))
    key = (kernel.func, kernel.factors, chosen_target(), constants, repr(form), _signature(tensors))
    operator = _operators.get(key)
    if operator is None:
        operator = _operators[key] = KernelOperator(kernel, leaves, form, tensors)
    return operator


def _leave_alone(function: Callable[..., Any]) -> None:
    """Keep torch.compile out of a function and all that it calls: the operator that it calls at the end is enough."""
    from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

    set_code_exec_strategy(function.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))


_leave_alone(call)
