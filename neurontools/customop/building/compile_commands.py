"""Write `compile_commands.json`, with which editors and clangd understand kernels and shape functions."""

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
    """Write the compile commands of a request's sources; entries of other sources in the file stay.

    Args:
        request: the build request.
        directory: directory of the file: editors search the parents of a source, and `build` in each of them.

    Returns:
        The file.

    Raises:
        MissingDependencyError: no C++ compiler is installed.
        CustomOpBuildError: the cache directory cannot be written.
        OSError: the file cannot be written.
    """
    path = Path(os.path.abspath(directory)) / FILE_NAME
    entries = _entries(request)
    if _merged(_read(path), entries) == _read(path):
        return path
    with build_lock(path, lambda: None):
        _replace(path, _merged(_read(path), entries))
    return path


def _entries(request: BuildRequest) -> list[Entry]:
    compiler = find_compiler()
    flags = [*compiler.command, *user_flags(compiler), *request.cflags]
    directory = str(Path.cwd())
    return [
        {"directory": directory, "file": source, "arguments": [*flags, "-c", source]}
        for source in dict.fromkeys((*absolute(request.compute), *absolute(request.shape)))
    ]


def _merged(existing: list[Entry], entries: list[Entry]) -> list[Entry]:
    files = {entry["file"] for entry in entries}
    return sorted([*(entry for entry in existing if entry.get("file") not in files), *entries], key=_file)


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
