"""Errors of Python in kernels: which a wrong use of NKI has caused, and how a program that they end shows them.

A wrong use becomes a `KernelError` at the kernel's line, with the remedy; all other errors are the user's own, and stay.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
from contextlib import suppress
from traceback import walk_tb
from types import FrameType, FunctionType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from neurontools.base.text import did_you_mean, format_error
from neurontools.errors import NeuronToolsError, UsageError
from neurontools.nki.errors import KernelError, KernelUsageError
from neurontools.nki.generations import FIRST, SECOND, foreign_name, title
from neurontools.nki.locations import UserLine, is_user_frame, user_location
from neurontools.nki.tensor_views import TensorView

if TYPE_CHECKING:
    from collections.abc import Callable

_CALL = re.compile(r"(?:\w+\.)*(\w+)\(\) (got|missing|takes)\b")
_KEYWORD = re.compile(r"keyword argument '(\w+)'")
_OPERATOR = re.compile(r"for (\S+): |unary (\S+): |'(\S+)' not supported between")
_TENSORS = ("NkiTensor", "Tile")
_TENSOR = re.compile(rf"\b({'|'.join(_TENSORS)})\b")
WRAPPER = "refusing_unknown"
"""A function that refuses keywords which that of this generation does not have before it calls it."""
_MISSING = "missing"
"""The function that modules of NKI call for names that they lack."""
_CALLERS = ("/launch.py", "/cores.py", "/language.py", "/objects.py")
"""Modules of NKI that call functions of the user."""
_LIBRARIES = (f"{os.path.dirname(os.__file__)}/", f"{os.path.dirname(np.__file__)}/", "<frozen")
_LONGEST_VALUE = 40


class diagnosed:  # noqa: N801  used as `with diagnosed(...)`
    """Raises errors of Python that a wrong use of NKI causes as errors at the kernel's line.

    Args:
        function: the kernel.
        first: whether it is written in the first generation.
    """

    def __init__(self, function: Callable[..., Any], *, first: bool) -> None:
        self._function = function
        self._first = first

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, Exception):
            diagnosis = _Diagnosis(error, self._function, first=self._first).error()
            if diagnosis is not None:
                raise diagnosis from error


class _Diagnosis:
    """An error and where it was raised.

    Args:
        error: the error.
        function: the kernel.
        first: whether it is written in the first generation.
    """

    def __init__(self, error: Exception, function: Callable[..., Any], *, first: bool) -> None:
        self._error = error
        self._function = function
        self._first = first
        trace = _classified(error.__traceback__)
        line = max(
            (number for number, step in enumerate(trace) if step.is_users and not step.is_library), default=-1
        )
        self._frame = trace[line].frame if line >= 0 else None
        self._place = trace[line].location() if line >= 0 else user_location()
        self._called = next((step.frame for step in trace[line + 1 :] if not step.is_users), None)

    def error(self) -> KernelError | None:
        """Return the error at the kernel's line; None where the user's own code raised it, or it is one already."""
        error, called = self._error, self._called
        if called is not None and self._is_mixed(called):
            return self._made(
                called.f_code.co_name,
                f"belongs to {title(first=not self._first)}, the kernel {self._function.__name__} to "
                f"{title(first=self._first)}",
                "import all names of a kernel from one of them",
            )
        if isinstance(error, UsageError):
            return self._made(self._name(), error.message, error.remedy, is_usage=True)
        if isinstance(error, NeuronToolsError) or hasattr(error, "__notes__"):  # they have their line
            return None
        if isinstance(error, RecursionError):  # the kernel calls itself, wherever the stack ended
            return None
        if self._frame is None:
            return self._of_call()
        if called is None:
            return self._of_users()
        if isinstance(error, AttributeError | ImportError) and called.f_code.co_name == _MISSING:
            reason, _, remedy = str(error).partition("; ")
            return KernelError(f"{self._place}: {reason}", remedy)
        return self._of_called(called)

    def _made(self, name: str, reason: str, remedy: str, *, is_usage: bool = False) -> KernelError:
        kind = KernelUsageError if is_usage else KernelError
        return kind(f"{self._place}: {name}: {reason}", remedy)

    def _name(self) -> str:
        code = self._called.f_code if self._called is not None else None
        # A launch calls functions of its own before the kernel runs.
        if code is None or code.co_filename.endswith("/launch.py"):
            return self._function.__name__
        return code.co_name

    def _is_mixed(self, called: FrameType) -> bool:
        file = called.f_code.co_filename
        folder = os.path.basename(os.path.dirname(file))
        if folder == "first":
            return not self._first
        is_second = folder == "instructions" or file.endswith(("/computations.py", "/declarations.py"))
        return is_second and self._first

    def _of_called(self, called: FrameType) -> KernelError:
        """Return the error of a function of NKI: an argument that must be a tensor is the first suspect."""
        function = self._find(self._name())
        for name, kind in function.__annotations__.items() if function else ():
            value = called.f_locals.get(name)
            if kind == "NkiTensor" and type(value).__name__ not in _TENSORS and name != "return":
                return self._made(self._name(), f"{name} is a {type(value).__name__}, not a tensor", "")
        reason = f"{type(self._error).__name__}: {self._error}"
        return self._made(self._name(), reason, f"called with {_arguments(called)}")

    def _of_call(self) -> KernelError:
        """Return the error of a call that did not reach the kernel."""
        name, text = self._function.__name__, str(self._error)
        if isinstance(self._error, TypeError) and _CALL.match(text):
            remedy = f"its parameters: {', '.join(_parameters(self._function)) or 'none'}"
            return self._made(name, text.partition("() ")[2], remedy, is_usage=True)
        return self._made(name, f"{type(self._error).__name__}: {text}", "")

    def _of_users(self) -> KernelError | None:
        """Return the error of a line of the user that calls NKI with other arguments or uses a tensor as a number."""
        error, text = self._error, str(self._error)
        if isinstance(error, AttributeError):
            return self._of_attribute(error)
        if not isinstance(error, TypeError):
            return None
        call = _CALL.match(text)
        function = self._find(call[1]) if call else None
        if function is not None:
            return self._of_arguments(text, function)
        if not _TENSOR.search(text):
            return None
        if "ufunc" in text:
            return self._made("tensor", "numpy computes on arrays, not on tensors", "use nl.exp, nl.add, ...")
        operator = _OPERATOR.search(text)
        if operator and not self._first:
            return self._made(
                next(filter(None, operator.groups())),
                f"tensors have no operators in {SECOND}",
                f"use nl.add, nl.multiply, nl.less, ...; operators belong to {FIRST}",
            )
        return self._made("tensor", text, "elements are known at run time only; compute with instructions")

    def _find(self, name: str) -> FunctionType | None:
        """Return the function of NKI that a line of the user calls by a name."""
        assert self._frame is not None
        scope = {**self._frame.f_globals, **self._frame.f_locals}
        if isinstance(scope.get(name), FunctionType) and not scope[name].__module__.startswith(
            "neurontools."
        ):
            return None
        modules = [value for value in scope.values() if isinstance(value, ModuleType)]
        for value in (scope.get(name), *[vars(module).get(name) for module in modules]):
            if isinstance(value, FunctionType) and value.__module__.startswith("neurontools.nki"):
                return value
        return None

    def _of_arguments(self, text: str, function: FunctionType) -> KernelError:
        """Return the error of a call of a function of NKI with other arguments than it takes."""
        parameters = _parameters(function)
        keyword = _KEYWORD.search(text)
        foreign = foreign_name(keyword[1], in_first=self._first) if keyword else None
        if keyword and foreign:
            return self._made(
                function.__name__, f"{keyword[1]}= belongs to {foreign[0]}", f"here: {foreign[1]}"
            )
        remedy = f"its parameters: {', '.join(parameters)}"
        if not keyword and self._first:
            remedy += f"; instructions return their result, those of {SECOND}, take a dst"
        elif not keyword and parameters[0] == "dst":
            remedy += f"; instructions write to dst, those of {FIRST}, return their result"
        return self._made(function.__name__, text.partition("() ")[2], remedy)

    def _of_attribute(self, error: AttributeError) -> KernelError | None:
        tensor, name = error.obj, error.name
        if type(tensor).__name__ not in _TENSORS or name is None:
            return None
        foreign = foreign_name(name, in_first=self._first)
        if foreign:
            return self._made(name, f"belongs to {foreign[0]}", f"here: {foreign[1]}")
        attributes = [attribute for attribute in dir(tensor) if not attribute.startswith("_")]
        return self._made(
            name, "tensors have no such attribute", did_you_mean(name, attributes, otherwise="")
        )


def _parameters(function: Callable[..., Any]) -> list[str]:
    return [name for name in inspect.signature(function).parameters if not name.startswith("_")]


def _arguments(frame: FrameType) -> str:
    """Return the arguments that a function was called with, as its frame has them."""
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount
    arguments = []
    for name in code.co_varnames[:count]:
        value = frame.f_locals.get(name)
        text = value.storage.allocation.label if isinstance(value, TensorView) else repr(value)
        arguments.append(f"{name}={text if len(text) <= _LONGEST_VALUE else type(value).__name__}")
    return ", ".join(arguments)


class _Step(NamedTuple):
    """A step of a traceback: of the user or of NKI; functions of libraries belong to who calls them."""

    frame: FrameType
    line: int
    is_users: bool
    is_library: bool

    def location(self) -> UserLine:
        """Return the line."""
        return UserLine(self.frame.f_code.co_filename, self.line)


def _classified(trace: TracebackType | None) -> list[_Step]:
    """Return the steps of a traceback, outermost first."""
    steps: list[_Step] = []
    for frame, line in walk_tb(trace):
        if frame.f_code.co_name == WRAPPER:
            continue
        file = frame.f_code.co_filename
        is_library = file.startswith(_LIBRARIES) and "/site-packages/" not in file.removeprefix(_LIBRARIES[1])
        caller = steps[-1] if steps else None
        is_users = is_user_frame(frame) and (
            caller is None
            or caller.is_users
            or (caller.frame.f_code.co_filename.endswith(_CALLERS) and not is_library)
        )
        steps.append(_Step(frame, line, is_users, is_library))
    return steps


@functools.cache  # one hook per process: it decides when the program ends
def explain_at_exit() -> None:
    """Show an error of a kernel that ends the program as a compiler would: a line and a hint, not the way to it."""
    write_traceback = sys.excepthook

    def explain(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, KernelError):
            _write(format_error(error))
            return
        line = kernel_line(trace)
        if isinstance(error, KeyboardInterrupt) and line is not None:
            _write(f"interrupted at {line}\n")
            return
        write_traceback(kind, error.with_traceback(_users_frames(trace)), error.__traceback__)

    sys.excepthook = explain


def _write(text: str) -> None:
    with suppress(OSError):  # the directory may be gone
        text = text.replace(f"{os.getcwd()}/", "")
    sys.stderr.write(text)


def kernel_line(trace: TracebackType | None) -> UserLine | None:
    """Return the innermost line of the user on the way to where a kernel was, None where no kernel ran."""
    steps = _classified(trace)
    if all(step.is_users for step in steps):
        return None
    return next((step.location() for step in reversed(steps) if step.is_users and not step.is_library), None)


def _users_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of NKI."""
    steps = []
    while trace is not None:
        if is_user_frame(trace.tb_frame):
            steps.append(trace)
        trace = trace.tb_next
    rest = None
    for step in reversed(steps):
        rest = TracebackType(rest, step.tb_frame, step.tb_lasti, step.tb_lineno)
    return rest
