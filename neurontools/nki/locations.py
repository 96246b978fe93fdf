"""Lines of the user's code: where instructions are called and tensors are declared."""

from __future__ import annotations

import ast
import linecache
import sys
from functools import cache
from os.path import dirname
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from types import CodeType, FrameType

_PACKAGE = dirname(dirname(__file__))
_SHIMS = (f"{_PACKAGE}/nki/", f"{_PACKAGE}/compat/")
_LIBRARIES = (*_SHIMS, f"{dirname(np.__file__)}/")


class UserLine(NamedTuple):
    """A line of the user's code; `column` is where a declaration begins, in bytes, -1 for other lines."""

    file: str
    line: int
    column: int = -1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@cache  # the same declaration is often asked for
def assigned_name(declaration: UserLine) -> str:
    """Return what a declaration is assigned to, such as a or self.a, "" where it is not."""
    for statement in _assignments(declaration.file):
        if statement.value is not None and _has(statement.value, declaration):
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            return ast.unparse(_part(target, statement.value, declaration))
    return ""


@cache
def _assignments(file: str) -> list[ast.Assign | ast.AnnAssign | ast.NamedExpr]:
    """Return the assignments of a file, the inner ones first."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, RecursionError):  # the file may have changed since
        return []
    kinds = (ast.Assign, ast.AnnAssign, ast.NamedExpr)
    return [node for node in ast.walk(tree) if isinstance(node, kinds)][::-1]


def _has(node: ast.expr, declaration: UserLine) -> bool:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    start, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
    return start <= declaration[1:] < end


def _part(target: ast.expr, value: ast.expr, declaration: UserLine) -> ast.expr:
    """Return the target of the item of a tuple that a declaration is."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for part, item in zip(target.elts, value.elts, strict=False):
            if _has(item, declaration):
                return _part(part, item, declaration)
    return target


@cache
def _is_own(file: str) -> bool:
    return file.startswith(_SHIMS)


@cache
def _is_librarys(file: str) -> bool:
    return file.startswith(_LIBRARIES)


_line = cache(UserLine)  # the same line is often asked for


def is_user_frame(frame: FrameType) -> bool:
    """Return whether a frame runs code outside of this package."""
    return not _is_own(frame.f_code.co_filename)


def user_location() -> UserLine:
    """Return the innermost line that is running outside of this package."""
    frame = _user_frame(sys._getframe(1))  # noqa: SLF001
    return _line(frame.f_code.co_filename, frame.f_lineno)


def user_declaration() -> UserLine:
    """Return the innermost line that is running outside of this package, and the column of the call that runs."""
    frame = _user_frame(sys._getframe(1))  # noqa: SLF001
    return _declaration(frame.f_code, frame.f_lasti)


def _user_frame(frame: FrameType) -> FrameType:
    while frame.f_back is not None and _is_librarys(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


@cache
def _declaration(code: CodeType, offset: int) -> UserLine:
    line, _, column, _ = list(code.co_positions())[offset // 2]
    return UserLine(code.co_filename, line or code.co_firstlineno, -1 if column is None else column)
