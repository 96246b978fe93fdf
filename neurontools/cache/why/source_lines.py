"""The text of a source line that a graph names, as the file has it now."""

from __future__ import annotations

import os

from neurontools.cache.files import read_start

_MOST_BYTES = 1 << 22
_LONGEST = 120


def source_line(source: str) -> str:
    """Return `file:line: text` for a `file:line`, without the text where the file is not here.

    Graphs come from files that others may write, so only regular files that look like a script are opened.
    """
    path, _, number = source.rpartition(":")
    if not path.endswith(".py") or not number.isdigit() or not os.path.isfile(path):
        return source
    lines = read_start(path, _MOST_BYTES).decode("utf-8", "replace").splitlines()
    position = int(number) - 1
    text = lines[position].strip() if 0 <= position < len(lines) else ""
    return f"{source}: {text[:_LONGEST]}" if text else source
