"""Call an operator with the inputs of a check, record refusals, evaluate expressions of the user."""

from __future__ import annotations

import importlib
import itertools
import os
import re
import sys
from contextlib import contextmanager, suppress
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from neurontools.customop.errors import CustomOpLibraryError, NeuronCustomOpError
from neurontools.customop.marshalling import execute, import_torch
from neurontools.customop.operation import CustomOperator
from neurontools.customop.runner import make_arguments
from neurontools.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from neurontools.customop.checking.inputs import Case
    from neurontools.customop.executors import WorkerExecutor
    from neurontools.customop.package import OperatorEntry, Package

_NUMBER = re.compile(r"(?<![\w.:])\d+(?:\.\d+)?")  # not in a location such as relu.cpp:12

# Failures by which a kernel refuses inputs: its own checks, and accessors of another dtype or rank.
REFUSAL_KINDS = frozenset({"dtype", "rank", "check", "assert", "shape", "domain", "limit"})
_WAYS_MAX = 12


class CallTimeoutError(Exception):
    """A call took too long. It ends the check: each further call would take as long.

    Args:
        error: what the call raised.
        case: the inputs of the call.
    """

    def __init__(self, error: NeuronCustomOpError, case: Case) -> None:
        super().__init__(error.message)
        self.error = error
        self.case = case


class CheckedOperator:
    """An operator with one executor for each content of fresh memory; `on_call` gets the number of calls."""

    def __init__(
        self,
        package: Package,
        index: int,
        executors: Sequence[WorkerExecutor],
        on_call: Callable[[int], None] | None = None,
    ) -> None:
        self.package = package
        self.entry: OperatorEntry = package.manifest.operators[index]
        self._warnings: dict[str, str] = {}
        self._refused: dict[str, tuple[str, int]] = {}
        self._operations = [CustomOperator(package, index, executor) for executor in executors]
        self._executor = executors[0]
        self._current: tuple[Case | None, list[Any]] = (None, [])
        self._on_call = on_call
        self._calls = 0

    def call(self, which: int, case: Case, order: int = 0) -> Any:
        """Return the operator's output for a case, from the executor `which`.

        `order` is that of the cores, see `CustomOperator.run`.

        Raises:
            NeuronCustomOpError: it fails.
            CallTimeoutError: it takes too long.
        """
        if self._current[0] is not case:
            self._current = case, make_arguments(case.inputs)
        self._calls += 1
        if self._on_call is not None:
            self._on_call(self._calls)
        try:
            output, completed = execute(self._operations[which], self._current[1], order)
        except NeuronCustomOpError as error:
            if error.kind == "timeout":
                raise CallTimeoutError(error, case) from error
            raise
        for warning in completed.warnings:
            self._warnings.setdefault(_kind_of(warning), warning)
        return output

    def forward(self, arguments: Sequence[Any]) -> Any:
        """Return the operator's output for tensors and numbers."""
        return execute(self._operations[0], arguments)[0]

    def refuse(self, error: NeuronCustomOpError) -> None:
        """Record that the operator refuses inputs."""
        place = f" at {error.location}" if error.location else ""
        reason = f"{error.kind}: {error.reason}{place}"
        first, count = self._refused.get(_kind_of(reason), (reason, 0))
        self._refused[_kind_of(reason)] = first, count + 1

    def forget_refused(self) -> None:
        """Forget the recorded refusals."""
        self._refused.clear()

    @property
    def refused(self) -> tuple[tuple[str, int], ...]:
        """Reasons for refused inputs, with their number; reasons that differ only in numbers count as one."""
        return tuple(self._refused.values())

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of the runtime checks; warnings that differ only in numbers count as one."""
        return tuple(self._warnings.values())

    def functions(self) -> dict[str, object]:
        """Return the names for expressions: torch and the operators of the library."""

        def function(index: int) -> Callable[..., Any]:
            operation = CustomOperator(self.package, index, self._executor)
            return lambda *values: execute(operation, values)[0]

        entries = self.package.manifest.operators
        return {"torch": import_torch(), **{entry.name: function(i) for i, entry in enumerate(entries)}}


_FUNCTION = re.compile(r"(?P<module>.+\.py|[A-Za-z_][\w.]*):(?P<name>[A-Za-z_][\w.]*)\Z")


def function_of(text: str) -> Callable[..., Any] | None:
    """Return the function that `MODULE:FUNCTION` or `FILE.py:FUNCTION` names; None for an expression.

    Raises:
        UsageError: there is no such module or function, or the module fails.
    """
    found = _FUNCTION.match(text.strip())
    if found is None:
        return None
    name, attributes = found["module"], found["name"]
    remedy = "give MODULE:FUNCTION, FILE.py:FUNCTION or an expression such as 'torch.relu(x0)'"
    value: Any = _load(name, remedy)
    for attribute in attributes.split("."):
        if not hasattr(value, attribute):
            raise UsageError(f"{name} has no {attributes}", remedy)
        value = getattr(value, attribute)
    if not callable(value):
        raise UsageError(f"{attributes} of {name} is not a function, but {type(value).__name__}", remedy)
    return cast("Callable[..., Any]", value)


def _load(name: str, remedy: str) -> object:
    if name.endswith(".py") and not Path(name).is_file():
        raise UsageError(f"{name} does not exist", remedy)
    try:
        if name.endswith(".py"):
            return _load_file(Path(name))
        with _importable(os.getcwd()):
            return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and name.startswith(error.name):
            raise UsageError(f"no module {name} here or installed", remedy) from error
        raise UsageError(f"cannot import {name}: {error}", "install it, or correct the import") from error
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"cannot import {name}: {type(error).__name__}: {one_line(error)}", "correct it"
        ) from error


def _load_file(path: Path) -> object:
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules.setdefault(path.stem, module_from_spec(spec))
    with _importable(str(path.resolve().parent)):
        spec.loader.exec_module(module)
    return module


@contextmanager
def _importable(directory: str) -> Iterator[None]:
    # Installed commands do not find modules in the current directory.
    sys.path.insert(0, directory)
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.path.remove(directory)


def one_line(error: BaseException) -> str:
    """Return the first line of an error's text."""
    return (str(error).splitlines() or ["no message"])[0]


