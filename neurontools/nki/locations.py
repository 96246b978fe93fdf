"""Lines of the user's code: where instructions are called and tensors are declared."""

from __future__ import annotations

import linecache
import re
import sys
from functools import cache
from os.path import dirname
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from types import FrameType

_PACKAGE = dirname(dirname(__file__))
_SHIMS = (f"{_PACKAGE}/nki/", f"{_PACKAGE}/compat/")
_LIBRARIES = (*_SHIMS, f"{dirname(np.__file__)}/")
_ASSIGNED = re.compile(r"\s*([A-Za-z_]\w*)\s*(?::[^=]+)?=[^=]")


class UserLine(NamedTuple):
    """A line of the user's code."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    def assigned_name(self) -> str:
        """Return the name of the variable that the line assigns, "" for other lines."""
        match = _ASSIGNED.match(linecache.getline(self.file, self.line))
        return match.group(1) if match else ""


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
    frame = sys._getframe(1)  # noqa: SLF001
    while frame.f_back is not None and _is_librarys(frame.f_code.co_filename):
        frame = frame.f_back
    return _line(frame.f_code.co_filename, frame.f_lineno)
