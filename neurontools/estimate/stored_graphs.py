"""Recorded graphs in the user's cache directory, so that the next estimate of a model does not need torch.

A file has a line of JSON and a graph. Its name is a hash of model and run, of the files of this program that record,
and of the versions of torch and transformers.
"""

from __future__ import annotations

import hashlib
import json
import os
from functools import cache
from typing import TYPE_CHECKING, Any

from neurontools import paths
from neurontools.base.files import remove_quietly, write_atomic
from neurontools.base.json_reader import load_json
from neurontools.base.packages import installed_version

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST = 2000  # files


def load(key: Any) -> tuple[Mapping[str, Any], bytes] | None:
    """Return the fields and the graph stored for a key, None if there are none."""
    try:
        with open(_path(key), "rb") as file:
            line, _, graph = file.read().partition(b"\n")
        fields = load_json(line)
    except (OSError, ValueError):
        return None
    return (fields, graph) if isinstance(fields, dict) else None


def save(key: Any, fields: Mapping[str, Any], graph: bytes = b"") -> None:
    """Store fields and a graph for a key, in place of the oldest; nothing is stored where the directory is read-only."""
    path = _path(key)
    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        write_atomic(path, json.dumps(fields).encode() + b"\n" + graph, sync=False)
        stored = [entry for entry in os.scandir(folder) if entry.is_file()]
        if len(stored) > _MOST:
            stored.sort(key=lambda entry: entry.stat().st_mtime_ns)
            for entry in stored[: _MOST // 2]:
                remove_quietly(entry.path)
    except OSError:
        return


def _path(key: Any) -> str:
    text = json.dumps([key, _recorder()], sort_keys=True)
    return f"{paths.cache_home()}/estimates/{hashlib.sha256(text.encode()).hexdigest()}"


@cache
def _recorder() -> list[Any]:
    """Return what decides how a model is recorded: this program's own files and the versions of others."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    files = []
    for folder in ("estimate", "compiler", "xla", "xla/distributed"):
        with os.scandir(f"{package}/{folder}") as entries:
            stats = [(entry.name, entry.stat()) for entry in entries if entry.name.endswith(".py")]
        files += sorted((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)
    return [files, *map(installed_version, ("torch", "transformers"))]
