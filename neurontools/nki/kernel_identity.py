"""What a kernel is in a graph: digests of the code that it runs, the values that this code takes from outside, its arguments.

All of it is text that another process writes equally, so that graphs with kernels are found in the cache; and text that
people read, so that `neuron-cache why` can name what changed.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
import sys
from enum import Enum
from os.path import basename
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_DIGEST_CHARACTERS = 12
_MOST_CHARACTERS = 120
_DEPTH = 8
"""Levels of nested values that are looked at; objects can hold themselves."""
_FOREIGN = frozenset({"ml_dtypes", "neuronxcc", "neurontools", "nki", "numpy", "torch", "torch_xla"})
"""Packages whose functions belong to the release of the tools; kernels of other packages are the user's."""


class KernelCode(NamedTuple):
    """The code of a kernel and of the functions that it can reach, and the values that they take from outside.

    Args:
        source: `file:function=digest` of each function.
        captured: `name=value` of defaults, closures and globals.
    """

    source: tuple[str, ...]
    captured: tuple[str, ...]


def kernel_code(function: Callable[..., Any]) -> KernelCode:
    """Return the identity of a kernel's code; comments and positions in the file do not matter."""
    walk = _CodeWalk()
    walk.visit(function)
    return KernelCode(tuple(walk.sources), tuple(f"{name}={text}" for name, text in walk.values.items()))


def named_arguments(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[str, ...]:
    """Return `name=value` of the arguments of a call.

    Raises:
        TypeError: the function does not take them.
    """
    bound = inspect.signature(function).bind(*args, **kwargs).arguments
    return tuple(f"{name}={_short(describe(value))}" for name, value in bound.items())


def describe(value: Any, depth: int = _DEPTH) -> str:
    """Return a value as text that is equal in other processes, where its type allows that; deep parts by their types."""
    if depth == 0:
        return type(value).__name__
    inner = functools.partial(describe, depth=depth - 1)
    match value:
        case Enum() | None:
            return str(value)
        case list() | tuple() | set() | frozenset():
            items = map(inner, value if isinstance(value, list | tuple) else sorted(value, key=inner))
            return f"{'' if type(value) is tuple else type(value).__name__}({', '.join(items)})"
        case dict():
            return f"{{{', '.join(f'{inner(key)}: {inner(item)}' for key, item in value.items())}}}"
        case np.ndarray():
            return f"{value.dtype}{list(value.shape)} {_digest(np.ascontiguousarray(value).tobytes())}"
        case ModuleType() | type():
            return value.__name__
        case FunctionType():
            return value.__qualname__
    held = getattr(value, "__dict__", None)
    if held and not callable(value):
        fields = ", ".join(f"{name}={inner(item)}" for name, item in held.items())
        return f"{type(value).__name__}({fields})"
    return repr(value)


def _short(text: str) -> str:
    """Return a text, of a long one the start and a digest."""
    if len(text) <= _MOST_CHARACTERS:
        return text
    return f"{text[: _MOST_CHARACTERS // 2]}… {_digest(text.encode())}"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:_DIGEST_CHARACTERS]


class _CodeWalk:
    def __init__(self) -> None:
        self.sources: list[str] = []
        self.values: dict[str, str] = {}
        self._seen: set[CodeType] = set()

    def visit(self, function: Any) -> None:
        """Note a function, the values that it takes from outside, and the user's functions among these."""
        if isinstance(function, functools.partial):
            self._note("partial", (function.args, function.keywords))
            function = function.func
        function = inspect.unwrap(getattr(function, "__func__", function))
        if not isinstance(function, FunctionType):  # an object that can be called
            function = type(function).__call__
        code = function.__code__
        if code in self._seen:
            return
        self._seen.add(code)
        self.sources.append(
            f"{basename(code.co_filename)}:{function.__name__}={_digest(_code_text(code).encode())}"
        )
        for name, value in _outer_values(function):
            self._note(name, value)

    def _note(self, name: str, value: Any) -> None:
        for held in value if isinstance(value, list | tuple) else (value,):
            inner = getattr(held, "func", None) if not isinstance(held, functools.partial) else held
            if isinstance(held, type) and not _is_foreign(held):
                for method in vars(held).values():
                    if isinstance(method, FunctionType):
                        self.visit(method)
            elif isinstance(held, FunctionType) or callable(inner):
                chosen = held if isinstance(held, FunctionType) else inner
                if not _is_foreign(chosen):
                    self.visit(chosen)
        if not callable(value) and not isinstance(value, ModuleType):
            self.values.setdefault(name, _short(describe(value)))


def _outer_values(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the defaults of a function, the variables of its closure, and the globals that it names."""
    code = function.__code__
    defaults = function.__defaults__ or ()
    yield from zip(
        code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount], defaults, strict=True
    )
    yield from (function.__kwdefaults__ or {}).items()
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name in sorted(_names(code)):
        if name in function.__globals__:
            yield name, function.__globals__[name]


def _names(code: CodeType) -> set[str]:
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*inner)


def _code_text(code: CodeType) -> str:
    """Return what a function does as text: its instructions, names and constants."""
    constants = [
        _code_text(constant) if isinstance(constant, CodeType) else repr(constant)
        for constant in code.co_consts
        if constant is not None
    ]
    names = (code.co_names, code.co_varnames, code.co_freevars)
    return repr((code.co_code, names, re.sub(r" at 0x[0-9a-f]+", "", repr(constants))))


def _is_foreign(value: Any) -> bool:
    package = (getattr(value, "__module__", None) or "").partition(".")[0]
    return package in _FOREIGN or package in sys.stdlib_module_names
