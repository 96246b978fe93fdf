"""Map addresses in a library to lines of the user's sources, with binutils' addr2line."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import lru_cache
from typing import TYPE_CHECKING

from neurontools.customop.building.toolchain import INCLUDE, SOURCE, home, run_program
from neurontools.customop.errors import remedy_for
from neurontools.customop.package import executable_file

if TYPE_CHECKING:
    from collections.abc import Sequence

_TIMEOUT_S = 30.0
_PLACE = re.compile(r"(?P<path>.+):(?P<line>\d+)(?: \(.*\))?\Z")  # behind it: (discriminator 3)
_FIELDS = 3  # text, core, addresses


@lru_cache(maxsize=64)
def user_location(library: bytes, frames: tuple[int, ...], sources: tuple[str, ...]) -> str:
    """Return `file:line` of the innermost frame in one of the user's sources, "" when unknown.

    Args:
        library: the ELF file.
        frames: addresses in it, innermost first.
        sources: absolute paths of the user's files.
    """
    if not frames:
        return ""
    tool = shutil.which("addr2line") or shutil.which("llvm-addr2line")
    if tool is None:
        return ""
    fd = executable_file("neuron-customop-symbols", library)
    try:
        command = (tool, "-i", "-e", f"/proc/self/fd/{fd}", *map(hex, frames))
        answer = run_program(command, pass_fds=(fd,), timeout_s=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    finally:
        os.close(fd)
    return _first_user_line(answer.stdout.splitlines(), set(sources))


def _first_user_line(lines: Sequence[str], sources: set[str]) -> str:
    foreign_prefixes = (str(INCLUDE), str(SOURCE), str(home()), "/usr/include", "/usr/lib", "/build", "?")
    foreign = ""
    for line in lines:
        path, number = path_and_line(line)
        if not number:  # "?": code shared by several lines
            continue
        if path in sources:
            return f"{short_path(path)}:{number}"
        if not foreign and path and not path.startswith(foreign_prefixes):
            foreign = f"{short_path(path)}:{number}"
    return foreign


def path_and_line(answer: str) -> tuple[str, str]:
    """Return path and line number of a line of addr2line, "" for unknown ones."""
    found = _PLACE.match(answer)
    return (os.path.normpath(found["path"]), found["line"]) if found else ("", "")


def short_path(path: str) -> str:
    """Return a path relative to the current directory if it is below it."""
    path = os.path.normpath(path)
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def format_warning(line: str, library: bytes, sources: tuple[str, ...]) -> str:
    """Format a warning of the runtime as `tcm: reason on core 0 at kernel.cpp:12; remedy`.

    A line has text, core and hexadecimal addresses in the library, separated by tabs.
    """
    fields = line.split("\t")
    if len(fields) != _FIELDS:
        return line
    text, core, places = fields
    frames = tuple(int(place, 16) for place in places.split(",") if place)
    location = user_location(library, frames, sources)
    kind, _, reason = text.partition(": ")
    place = f" at {location}" if location else ""
    return f"{text} on core {core}{place}; {remedy_for(kind, reason)}"