def call_function(function: Callable[..., Any], text: str, inputs: Sequence[Any]) -> Any:
    """Return the result of a function of the user.

    Raises:
        UsageError: it fails.
    """
    try:
        return function(*inputs)
    except (NeuronCustomOpError, CustomOpLibraryError, KeyboardInterrupt):
        raise
    except Exception as error:
        raise UsageError(
            f"{text} fails: {type(error).__name__}: {one_line(error)}",
            "it gets the operator's inputs, in their order, as torch tensors and numbers",
        ) from error


def _kind_of(message: str) -> str:
    return _NUMBER.sub("#", message)


def backward_named(package: Package, entry: OperatorEntry) -> OperatorEntry | None:
    """Return the backward operator of an operator, found by name; None without one."""
    names = {f"{entry.name}_backward", f"{entry.name}_grad"}
    if "forward" in entry.name:
        names.add(entry.name.replace("forward", "backward"))
    entries = package.manifest.operators
    return next(
        (
            candidate
            for candidate in entries
            if candidate.name in names and candidate.library == entry.library
        ),
        None,
    )


def backward_ways(entry: OperatorEntry, backward: OperatorEntry) -> tuple[str, ...]:
    """Return possible calls of a backward operator as expressions, the likeliest first.

    Its parameters are the gradient, then some of the operator's inputs and its output, in their order.
    """
    wanted = parameter_kinds(backward)
    if wanted[:1] != ["tensor"]:
        return ()
    inputs = [(f"x{position}", kind) for position, kind in enumerate(parameter_kinds(entry))]
    tensors = sum(kind == "tensor" for _, kind in inputs)
    ways = []
    for place in (len(inputs), tensors, 0):  # the output after everything, after the tensors, first
        offered = [*inputs[:place], ("y", "tensor"), *inputs[place:]]
        for chosen in itertools.combinations(offered, len(wanted) - 1):
            names = ", ".join(("g", *(name for name, _ in chosen)))
            ways += [f"{backward.name}({names})"] if [kind for _, kind in chosen] == wanted[1:] else []
    return tuple(dict.fromkeys(ways))[:_WAYS_MAX]


def parameter_kinds(entry: OperatorEntry) -> list[str]:
    """Return the kinds of the parameters without const."""
    return [word.removeprefix("const-") for word in entry.parameters]


def evaluate(expression: str, names: dict[str, object]) -> Any:
    """Return the value of a Python expression of the command line.

    Raises:
        UsageError: it is not an expression, or fails.
    """
    try:
        return eval(expression, {"__builtins__": __builtins__, **names})  # noqa: S307  the user's own program
    except (NeuronCustomOpError, CustomOpLibraryError, KeyboardInterrupt):
        raise
    except Exception as error:
        known = ", ".join(name for name in names if name != "torch")
        raise UsageError(
            f"{expression} fails: {type(error).__name__}: {one_line(error)}",
            f"available names: torch, {known}",
        ) from error
