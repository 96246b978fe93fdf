"""The user's line of code that led to an operator."""

from __future__ import annotations

import os
import sys

import torch

import neurontools

_NOT_USERS = (
    os.path.dirname(torch.__file__) + os.sep,
    os.path.dirname(neurontools.__file__) + os.sep,
    "<neurontools ",
)


def current_source() -> str:
    """Return `file:line` of the innermost frame outside torch and this package, "" where there is none."""
    frame = sys._getframe(1)  # noqa: SLF001
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_NOT_USERS):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""
