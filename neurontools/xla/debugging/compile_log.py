"""Messages about compiles: the line of the script that caused a graph, and a hint when the program ends."""

# ruff: noqa: SLF001
# Frames of the interpreter.

from __future__ import annotations

import atexit
import dis
import os
import shlex
import sys
from typing import TYPE_CHECKING, NamedTuple

import torch

import neurontools
from neurontools import env
from neurontools.cache.location import DEFAULT_ROOT
from neurontools.xla.debugging import metrics
from neurontools.xla.distributed import workers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

EAGER = "eager mode"
# In every program, the first step and the second one, in which the optimizer has its state, are new graphs.
_USUAL_COMPILES = 2

_MOST_FRAMES = 32
_with_stacks = False

COPY = "copy to the CPU"
PRINT = "print of a tensor"
ITEM = ".item()"
TRUTH = "bool"

_GENERATED = "<neurontools "
COMPILED = "<eval_with_key>"  # graphs of torch.compile
_OWN = os.path.dirname(neurontools.__file__) + os.sep
NOT_USERS = (os.path.dirname(torch.__file__) + os.sep, _OWN, _GENERATED, COMPILED)
_PRINTING = os.path.join(os.path.dirname(torch.__file__), "_tensor_str.py")
_DEVICE = (os.path.join(_OWN, "xla", ""), _GENERATED)


class Frame(NamedTuple):
    """A function on the call stack, and its current line."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"


def report_at_exit(root: str) -> None:
    """Report the number of compiles when the program ends."""
    atexit.unregister(report_compiles)
    atexit.register(report_compiles, root)


def report_compiles(root: str) -> None:
    """Report the number of compiled graphs on a terminal, if it is higher than usual and was not explained."""
    compiled = metrics.counters().get("UncachedCompile", 0)
    if (
        compiled > _USUAL_COMPILES
        and workers.local_rank() == 0
        and sys.stderr.isatty()
        and not env.flag(env.EXPLAIN)
    ):
        where = "" if root == DEFAULT_ROOT else f" --cache-dir {shlex.quote(root)}"
        sys.stderr.write(f"{compiled} graphs compiled; to see why: neuron-cache why{where}\n")


def current_source() -> str:
    """Return `file:line` of the innermost frame outside torch and this package, or "" without one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(NOT_USERS):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def record_stacks() -> None:
    """Let events have call stacks from now on."""
    global _with_stacks  # noqa: PLW0603 # of this process
    _with_stacks = True


def event_source() -> str:
    """Return the program's line for an event of a profile.

    With stacks, a line `function file:line` for each of the program's frames follows, the innermost first.
    """
    if not _with_stacks:
        return current_source()
    found: list[str] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(found) <= _MOST_FRAMES:
        code = frame.f_code
        if not code.co_filename.startswith(NOT_USERS):
            place = f"{code.co_filename}:{frame.f_lineno}"
            found += [place] if not found else []
            found.append(f"{code.co_qualname} {place}")
        frame = frame.f_back
    return "\n".join(found)


def refined(cause: str) -> str:
    """Return what ended a recording, more precisely where the program's frames say more: `print`, or a condition."""
    frame: FrameType | None = sys._getframe(1) if cause in {COPY, ITEM} else None
    while frame is not None and frame.f_code.co_filename.startswith(NOT_USERS):
        if frame.f_code.co_filename == _PRINTING:
            return PRINT
        frame = frame.f_back
    return TRUTH if frame is not None and cause == ITEM and _tests_truth(frame) else cause


def _tests_truth(frame: FrameType) -> bool:
    """Return whether a frame is at an `if`, `while`, `not`, `and` or `or`."""
    name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    return "JUMP" in name or name in {"TO_BOOL", "UNARY_NOT"}


def python_frames() -> list[Frame]:
    """Return the functions on the call stack, the innermost first, without those of the device itself."""
    return list(_frames(sys._getframe(1)))


def _frames(frame: FrameType | None) -> Iterator[Frame]:
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(_DEVICE):
            yield Frame(code.co_name, code.co_filename, frame.f_lineno)
        frame = frame.f_back
