"""`compile_commands.json`: what editors and clangd need to understand kernels and shape functions."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from neurontools.base.files import write_atomic
from neurontools.customop.building.request import absolute
from neurontools.customop.building.toolchain import build_lock, find_compiler, user_flags

if TYPE_CHECKING:
    from neurontools.customop.building.request import BuildRequest

FILE_NAME = "compile_commands.json"

Entry = dict[str, object]


def write_compile_commands(request: BuildRequest, directory: Path) -> Path:
    """Write how a request's sources are compiled; entries of other sources in the same file stay.

    Args:
        request: what is built.
        directory: where the file goes: editors look in the parents of a source, and in `build` beside them.

    Returns:
        The file.

    Raises:
        MissingDependencyError: there is no C++ compiler.
        CustomOpBuildError: the cache directory cannot be written.
        OSError: the file cannot be written.
    """
    path = Path(os.path.abspath(directory)) / FILE_NAME
    ours = _entries(request)
    if _merged(_read(path), ours) == _read(path):
        return path
    with build_lock(path, lambda: None):
        _replace(path, _merged(_read(path), ours))
    return path


def _entries(request: BuildRequest) -> list[Entry]:
    compiler = find_compiler()
    flags = [*compiler.command, *user_flags(compiler), *request.cflags]
    directory = str(Path.cwd())
    return [
        {"directory": directory, "file": source, "arguments": [*flags, "-c", source]}
        for source in dict.fromkeys((*absolute(request.compute), *absolute(request.shape)))
    ]


def _merged(others: list[Entry], ours: list[Entry]) -> list[Entry]:
    files = {entry["file"] for entry in ours}
    return sorted([*(entry for entry in others if entry.get("file") not in files), *ours], key=_file)


def _file(entry: Entry) -> str:
    return str(entry.get("file", ""))


def _read(path: Path) -> list[Entry]:
    try:
        raw = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return []
    return [entry for entry in raw if isinstance(entry, dict)] if isinstance(raw, list) else []


def _replace(path: Path, entries: list[Entry]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(entries, indent=1) + "\n", sync=False)
