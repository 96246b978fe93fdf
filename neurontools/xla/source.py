"""The user's line of code that led to an operator."""

# ruff: noqa: SLF001
# Torch's private API.

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import torch

import neurontools

if TYPE_CHECKING:
    from types import FrameType

_NOT_USERS = (
    os.path.dirname(torch.__file__) + os.sep,
    os.path.dirname(neurontools.__file__) + os.sep,
    "<neurontools ",
)


def current_source() -> str:
    """Return `file:line` of the innermost frame outside torch and this package, "" where there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_NOT_USERS):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
